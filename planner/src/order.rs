//! Join order and the rewrites that decide a query: which relation streams, which sides are built, semi-joins
//! below aggregates, EXISTS with `<>` as per-key minimum and maximum.
//!
//! Inner joins are flattened into a graph. The graph becomes a tree that follows key edges (many to one) away
//! from the largest relation, so that every build side is looked up by a unique key wherever there is one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dkb_kernels::SqlType;

use crate::ParamValue;
use crate::catalog::TableInfo;
use crate::ir::{
    Acc, AccFn, Aggregate, Cmp, ColId, ColumnDef, Columns, Expr, Join, JoinKind, Kind, Rel, conjuncts,
};

/// State of ordering one query.
pub(crate) struct Order<'a> {
    pub(crate) tables: &'a [TableInfo],
    pub(crate) columns: &'a mut Columns,
    /// Values of parameters by default, for estimates only.
    pub(crate) values: &'a BTreeMap<String, ParamValue>,
    /// Assumptions that must not be made.
    pub(crate) denied: &'a [String],
    /// Decisions, for `--explain`.
    pub(crate) notes: Vec<String>,
}

#[derive(Default)]
struct Cluster {
    leaves: Vec<Rel>,
    equalities: Vec<(Expr, Expr)>,
    filters: Vec<Expr>,
    maps: Vec<(ColId, Expr)>,
    semis: Vec<Join>,
}

