use dkb_runtime::tpch::workload;
fn main() {
    let data = std::env::args().nth(1).unwrap();
    let ds = dkb_runtime::table::DataSet::open(std::path::Path::new(&data)).unwrap();
    let cat = ds.catalog();
    let only: Vec<String> = std::env::args().skip(2).collect();
    for q in workload::queries() {
        if !only.is_empty() && !only.contains(&q.name) { continue; }
        let decls: Vec<_> = q.params.iter().map(|d| d.decl.clone()).collect();
        let t = std::time::Instant::now();
        match dkb_planner::plan(&q.sql, &decls, &cat, &Default::default()) {
            Ok(p) => { println!("== {} ok {:?} {} phases", q.name, t.elapsed(), p.plan.phases.len());
               std::fs::create_dir_all("/tmp/plans").unwrap();
               std::fs::write(format!("/tmp/plans/{}.plan", q.name), dkb_kernels::text::print(&p.plan)).unwrap();
               std::fs::write(format!("/tmp/plans/{}.explain", q.name), p.explain).unwrap();
               if let Err(e) = dkb_kernels::check(&p.plan) { println!("   CHECK {e:?}"); }
            }
            Err(e) => println!("== {} ERR {e}", q.name),
        }
    }
}
