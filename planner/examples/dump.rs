use datafusion::prelude::*;
use std::sync::Arc;
use arrow::datatypes::*;
use datafusion::datasource::empty::EmptyTable;
fn main() {
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let config = SessionConfig::new().with_target_partitions(1).set_bool("datafusion.sql_parser.parse_float_as_decimal", true);
    let ctx = SessionContext::new_with_config(config);
    let i = DataType::Int64; let i3 = DataType::Int32; let d = DataType::Decimal128(15,2); let s = DataType::Utf8View; let dt = DataType::Date32;
    let t = |n: &str, cols: Vec<(&str, &DataType)>| { let sc = Arc::new(Schema::new(cols.into_iter().map(|(n,t)| Field::new(n, t.clone(), false)).collect::<Vec<_>>())); ctx.register_table(n, Arc::new(EmptyTable::new(sc))).unwrap(); };
    t("region", vec![("r_regionkey",&i),("r_name",&s),("r_comment",&s)]);
    t("nation", vec![("n_nationkey",&i),("n_name",&s),("n_regionkey",&i),("n_comment",&s)]);
    t("supplier", vec![("s_suppkey",&i),("s_name",&s),("s_address",&s),("s_nationkey",&i),("s_phone",&s),("s_acctbal",&d),("s_comment",&s)]);
    t("customer", vec![("c_custkey",&i),("c_name",&s),("c_address",&s),("c_nationkey",&i),("c_phone",&s),("c_acctbal",&d),("c_mktsegment",&s),("c_comment",&s)]);
    t("part", vec![("p_partkey",&i),("p_name",&s),("p_mfgr",&s),("p_brand",&s),("p_type",&s),("p_size",&i3),("p_container",&s),("p_retailprice",&d),("p_comment",&s)]);
    t("partsupp", vec![("ps_partkey",&i),("ps_suppkey",&i),("ps_availqty",&i3),("ps_supplycost",&d),("ps_comment",&s)]);
    t("orders", vec![("o_orderkey",&i),("o_custkey",&i),("o_orderstatus",&s),("o_totalprice",&d),("o_orderdate",&dt),("o_orderpriority",&s),("o_clerk",&s),("o_shippriority",&i3),("o_comment",&s)]);
    t("lineitem", vec![("l_orderkey",&i),("l_partkey",&i),("l_suppkey",&i),("l_linenumber",&i3),("l_quantity",&d),("l_extendedprice",&d),("l_discount",&d),("l_tax",&d),("l_returnflag",&s),("l_linestatus",&s),("l_shipdate",&dt),("l_commitdate",&dt),("l_receiptdate",&dt),("l_shipinstruct",&s),("l_shipmode",&s),("l_comment",&s)]);
    for f in std::env::args().skip(1) {
        let sql = std::fs::read_to_string(&f).unwrap();
        println!("== {f}");
        let r = rt.block_on(async { let t0 = std::time::Instant::now(); let p = ctx.sql(&sql).await?.into_optimized_plan()?; println!("{:?}", t0.elapsed()); Ok::<_, datafusion::error::DataFusionError>(p) });
        match r { Ok(p) => println!("{}", p.display_indent()), Err(e) => println!("ERR {e}") }
    }
}