impl Order<'_> {
    /// Orders all joins of `rel`. In the result, the left side of every join streams and the right is built.
    pub(crate) fn order(&mut self, rel: Rel) -> Rel {
        match rel {
            Rel::Scan { .. } | Rel::Once => rel,
            Rel::Map { input, defs } => self.order(*input).mapped(defs),
            Rel::Aggregate(agg) => {
                let agg = self.aggregate_early(agg);
                Rel::Aggregate(Aggregate { input: Box::new(self.order(*agg.input)), ..agg })
            }
            Rel::Filter { .. } | Rel::Join(_) if has_inner_join(&rel) => {
                let mut cluster = Cluster::default();
                self.flatten(rel, &mut cluster);
                self.order_cluster(cluster)
            }
            Rel::Filter { input, predicates } => self.order(*input).filtered(predicates),
            Rel::Join(join) => {
                let join = self.min_max(join);
                let join = self.reduce_by_left(join);
                let left = Box::new(self.order(*join.left));
                let right = Box::new(self.order(*join.right));
                Rel::Join(Join { left, right, ..join })
            }
        }
    }

    /// EXISTS (… where key = key and x <> y): some x differs from y exactly if the smallest or largest does.
    fn min_max(&mut self, mut join: Join) -> Join {
        let [Expr { kind: Kind::Cmp(Cmp::Ne, a, b), .. }] = join.filter.as_slice() else { return join };
        let is_semi = matches!(join.kind, JoinKind::Semi | JoinKind::Anti);
        if !is_semi || join.null_aware || join.on.is_empty() {
            return join;
        }
        let right = join.right.outputs();
        let (inner, outer) = match (&a.kind, &b.kind) {
            (Kind::Col(x), _) if right.contains(x) && b.columns().is_disjoint(&right) => (*x, (**b).clone()),
            (_, Kind::Col(x)) if right.contains(x) && a.columns().is_disjoint(&right) => (*x, (**a).clone()),
            _ => return join,
        };
        let mut keys = Vec::new();
        for (_, key) in &join.on {
            match key.kind {
                Kind::Col(id) => keys.push(id),
                _ => return join,
            }
        }
        let ColumnDef { name, ty, range, distinct, .. } = self.columns[inner].clone();
        if range.is_none() {
            return join;
        }
        let mut accs = Vec::new();
        let mut differs = Vec::new();
        for (func, prefix) in [(AccFn::Min, "min"), (AccFn::Max, "max")] {
            let name = format!("{prefix}_{name}");
            self.columns.push(ColumnDef { name, ty, range, distinct, origin: None });
            let id = self.columns.len() - 1;
            accs.push(Acc { id, func, arg: Some(Expr::col(inner, ty)) });
            let cmp = Kind::Cmp(Cmp::Ne, Box::new(Expr::col(id, ty)), Box::new(outer.clone()));
            differs.push(Expr::bool(cmp));
        }
        self.notes.push(format!("EXISTS with <> on {name} becomes a minimum and maximum per key"));
        join.right = Box::new(Rel::Aggregate(Aggregate { input: join.right, keys, accs }));
        join.filter = vec![Expr::bool(Kind::Or(differs))];
        join
    }

    fn flatten(&mut self, rel: Rel, cluster: &mut Cluster) {
        match rel {
            Rel::Join(join) if join.kind == JoinKind::Inner => {
                self.flatten(*join.left, cluster);
                self.flatten(*join.right, cluster);
                cluster.equalities.extend(join.on);
                cluster.filters.extend(join.filter);
            }
            Rel::Filter { input, predicates } => {
                self.flatten(*input, cluster);
                cluster.filters.extend(predicates);
            }
            Rel::Map { input, defs } if has_inner_join(&input) => {
                self.flatten(*input, cluster);
                let known = cluster.maps.clone();
                let defs = defs.into_iter().map(|(id, e)| (id, inline(&e, &known)));
                cluster.maps.extend(defs);
            }
            Rel::Join(join)
                if matches!(join.kind, JoinKind::Semi | JoinKind::Anti) && has_inner_join(&join.left) =>
            {
                let mut join = self.min_max(join);
                let left = std::mem::replace(&mut join.left, Box::new(Rel::Once));
                self.flatten(*left, cluster);
                cluster.semis.push(join);
            }
            other => cluster.leaves.push(other),
        }
    }

    fn order_cluster(&mut self, mut cluster: Cluster) -> Rel {
        let maps = std::mem::take(&mut cluster.maps);
        let mut owner: BTreeMap<ColId, usize> = BTreeMap::new();
        for (index, leaf) in cluster.leaves.iter().enumerate() {
            owner.extend(leaf.outputs().into_iter().map(|id| (id, index)));
        }
        let leaves_of = |e: &Expr, owner: &BTreeMap<ColId, usize>| -> BTreeSet<usize> {
            e.columns().iter().filter_map(|c| owner.get(c).copied()).collect()
        };
        // Conditions: equalities between leaves, filters of one leaf, the rest.
        let mut pairs: Vec<(Expr, Expr)> =
            cluster.equalities.drain(..).map(|(a, b)| (inline(&a, &maps), inline(&b, &maps))).collect();
        let mut rest = Vec::new();
        let mut own: Vec<Vec<Expr>> = vec![Vec::new(); cluster.leaves.len()];
        let mut filters = Vec::new();
        for f in cluster.filters.drain(..) {
            conjuncts(inline(&f, &maps), &mut filters);
        }
        for f in filters {
            let touched = leaves_of(&f, &owner);
            match (&f.kind, touched.len()) {
                (_, 1) => own[*touched.first().expect("one leaf")].push(f),
                (Kind::Cmp(Cmp::Eq, a, b), 2)
                    if leaves_of(a, &owner).len() == 1 && leaves_of(b, &owner).len() == 1 =>
                {
                    pairs.push(((**a).clone(), (**b).clone()));
                }
                _ => rest.push(f),
            }
        }
        let mut defs: Vec<Vec<(ColId, Expr)>> = vec![Vec::new(); cluster.leaves.len()];
        let mut equal: Vec<(ColId, ColId)> = Vec::new();
        for (a, b) in pairs {
            let (la, lb) = (leaves_of(&a, &owner), leaves_of(&b, &owner));
            if la.len() != 1 || lb.len() != 1 {
                rest.push(Expr::eq(a, b));
                continue;
            }
            if la == lb {
                own[*la.first().expect("one leaf")].push(Expr::eq(a, b));
                continue;
            }
            let mut ids = [0; 2];
            for (slot, (e, leaf)) in ids.iter_mut().zip([(a, la), (b, lb)]) {
                let leaf = *leaf.first().expect("one leaf");
                *slot = match widened(&e) {
                    Some(id) => id,
                    None => {
                        self.columns.push(ColumnDef {
                            name: "key".to_owned(),
                            ty: e.ty,
                            range: None,
                            distinct: 1000.0,
                            origin: None,
                        });
                        let id = self.columns.len() - 1;
                        owner.insert(id, leaf);
                        defs[leaf].push((id, e));
                        id
                    }
                };
            }
            equal.push((ids[0], ids[1]));
        }
        let leaves: Vec<Rel> = std::mem::take(&mut cluster.leaves)
            .into_iter()
            .zip(own)
            .zip(defs)
            .map(|((leaf, own), defs)| leaf.filtered(own).mapped(defs))
            .collect();
        let classes = classes(&equal);
        let tree = self.tree(&leaves, &classes, &owner);
        let mut semis = Vec::new();
        for mut semi in cluster.semis {
            semi.on = semi.on.iter().map(|(a, b)| (inline(a, &maps), b.clone())).collect();
            semi.filter = semi.filter.iter().map(|f| inline(f, &maps)).collect();
            semis.push(semi);
        }
        let mut graph = Graph { leaves, classes, owner, filters: rest, semis };
        let (rel, _) = self.place(tree.root, &tree, &mut graph);
        // What no subtree could take spans the root's whole pipeline.
        let mut rel = rel.filtered(std::mem::take(&mut graph.filters));
        for semi in std::mem::take(&mut graph.semis) {
            rel = self.semi(rel, semi);
        }
        rel.mapped(maps)
    }

    fn semi(&mut self, left: Rel, semi: Join) -> Rel {
        let semi = self.reduce_by_left(Join { left: Box::new(left), ..semi });
        let right = Box::new(self.order(*semi.right));
        Rel::Join(Join { right, ..semi })
    }

    /// An aggregate whose arguments all come from the optional side of a left join is computed there first, per
    /// join key: then every left row meets at most one row.
    fn aggregate_early(&mut self, mut agg: Aggregate) -> Aggregate {
        let Rel::Join(join) = &mut *agg.input else { return agg };
        let right = join.right.outputs();
        let from_right = |a: &Acc| {
            a.arg.as_ref().is_some_and(|e| {
                // A row without a match must contribute nothing: its argument must be NULL.
                let columns = e.columns();
                e.is_strict() && !columns.is_empty() && columns.is_subset(&right)
            })
        };
        let keys: Option<Vec<ColId>> = join.on.iter().map(|(_, r)| r.as_column()).collect();
        let Some(keys) = keys.filter(|k| !k.is_empty()) else { return agg };
        let applies = join.kind == JoinKind::Left
            && join.filter.is_empty()
            && !agg.accs.is_empty()
            && agg.accs.iter().all(from_right)
            && agg.keys.iter().all(|k| !right.contains(k))
            && self.unique(&join.right, &keys.iter().copied().collect()).is_none();
        if !applies {
            return agg;
        }
        let mut partial = Vec::new();
        for acc in &mut agg.accs {
            self.columns.push(self.columns[acc.id].clone());
            let id = self.columns.len() - 1;
            partial.push(Acc { id, ..acc.clone() });
            acc.arg = Some(Expr::col(id, self.columns[id].ty));
            acc.func = acc.func.of_partials();
        }
        let name = self.columns[keys[0]].name.clone();
        self.notes.push(format!("aggregate computed below the left join, per {name}"));
        let input = std::mem::replace(&mut join.right, Box::new(Rel::Once));
        *join.right = Rel::Aggregate(Aggregate { input, keys, accs: partial });
        agg
    }

    /// Where the right side is an aggregate joined on its group key, groups that no left row asks for need not be
    /// computed: a selective left side becomes a semi-join below the aggregate.
    fn reduce_by_left(&mut self, mut join: Join) -> Join {
        let Some(agg) = innermost_aggregate(&join.right) else { return join };
        if join.kind == JoinKind::Full || join.null_aware {
            return join;
        }
        let mut best: Option<(f64, ColId, ColId, Rel)> = None;
        for (l, r) in &join.on {
            let (Kind::Col(l), Kind::Col(r)) = (&l.kind, &r.kind) else { continue };
            if !agg.keys.contains(r) {
                continue;
            }
            let Some(source) = provider(&join.left, *l) else { continue };
            let fraction = self.rows(source) / self.base_rows(source).max(1.0);
            if fraction < 0.5 && best.as_ref().is_none_or(|b| fraction < b.0) {
                best = Some((fraction, *l, *r, source.clone()));
            }
        }
        if let Some((_, l, r, source)) = best {
            self.note_reduction(r);
            let on = vec![(self.column(r), self.column(l))];
            *join.right =
                below_aggregate(*join.right, &mut |input| semi_join(input, source.clone(), on.clone()));
        }
        join
    }

    fn column(&self, id: ColId) -> Expr {
        Expr::col(id, self.columns[id].ty)
    }

    fn note_reduction(&mut self, key: ColId) {
        let name = &self.columns[key].name;
        self.notes.push(format!("semi-join on {name} pushed below the aggregate that is joined on it"));
    }

    fn tree(&mut self, leaves: &[Rel], classes: &[BTreeSet<ColId>], owner: &BTreeMap<ColId, usize>) -> Tree {
        let rows: Vec<f64> = leaves.iter().map(|l| self.rows(l)).collect();
        let base: Vec<f64> = leaves.iter().map(|l| self.base_rows(l)).collect();
        let grow = |root: usize| {
            let mut parent: Vec<Option<usize>> = vec![None; leaves.len()];
            let mut done = BTreeSet::from([root]);
            let mut queue = VecDeque::from([root]);
            while let Some(node) = queue.pop_front() {
                for child in 0..leaves.len() {
                    if done.contains(&child) {
                        continue;
                    }
                    let keys = shared(classes, owner, &BTreeSet::from([node]), child);
                    if !keys.is_empty() && self.unique(&leaves[child], &keys).is_some() {
                        parent[child] = Some(node);
                        done.insert(child);
                        queue.push_back(child);
                    }
                }
            }
            (parent, done)
        };
        let candidates: Vec<usize> = (0..leaves.len()).collect();
        let reaches_all = |root: &usize| grow(*root).1.len() == leaves.len();
        let by = |v: &[f64], list: &[usize]| {
            list.iter().copied().max_by(|a, b| v[*a].total_cmp(&v[*b])).expect("a cluster has leaves")
        };
        let covering: Vec<usize> = candidates.iter().copied().filter(|r| reaches_all(r)).collect();
        let root = if covering.is_empty() { by(&rows, &candidates) } else { by(&base, &covering) };
        let (mut parent, mut done) = grow(root);
        // The rest hangs below the root, joined once everything else is, smallest first.
        let mut late: Vec<usize> = Vec::new();
        while done.len() < leaves.len() {
            let connected: Vec<usize> = (0..leaves.len())
                .filter(|c| !done.contains(c) && !shared(classes, owner, &done, *c).is_empty())
                .collect();
            let open: Vec<usize> = if connected.is_empty() {
                (0..leaves.len()).filter(|c| !done.contains(c)).collect()
            } else {
                connected
            };
            let next = open.into_iter().min_by(|a, b| rows[*a].total_cmp(&rows[*b])).expect("some are open");
            parent[next] = Some(root);
            late.push(next);
            done.insert(next);
        }
        Tree { root, parent, late }
    }

    /// The relation of `node` joined with its subtrees; also the leaves it covers.
    fn place(&mut self, node: usize, tree: &Tree, graph: &mut Graph) -> (Rel, BTreeSet<usize>) {
        enum Step {
            Child(Rel, BTreeSet<usize>),
            Semi(Join),
        }
        let own_columns = graph.leaves[node].outputs();
        let mut steps: Vec<(f64, Step)> = Vec::new();
        // Semi-joins that look at this leaf alone run in its own pipeline.
        let (mine, others): (Vec<Join>, Vec<Join>) =
            std::mem::take(&mut graph.semis).into_iter().partition(|s| {
                let right = s.right.outputs();
                let on = s.on.iter().flat_map(|(l, _)| l.columns());
                let filter = s.filter.iter().flat_map(|f| f.columns()).filter(|c| !right.contains(c));
                on.chain(filter).all(|c| own_columns.contains(&c))
            });
        graph.semis = others;
        for semi in mine {
            steps.push((self.semi_fraction(&semi), Step::Semi(semi)));
        }
        let children: Vec<usize> = (0..tree.parent.len()).filter(|c| tree.parent[*c] == Some(node)).collect();
        let (early, late): (Vec<usize>, Vec<usize>) =
            children.into_iter().partition(|c| !tree.late.contains(c));
        for child in early {
            self.reduce(child, graph);
            let (rel, covered) = self.place(child, tree, graph);
            let fraction = self.rows(&rel) / self.base_rows(&graph.leaves[child]).max(1.0);
            steps.push((fraction, Step::Child(rel, covered)));
        }
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        for child in tree.late.iter().filter(|c| late.contains(c)) {
            self.reduce(*child, graph);
            let (rel, covered) = self.place(*child, tree, graph);
            steps.push((2.0, Step::Child(rel, covered)));
        }
        let leaf = graph.leaves[node].clone();
        let mut rel = self.order(leaf);
        let mut covered = BTreeSet::from([node]);
        for (_, step) in steps {
            match step {
                Step::Semi(semi) => rel = self.semi(rel, semi),
                Step::Child(child, child_covers) => {
                    let on = graph.equalities(&covered, &child_covers);
                    covered.extend(child_covers);
                    rel = Rel::Join(Join {
                        kind: JoinKind::Inner,
                        left: Box::new(rel),
                        right: Box::new(child),
                        on: on
                            .into_iter()
                            .map(|(a, b)| {
                                let col = |id: ColId| Expr::col(id, self.columns[id].ty);
                                (col(a), col(b))
                            })
                            .collect(),
                        filter: vec![],
                        null_aware: false,
                    });
                    rel = rel.filtered(graph.ready(&covered));
                }
            }
        }
        (rel, covered)
    }

    /// Reduces a build side by a selective neighbour that it must agree with on a column: rows, or groups if it
    /// is an aggregate, that no row of the result can come from need not be built.
    fn reduce(&mut self, child: usize, graph: &mut Graph) {
        let leaf = graph.leaves[child].clone();
        let agg = innermost_aggregate(&leaf);
        let candidates: Vec<ColId> = match agg {
            Some(agg) => agg.keys.clone(),
            // A dense unique key costs less to build than to probe.
            None => {
                let classes = graph.classes.iter().flatten().copied();
                classes.filter(|c| graph.owner.get(c) == Some(&child)).collect()
            }
        };
        let mut best: Option<(f64, usize, ColId, ColId)> = None;
        for key in candidates {
            if agg.is_none() && self.unique(&leaf, &BTreeSet::from([key])).is_some() {
                return;
            }
            let Some(class) = graph.classes.iter().find(|c| c.contains(&key)) else { continue };
            for member in class {
                let Some(&other) = graph.owner.get(member) else { continue };
                let other_leaf = &graph.leaves[other];
                if other == child || innermost_aggregate(other_leaf).is_some() {
                    continue;
                }
                let fraction = self.rows(other_leaf) / self.base_rows(other_leaf).max(1.0);
                // A neighbour that is large itself is no cheap filter.
                let cheap = agg.is_some() || self.base_rows(other_leaf) < self.base_rows(&leaf);
                if fraction < 0.5 && cheap && best.is_none_or(|b| fraction < b.0) {
                    best = Some((fraction, other, key, *member));
                }
            }
        }
        let Some((_, reducer, key, member)) = best else { return };
        let right = graph.leaves[reducer].clone();
        let on = vec![(self.column(key), self.column(member))];
        if agg.is_some() {
            self.note_reduction(key);
            graph.leaves[child] =
                below_aggregate(leaf, &mut |input| semi_join(input, right.clone(), on.clone()));
        } else {
            let name = &self.columns[key].name;
            self.notes.push(format!("build side reduced by a semi-join on {name}"));
            graph.leaves[child] = semi_join(leaf, right, on);
        }
    }

    fn semi_fraction(&mut self, semi: &Join) -> f64 {
        let keys = self.rows(&semi.right);
        let distinct = semi.on.iter().map(|(l, _)| match l.kind {
            Kind::Col(id) => self.columns[id].distinct,
            _ => 1000.0,
        });
        let fraction = (keys / distinct.product::<f64>().max(1.0)).min(1.0);
        match semi.kind {
            JoinKind::Anti => (1.0 - fraction).max(0.3),
            _ if semi.filter.is_empty() => fraction,
            _ => fraction.max(0.5),
        }
    }

    /// Estimated rows.
    pub(crate) fn rows(&self, rel: &Rel) -> f64 {
        match rel {
            Rel::Scan { table, .. } => self.tables[*table].rows as f64,
            Rel::Once => 1.0,
            Rel::Map { input, .. } => self.rows(input),
            Rel::Filter { input, predicates } => {
                self.rows(input) * predicates.iter().map(|p| self.selectivity(p)).product::<f64>()
            }
            Rel::Aggregate(agg) => {
                if agg.keys.is_empty() {
                    return 1.0;
                }
                let groups: f64 = agg.keys.iter().map(|k| self.columns[*k].distinct).product();
                groups.min(self.rows(&agg.input))
            }
            Rel::Join(join) => {
                let (left, right) = (self.rows(&join.left), self.rows(&join.right));
                let distinct = |e: &Expr| match e.kind {
                    Kind::Col(id) => self.columns[id].distinct,
                    _ => 1000.0,
                };
                let keys: f64 =
                    join.on.iter().map(|(l, r)| distinct(l).max(distinct(r))).fold(1.0, |a: f64, b| a * b);
                let keys = keys.min(self.base_rows(&join.right).max(1.0));
                let filter: f64 = join.filter.iter().map(|p| self.selectivity(p)).product();
                match join.kind {
                    JoinKind::Inner => left * right / keys.max(1.0) * filter,
                    JoinKind::Left => left.max(left * right / keys.max(1.0)),
                    JoinKind::Full => left + right,
                    JoinKind::Semi => left * (right / keys.max(1.0)).min(1.0),
                    JoinKind::Anti => left * (1.0 - right / keys.max(1.0)).clamp(0.1, 1.0),
                    JoinKind::Mark(_) => left,
                }
            }
        }
    }

    /// Rows of the relation if nothing were filtered.
    pub(crate) fn base_rows(&self, rel: &Rel) -> f64 {
        match rel {
            Rel::Filter { input, .. } | Rel::Map { input, .. } => self.base_rows(input),
            Rel::Join(join) => self.base_rows(&join.left),
            Rel::Aggregate(agg) => {
                let groups: f64 = agg.keys.iter().map(|k| self.columns[*k].distinct).product();
                groups.min(self.base_rows(&agg.input))
            }
            _ => self.rows(rel),
        }
    }

    pub(crate) fn selectivity(&self, e: &Expr) -> f64 {
        match &e.kind {
            Kind::Bool(b) => f64::from(u8::from(*b)),
            Kind::And(list) => list.iter().map(|e| self.selectivity(e)).product(),
            Kind::Or(list) => list.iter().map(|e| self.selectivity(e)).sum::<f64>().min(1.0),
            Kind::Not(a) => (1.0 - self.selectivity(a)).max(0.01),
            Kind::Like(..) => 0.1,
            Kind::Cmp(op, a, b) => match (&a.kind, &b.kind) {
                (Kind::Col(id), Kind::Param(p)) => self.compare_selectivity(*op, *id, p),
                (Kind::Param(p), Kind::Col(id)) => self.compare_selectivity(flip(*op), *id, p),
                (Kind::Col(_), Kind::Col(_)) => match op {
                    Cmp::Eq => 0.1,
                    _ => 0.5,
                },
                _ if *op == Cmp::Eq => 0.1,
                _ => 0.3,
            },
            _ => 0.5,
        }
    }

    fn compare_selectivity(&self, op: Cmp, id: ColId, param: &str) -> f64 {
        let column = &self.columns[id];
        let fraction = match (column.range, self.values.get(param)) {
            (Some((min, max)), Some(ParamValue::Int(v))) if column.origin.is_some() => {
                ((v - min) as f64 / ((max - min) as f64).max(1.0)).clamp(0.0, 1.0)
            }
            // Aggregates against a constant: HAVING usually keeps little.
            _ if column.origin.is_none() => 0.9,
            _ => 0.5,
        };
        let s = match op {
            Cmp::Eq => 1.0 / column.distinct.max(1.0),
            Cmp::Ne => 1.0 - 1.0 / column.distinct.max(1.0),
            Cmp::Lt | Cmp::Le => fraction,
            Cmp::Gt | Cmp::Ge => 1.0 - fraction,
        };
        s.clamp(1e-6, 1.0)
    }

    /// Whether the columns identify a row of `rel`; if so, the assumptions that this rests on.
    pub(crate) fn unique(&self, rel: &Rel, keys: &BTreeSet<ColId>) -> Option<Vec<String>> {
        match rel {
            Rel::Once => Some(vec![]),
            Rel::Filter { input, .. } | Rel::Map { input, .. } => self.unique(input, keys),
            Rel::Aggregate(agg) => agg.keys.iter().all(|k| keys.contains(k)).then(Vec::new),
            Rel::Join(join) => match join.kind {
                JoinKind::Semi | JoinKind::Anti | JoinKind::Mark(_) => self.unique(&join.left, keys),
                JoinKind::Inner | JoinKind::Left => {
                    let right = join.on.iter().map(|(_, r)| r.as_column());
                    let right: BTreeSet<ColId> = right.collect::<Option<_>>()?;
                    let mut assumes = self.unique(&join.right, &right)?;
                    assumes.extend(self.unique(&join.left, keys)?);
                    Some(assumes)
                }
                JoinKind::Full => None,
            },
            Rel::Scan { table, columns } => {
                let info = &self.tables[*table];
                let mine: Vec<&(ColId, usize)> = columns.iter().filter(|(id, _)| keys.contains(id)).collect();
                let span = |id: ColId| {
                    let (min, max) = self.columns[id].range?;
                    (max - min).checked_add(1).filter(|_| self.columns[id].origin.is_some())
                };
                let allowed = |text: &String| !self.denied.contains(text);
                let name = |index: usize| info.schema.field(index).name().as_str();
                // No more rows than values: a key, unless the data says otherwise.
                let single = mine.iter().find_map(|(id, index)| {
                    let text = format!("unique({}.{})", info.name, name(*index));
                    let fits = span(*id)? >= info.rows.into() && integral(self.columns[*id].ty);
                    (fits && allowed(&text)).then_some(text)
                });
                if let Some(text) = single {
                    return Some(vec![text]);
                }
                if mine.len() < 2 {
                    return None;
                }
                let mut product: i128 = 1;
                for (id, _) in &mine {
                    product = product.checked_mul(span(*id)?)?;
                }
                let names: Vec<&str> = mine.iter().map(|(_, index)| name(*index)).collect();
                let text = format!("unique({}.{})", info.name, names.join(","));
                (product >= info.rows.into() && allowed(&text)).then(|| vec![text])
            }
        }
    }
}

fn integral(ty: SqlType) -> bool {
    matches!(ty, SqlType::Int8 | SqlType::Int16 | SqlType::Int32 | SqlType::Int64)
}

struct Tree {
    root: usize,
    parent: Vec<Option<usize>>,
    /// Leaves that hang below the root without a key edge, in the order in which they are joined.
    late: Vec<usize>,
}

struct Graph {
    leaves: Vec<Rel>,
    classes: Vec<BTreeSet<ColId>>,
    owner: BTreeMap<ColId, usize>,
    filters: Vec<Expr>,
    semis: Vec<Join>,
}

impl Graph {
    /// One equality for each class with members on both sides. Within a side, members are equal already.
    fn equalities(&self, left: &BTreeSet<usize>, right: &BTreeSet<usize>) -> Vec<(ColId, ColId)> {
        let member = |class: &BTreeSet<ColId>, side: &BTreeSet<usize>| {
            class.iter().copied().find(|c| self.owner.get(c).is_some_and(|leaf| side.contains(leaf)))
        };
        self.classes.iter().filter_map(|class| member(class, left).zip(member(class, right))).collect()
    }

    /// Takes the filters whose columns are all covered.
    fn ready(&mut self, covered: &BTreeSet<usize>) -> Vec<Expr> {
        let (ready, rest) = std::mem::take(&mut self.filters).into_iter().partition(|f| {
            f.columns().iter().all(|c| self.owner.get(c).is_none_or(|leaf| covered.contains(leaf)))
        });
        self.filters = rest;
        ready
    }
}

fn has_inner_join(rel: &Rel) -> bool {
    match rel {
        Rel::Join(join) => match join.kind {
            JoinKind::Inner => true,
            JoinKind::Semi | JoinKind::Anti => has_inner_join(&join.left),
            _ => false,
        },
        Rel::Filter { input, .. } | Rel::Map { input, .. } => has_inner_join(input),
        _ => false,
    }
}

fn innermost_aggregate(rel: &Rel) -> Option<&Aggregate> {
    match rel {
        Rel::Aggregate(agg) => Some(agg),
        Rel::Filter { input, .. } | Rel::Map { input, .. } => innermost_aggregate(input),
        _ => None,
    }
}

/// The part of `rel` that a column comes from: with its own filters and semi-joins, without the relations that
/// are joined to it.
fn provider(rel: &Rel, id: ColId) -> Option<&Rel> {
    match rel {
        Rel::Join(join) if matches!(join.kind, JoinKind::Inner | JoinKind::Left | JoinKind::Full) => {
            let side = if join.left.outputs().contains(&id) { &join.left } else { &join.right };
            provider(side, id)
        }
        Rel::Join(join) if has_inner_join(&join.left) => provider(&join.left, id),
        Rel::Filter { input, .. } | Rel::Map { input, .. } if has_inner_join(input) => provider(input, id),
        _ => rel.outputs().contains(&id).then_some(rel),
    }
}

fn semi_join(left: Rel, right: Rel, on: Vec<(Expr, Expr)>) -> Rel {
    let (left, right) = (Box::new(left), Box::new(right));
    Rel::Join(Join { kind: JoinKind::Semi, left, right, on, filter: vec![], null_aware: false })
}

fn below_aggregate(rel: Rel, wrap: &mut dyn FnMut(Rel) -> Rel) -> Rel {
    match rel {
        Rel::Aggregate(agg) => Rel::Aggregate(Aggregate { input: Box::new(wrap(*agg.input)), ..agg }),
        Rel::Filter { input, predicates } => below_aggregate(*input, wrap).filtered(predicates),
        Rel::Map { input, defs } => below_aggregate(*input, wrap).mapped(defs),
        other => other,
    }
}

/// Columns of `child` that are equal to some column of the leaves `with`.
fn shared(
    classes: &[BTreeSet<ColId>],
    owner: &BTreeMap<ColId, usize>,
    with: &BTreeSet<usize>,
    child: usize,
) -> BTreeSet<ColId> {
    let owned = |c: &ColId| owner.get(c).copied();
    let touching =
        classes.iter().filter(|class| class.iter().any(|c| owned(c).is_some_and(|l| with.contains(&l))));
    touching.flatten().copied().filter(|c| owned(c) == Some(child)).collect()
}

/// Equivalence classes of the pairs.
fn classes(pairs: &[(ColId, ColId)]) -> Vec<BTreeSet<ColId>> {
    let mut classes: Vec<BTreeSet<ColId>> = Vec::new();
    for (a, b) in pairs {
        let (touched, mut rest): (Vec<_>, Vec<_>) =
            classes.into_iter().partition(|c: &BTreeSet<ColId>| c.contains(a) || c.contains(b));
        let mut class: BTreeSet<ColId> = touched.into_iter().flatten().collect();
        class.extend([*a, *b]);
        rest.push(class);
        classes = rest;
    }
    classes
}

/// The column itself, also under a cast that keeps every integer's value.
fn widened(e: &Expr) -> Option<ColId> {
    match &e.kind {
        Kind::Col(id) => Some(*id),
        Kind::Cast(a) if integral(e.ty) && integral(a.ty) => widened(a),
        _ => None,
    }
}

fn inline(e: &Expr, maps: &[(ColId, Expr)]) -> Expr {
    e.substitute(&|id| maps.iter().find(|(def, _)| *def == id).map(|(_, e)| e.clone()))
}

fn flip(op: Cmp) -> Cmp {
    match op {
        Cmp::Lt => Cmp::Gt,
        Cmp::Le => Cmp::Ge,
        Cmp::Gt => Cmp::Lt,
        Cmp::Ge => Cmp::Le,
        other => other,
    }
}
