//! DataFusion's optimised logical plan to the planner's own algebra ([`crate::ir`]).
//!
//! Every column-free expression becomes a parameter here: named placeholders stay themselves, literals are
//! lifted, and constant expressions over placeholders become derived parameters. So no literal ever reaches
//! the source.

use std::collections::HashMap;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunction, InList};
use datafusion::logical_expr::{self as df, ExprSchemable, JoinType, LogicalPlan, Operator};
use datafusion::sql::unparser::expr_to_sql;
use dkb_kernels::{Param, SqlType};
use indexmap::IndexMap;

use crate::catalog::TableInfo;
use crate::ir::{
    Acc, AccFn, Aggregate, Arith, Cmp, ColId, ColumnDef, Columns, DatePart, Expr, Join, JoinKind, Kind, Rel,
    conjuncts,
};
use crate::{ParamDecl, ParamValue, PlanError, values};

/// The SQL type of an Arrow type, if the planner knows it.
pub(crate) fn sql_type(ty: &DataType) -> Option<SqlType> {
    Some(match ty {
        DataType::Boolean => SqlType::Bool,
        DataType::Int8 => SqlType::Int8,
        DataType::Int16 => SqlType::Int16,
        DataType::Int32 => SqlType::Int32,
        DataType::Int64 => SqlType::Int64,
        DataType::Float32 => SqlType::Float32,
        DataType::Float64 => SqlType::Float64,
        DataType::Date32 => SqlType::Date,
        DataType::Timestamp(TimeUnit::Microsecond, None) => SqlType::Timestamp,
        DataType::Decimal128(p, s) if *s >= 0 => SqlType::Decimal(*p, *s),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => SqlType::Utf8,
        _ => return None,
    })
}

fn known_type(ty: &DataType) -> Result<SqlType, PlanError> {
    sql_type(ty).ok_or_else(|| PlanError::Unsupported(format!("type {ty}")))
}

fn unsupported<T>(what: impl std::fmt::Display) -> Result<T, PlanError> {
    Err(PlanError::Unsupported(what.to_string()))
}

/// A lowered subplan: the relation, and the expression of each field of DataFusion's schema.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub(crate) rel: Rel,
    pub(crate) outputs: Vec<Expr>,
}

/// A sort key over a lowered subplan.
#[derive(Debug, Clone)]
pub(crate) struct OrderBy {
    pub(crate) expr: Expr,
    pub(crate) descending: bool,
    pub(crate) nulls_first: bool,
}

/// A whole query: what is computed, and what is left to do with its rows.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) rel: Rel,
    /// Name, expression and nullability of each result column.
    pub(crate) outputs: Vec<(String, Expr, bool)>,
    pub(crate) order_by: Vec<OrderBy>,
    pub(crate) offset: u64,
    pub(crate) limit: Option<u64>,
}

/// State of lowering one query.
pub(crate) struct Lowering<'a> {
    tables: &'a [TableInfo],
    /// Definitions of all column ids.
    pub(crate) columns: Columns,
    /// Parameters in the order of first use, declared ones first.
    pub(crate) params: IndexMap<String, Param>,
    lifted: HashMap<(SqlType, String), String>,
    /// Scalar subqueries met in an expression, to be joined below the operator that holds it.
    scalars: Vec<Rel>,
}

/// The DISTINCT aggregates of one aggregate: their common argument, its column, and what is computed of it.
#[derive(Default)]
struct Distinct {
    arg: Option<Expr>,
    id: Option<ColId>,
    accs: Vec<Acc>,
}

struct Scope<'a> {
    parts: Vec<(&'a DFSchema, &'a [Expr])>,
}

impl Scope<'_> {
    fn resolve(&self, column: &datafusion::common::Column) -> Option<Expr> {
        self.parts.iter().find_map(|(schema, outputs)| {
            let index = schema.maybe_index_of_column(column)?;
            Some(outputs[index].clone())
        })
    }

    fn schema(&self) -> DFSchema {
        let mut schema = self.parts[0].0.clone();
        for (other, _) in &self.parts[1..] {
            schema.merge(other);
        }
        schema
    }
}

impl<'a> Lowering<'a> {
    /// Starts with the declared parameters.
    pub(crate) fn new(tables: &'a [TableInfo], decls: &[ParamDecl]) -> Self {
        let declared = decls.iter().map(|d| {
            (d.name.clone(), Param { ty: d.ty, default: Some(d.default.clone()), value: None, digits: None })
        });
        Lowering {
            tables,
            columns: Vec::new(),
            params: declared.collect(),
            lifted: HashMap::new(),
            scalars: Vec::new(),
        }
    }

    fn define(&mut self, name: &str, ty: SqlType, distinct: f64) -> ColId {
        self.columns.push(ColumnDef { name: name.to_owned(), ty, range: None, distinct, origin: None });
        self.columns.len() - 1
    }

    /// Lowers a whole query.
    ///
    /// # Errors
    /// [`PlanError::Unsupported`] names the operator, function or type.
    pub(crate) fn query(&mut self, plan: &LogicalPlan) -> Result<Query, PlanError> {
        let names: Vec<(String, bool)> =
            plan.schema().fields().iter().map(|f| (f.name().clone(), f.is_nullable())).collect();
        let mut node = plan;
        let (mut offset, mut limit) = (0, None);
        // Projections above the sort only pick and compute columns of its rows: they are lowered afterwards.
        let mut projections = Vec::new();
        let mut order = None;
        loop {
            match node {
                LogicalPlan::Limit(l) if order.is_none() && limit.is_none() && offset == 0 => {
                    let constant = |e: &Option<Box<df::Expr>>| match e.as_deref() {
                        None => Ok(None),
                        Some(df::Expr::Literal(ScalarValue::Int64(n), _)) => Ok(n.map(|n| n.max(0) as u64)),
                        Some(other) => unsupported(format!("LIMIT {other}")),
                    };
                    offset = constant(&l.skip)?.unwrap_or(0);
                    limit = constant(&l.fetch)?;
                    node = &l.input;
                }
                LogicalPlan::Sort(s) if order.is_none() => {
                    order = Some(s);
                    if let Some(fetch) = s.fetch {
                        let fetch = (fetch as u64).saturating_sub(offset);
                        limit = Some(limit.map_or(fetch, |l: u64| l.min(fetch)));
                    }
                    node = &s.input;
                    break;
                }
                LogicalPlan::Projection(p) => {
                    projections.push(p);
                    node = &p.input;
                }
                LogicalPlan::SubqueryAlias(a) => node = &a.input,
                _ => break,
            }
        }
        if order.is_none() && limit.is_none() && offset == 0 {
            node = plan;
            projections.clear();
        } else if order.is_none() {
            // LIMIT without ORDER BY: everything below the limit is the query.
            node = match plan {
                LogicalPlan::Limit(l) => {
                    projections.clear();
                    &l.input
                }
                _ => return unsupported("LIMIT below a projection"),
            };
        }
        let Lowered { mut rel, mut outputs } = self.plan(node)?;
        let mut order_by = Vec::new();
        if let Some(sort) = order {
            let scope = Scope { parts: vec![(node.schema(), &outputs)] };
            for key in &sort.expr {
                let expr = self.expr(&key.expr, &scope)?;
                order_by.push(OrderBy { expr, descending: !key.asc, nulls_first: key.nulls_first });
            }
            rel = self.with_scalars(rel);
        }
        let mut schema = node.schema().clone();
        for p in projections.iter().rev() {
            // An alias between may have renamed the qualifiers; positions are the same.
            let scope = Scope { parts: vec![(p.input.schema(), &outputs)] };
            debug_assert_eq!(schema.fields().len(), p.input.schema().fields().len());
            (rel, outputs) = self.projection(rel, p, &scope)?;
            schema = p.schema.clone();
        }
        let outputs = names.into_iter().zip(outputs).map(|((n, nullable), e)| (n, e, nullable)).collect();
        Ok(Query { rel, outputs, order_by, offset, limit })
    }

    fn projection(
        &mut self,
        rel: Rel,
        p: &df::Projection,
        scope: &Scope<'_>,
    ) -> Result<(Rel, Vec<Expr>), PlanError> {
        let mut defs = Vec::new();
        let mut outputs = Vec::new();
        for (e, field) in p.expr.iter().zip(p.schema.fields()) {
            let lowered = self.expr(e, scope)?;
            outputs.push(self.named(lowered, field.name(), &mut defs));
        }
        Ok((self.with_scalars(rel).mapped(defs), outputs))
    }

    /// The expression itself if trivial, else a new column for it.
    fn named(&mut self, e: Expr, name: &str, defs: &mut Vec<(ColId, Expr)>) -> Expr {
        if matches!(e.kind, Kind::Col(_) | Kind::Param(_) | Kind::Null | Kind::Bool(_)) {
            return e;
        }
        let distinct = self.distinct(&e);
        let id = self.define(name, e.ty, distinct);
        let ty = e.ty;
        defs.push((id, e));
        Expr::col(id, ty)
    }

    /// Estimated distinct values of an expression.
    fn distinct(&self, e: &Expr) -> f64 {
        match &e.kind {
            Kind::Col(id) => self.columns[*id].distinct,
            Kind::Extract(DatePart::Year, a) => (self.distinct(a) / 365.0).max(1.0),
            Kind::Extract(DatePart::Month, _) => 12.0,
            Kind::Extract(DatePart::Day, _) => 31.0,
            Kind::Param(_) | Kind::Null | Kind::Bool(_) => 1.0,
            _ if e.ty == SqlType::Bool => 2.0,
            _ => e.children().into_iter().map(|c| self.distinct(c)).product(),
        }
    }

    fn plan(&mut self, plan: &LogicalPlan) -> Result<Lowered, PlanError> {
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::SubqueryAlias(alias) => self.plan(&alias.input),
            LogicalPlan::Projection(p) => {
                let input = self.plan(&p.input)?;
                let scope = Scope { parts: vec![(p.input.schema(), &input.outputs)] };
                let (rel, outputs) = self.projection(input.rel, p, &scope)?;
                Ok(Lowered { rel, outputs })
            }
            LogicalPlan::Filter(f) => {
                let input = self.plan(&f.input)?;
                let scope = Scope { parts: vec![(f.input.schema(), &input.outputs)] };
                let mut predicates = Vec::new();
                conjuncts(self.expr(&f.predicate, &scope)?, &mut predicates);
                let rel = self.with_scalars(input.rel).filtered(predicates);
                Ok(Lowered { rel, outputs: input.outputs })
            }
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Aggregate(agg) => self.aggregate(agg),
            // Order does not matter below the top, unless a limit cuts it.
            LogicalPlan::Sort(s) if s.fetch.is_none() => self.plan(&s.input),
            LogicalPlan::EmptyRelation(e) => {
                let outputs =
                    e.schema.fields().iter().map(|f| Ok(Expr::new(Kind::Null, known_type(f.data_type())?)));
                let outputs = outputs.collect::<Result<_, PlanError>>()?;
                let never = if e.produce_one_row { vec![] } else { vec![Expr::bool(Kind::Bool(false))] };
                Ok(Lowered { rel: Rel::Once.filtered(never), outputs })
            }
            other => unsupported(operator_name(other)),
        }
    }

    /// Joins the scalar subqueries that were met since the last call: one row each.
    fn with_scalars(&mut self, rel: Rel) -> Rel {
        std::mem::take(&mut self.scalars).into_iter().fold(rel, |rel, scalar| {
            let (left, right) = (Box::new(rel), Box::new(scalar));
            let kind = JoinKind::Inner;
            Rel::Join(Join { kind, left, right, on: vec![], filter: vec![], null_aware: false })
        })
    }

    /// A subquery that yields one row: an aggregate without groups.
    fn scalar_subquery(&mut self, subquery: &df::Subquery) -> Result<Expr, PlanError> {
        if !subquery.outer_ref_columns.is_empty() {
            return unsupported("this correlated scalar subquery");
        }
        let outer = std::mem::take(&mut self.scalars);
        let lowered = self.plan(&subquery.subquery)?;
        self.scalars = outer;
        fn one_row(rel: &Rel) -> bool {
            match rel {
                Rel::Map { input, .. } => one_row(input),
                Rel::Aggregate(agg) => agg.keys.is_empty(),
                Rel::Join(join) => {
                    join.kind == JoinKind::Inner
                        && join.on.is_empty()
                        && join.filter.is_empty()
                        && one_row(&join.left)
                        && one_row(&join.right)
                }
                Rel::Once => true,
                _ => false,
            }
        }
        if !one_row(&lowered.rel) {
            return unsupported("a scalar subquery that is no aggregate");
        }
        self.scalars.push(lowered.rel);
        let value = lowered.outputs.into_iter().next();
        value.ok_or_else(|| PlanError::Query("a scalar subquery without columns".to_owned()))
    }

    fn scan(&mut self, scan: &df::TableScan) -> Result<Lowered, PlanError> {
        let name = scan.table_name.table();
        let tables = self.tables;
        let table = tables.iter().position(|t| t.name == name);
        let table = table.ok_or_else(|| PlanError::Query(format!("no table `{name}`")))?;
        if scan.fetch.is_some() {
            return unsupported("LIMIT below the top of the query");
        }
        let info = &tables[table];
        let mut columns = Vec::new();
        let mut outputs = Vec::new();
        for field in scan.projected_schema.fields() {
            let index = info.schema.index_of(field.name()).map_err(|e| PlanError::Query(e.to_string()))?;
            let ty = known_type(field.data_type())?;
            let stats = &info.columns[index];
            let range = match (ty, stats.min, stats.max) {
                (SqlType::Float32 | SqlType::Float64 | SqlType::Utf8, ..) => None,
                (SqlType::Bool, ..) => Some((0, 1)),
                (_, Some(min), Some(max)) => Some((min, max)),
                _ => type_range(ty),
            };
            let rows = info.rows as f64;
            let distinct = match (range, stats.dict_entries) {
                (_, Some(n)) => n as f64,
                (Some((min, max)), _) => (max.saturating_sub(min) as f64 + 1.0).min(rows),
                _ => rows,
            };
            let id = self.define(field.name(), ty, distinct.max(1.0));
            self.columns[id].range = range;
            self.columns[id].origin = Some((table, index));
            columns.push((id, index));
            outputs.push(Expr::col(id, ty));
        }
        let scope = Scope { parts: vec![(&scan.projected_schema, &outputs)] };
        let mut predicates = Vec::new();

        for filter in &scan.filters {
            conjuncts(self.expr(filter, &scope)?, &mut predicates);
        }
        let rel = self.with_scalars(Rel::Scan { table, columns }).filtered(predicates);
        Ok(Lowered { rel, outputs })
    }

    fn join(&mut self, join: &df::Join) -> Result<Lowered, PlanError> {
        if join.null_equality == datafusion::common::NullEquality::NullEqualsNull {
            return unsupported("joins on IS NOT DISTINCT FROM");
        }
        let mut left = self.plan(&join.left)?;
        let mut right = self.plan(&join.right)?;
        // A constant of the side that NULLs are supplied for must become NULL too.
        if matches!(join.join_type, JoinType::Left | JoinType::Full) {
            right = self.columns_only(right);
        }
        if matches!(join.join_type, JoinType::Right | JoinType::Full) {
            left = self.columns_only(left);
        }
        let left_scope = Scope { parts: vec![(join.left.schema(), &left.outputs)] };
        let right_scope = Scope { parts: vec![(join.right.schema(), &right.outputs)] };
        let both =
            Scope { parts: vec![(join.left.schema(), &left.outputs), (join.right.schema(), &right.outputs)] };
        let mut on = Vec::new();
        for (l, r) in &join.on {
            on.push((self.expr(l, &left_scope)?, self.expr(r, &right_scope)?));
        }
        let mut filter = Vec::new();
        if let Some(f) = &join.filter {
            conjuncts(self.expr(f, &both)?, &mut filter);
        }
        left.rel = self.with_scalars(left.rel);
        use JoinType::*;
        let mark = match join.join_type {
            LeftMark | RightMark => Some(self.define("mark", SqlType::Bool, 2.0)),
            _ => None,
        };
        let outputs = match join.join_type {
            Inner | Left | Right | Full => left.outputs.iter().chain(&right.outputs).cloned().collect(),
            LeftSemi | LeftAnti => left.outputs.clone(),
            RightSemi | RightAnti => right.outputs.clone(),
            LeftMark => with_mark(&left.outputs, mark),
            RightMark => with_mark(&right.outputs, mark),
        };
        let kind = match join.join_type {
            Inner => JoinKind::Inner,
            Left | Right => JoinKind::Left,
            Full => JoinKind::Full,
            LeftSemi | RightSemi => JoinKind::Semi,
            LeftAnti | RightAnti => JoinKind::Anti,
            LeftMark | RightMark => JoinKind::Mark(mark.expect("defined for mark joins")),
        };
        let swap = matches!(join.join_type, Right | RightSemi | RightAnti | RightMark);
        let (probe, build) = if swap { (right.rel, left.rel) } else { (left.rel, right.rel) };
        if swap {
            on = on.into_iter().map(|(l, r)| (r, l)).collect();
        }
        let null_aware = join.null_aware;
        let rel =
            Rel::Join(Join { kind, left: Box::new(probe), right: Box::new(build), on, filter, null_aware });
        Ok(Lowered { rel, outputs })
    }

    fn columns_only(&mut self, side: Lowered) -> Lowered {
        let mut defs = Vec::new();
        let mut outputs = Vec::new();
        for e in side.outputs {
            if matches!(e.kind, Kind::Col(_)) {
                outputs.push(e);
            } else {
                let id = self.define("constant", e.ty, 1.0);
                outputs.push(Expr::col(id, e.ty));
                defs.push((id, e));
            }
        }
        Lowered { rel: side.rel.mapped(defs), outputs }
    }

    fn aggregate(&mut self, agg: &df::Aggregate) -> Result<Lowered, PlanError> {
        let input = self.plan(&agg.input)?;
        let schema = agg.input.schema();
        let scope = Scope { parts: vec![(schema, &input.outputs)] };
        let mut defs = Vec::new();
        let mut keys = Vec::new();
        let mut outputs = Vec::new();
        for (e, field) in agg.group_expr.iter().zip(agg.schema.fields()) {
            if matches!(e, df::Expr::GroupingSet(_)) {
                return unsupported("GROUPING SETS, ROLLUP and CUBE");
            }
            let lowered = self.expr(e, &scope)?;
            let key = self.named(lowered, field.name(), &mut defs);
            if let Kind::Col(id) = key.kind
                && !keys.contains(&id)
            {
                keys.push(id);
            }
            outputs.push(key);
        }
        // GROUP BY constants alone still means no row over no input: keep one constant as a real key.
        if keys.is_empty() && !outputs.is_empty() {
            let first: Expr = outputs[0].clone();
            let id = self.define("constant", first.ty, 1.0);
            outputs[0] = Expr::col(id, first.ty);
            defs.push((id, first));
            keys.push(id);
        }
        let grouped = !keys.is_empty();
        let mut accs: Vec<Acc> = Vec::new();
        let mut distinct = Distinct::default();
        for (e, field) in agg.aggr_expr.iter().zip(agg.schema.fields().iter().skip(agg.group_expr.len())) {
            let df::Expr::AggregateFunction(call) = strip_alias(e) else {
                return unsupported(format!("aggregate {e}"));
            };
            let ty = known_type(field.data_type())?;
            let distinct_call = call.params.distinct && !matches!(call.func.name(), "min" | "max");
            if !distinct_call {
                outputs.push(self.aggregate_call(
                    call,
                    ty,
                    field.name(),
                    grouped,
                    schema,
                    &scope,
                    &mut accs,
                )?);
                continue;
            }
            let [arg] = call.params.args.as_slice() else {
                return unsupported("DISTINCT over several arguments");
            };
            if call.params.filter.is_some() {
                return unsupported("DISTINCT with FILTER");
            }
            // The distinct value becomes a group key below; over its groups the call is an ordinary one.
            let value = self.expr(arg, &scope)?;
            let known = distinct.arg.get_or_insert_with(|| value.clone());
            if *known != value {
                return unsupported("DISTINCT over different arguments");
            }
            let id = match (distinct.id, &value.kind) {
                (Some(id), _) => id,
                (None, Kind::Col(id)) => *id,
                (None, _) => {
                    let id = self.define("distinct", value.ty, 1000.0);
                    defs.push((id, value.clone()));
                    id
                }
            };
            distinct.id = Some(id);
            let column = Expr::col(id, value.ty);
            let nullable = arg.nullable(schema).unwrap_or(true);
            outputs.push(self.call(
                call.func.name(),
                column,
                nullable,
                ty,
                field.name(),
                grouped,
                &mut distinct.accs,
            )?);
        }
        let input = Box::new(self.with_scalars(input.rel).mapped(defs));
        let rel = match distinct.id {
            None => Rel::Aggregate(Aggregate { input, keys, accs }),
            Some(id) => self.two_levels(input, keys, accs, id, distinct.accs),
        };
        Ok(Lowered { rel, outputs })
    }

    /// Aggregates next to DISTINCT ones: first by the keys and the distinct value, then by the keys alone.
    fn two_levels(
        &mut self,
        input: Box<Rel>,
        keys: Vec<ColId>,
        accs: Vec<Acc>,
        distinct: ColId,
        mut outer: Vec<Acc>,
    ) -> Rel {
        let mut inner = Vec::new();
        for acc in accs {
            let def = self.columns[acc.id].clone();
            let partial = self.define(&def.name, def.ty, def.distinct);
            inner.push(Acc { id: partial, ..acc.clone() });
            let func = acc.func.of_partials();
            outer.push(Acc { id: acc.id, func, arg: Some(Expr::col(partial, def.ty)) });
        }
        let mut below = keys.clone();
        if !below.contains(&distinct) {
            below.push(distinct);
        }
        let first = Rel::Aggregate(Aggregate { input, keys: below, accs: inner });
        Rel::Aggregate(Aggregate { input: Box::new(first), keys, accs: outer })
    }

    #[expect(clippy::too_many_arguments, reason = "one call site; the pieces belong to different owners")]
    fn aggregate_call(
        &mut self,
        call: &AggregateFunction,
        ty: SqlType,
        name: &str,
        grouped: bool,
        schema: &DFSchema,
        scope: &Scope<'_>,
        accs: &mut Vec<Acc>,
    ) -> Result<Expr, PlanError> {
        let function = call.func.name();
        let p = &call.params;
        if !p.order_by.is_empty() || p.args.len() != 1 {
            return unsupported(format!("aggregate {function} with ORDER BY or several arguments"));
        }
        let constant = matches!(&p.args[0], df::Expr::Literal(v, _) if !v.is_null());
        let filter = p.filter.as_deref().map(|f| self.expr(f, scope)).transpose()?;
        if function == "count" && constant && filter.is_none() {
            let id = self.accumulate(AccFn::Count, None, SqlType::Int64, name, accs);
            return Ok(Expr::col(id, SqlType::Int64));
        }
        let mut arg = self.expr(&p.args[0], scope)?;
        let mut nullable = p.args[0].nullable(schema).unwrap_or(true);
        if let Some(f) = filter {
            let ty = arg.ty;
            arg = Expr::new(Kind::Case(vec![(f, arg)], None), ty);
            nullable = true;
        }
        self.call(function, arg, nullable, ty, name, grouped, accs)
    }

    /// The result of an aggregate function over a lowered argument.
    #[expect(clippy::too_many_arguments, reason = "the call's parts")]
    fn call(
        &mut self,
        function: &str,
        arg: Expr,
        nullable: bool,
        ty: SqlType,
        name: &str,
        grouped: bool,
        accs: &mut Vec<Acc>,
    ) -> Result<Expr, PlanError> {
        let count = |this: &mut Self, accs: &mut Vec<Acc>| {
            let arg = nullable.then(|| arg.clone());
            let id = this.accumulate(AccFn::Count, arg, SqlType::Int64, "count", accs);
            Expr::col(id, SqlType::Int64)
        };
        let over_nothing = |value: Expr, count: Expr| {
            let ty = value.ty;
            Expr::new(Kind::NullIfZero(Box::new(value), Box::new(count)), ty)
        };
        match function {
            "count" => Ok(count(self, accs)),
            "sum" | "min" | "max" => {
                let func = match function {
                    "sum" => AccFn::Sum,
                    "min" => AccFn::Min,
                    _ => AccFn::Max,
                };
                let id = self.accumulate(func, Some(arg.clone()), ty, name, accs);
                let value = Expr::col(id, ty);
                if grouped && !nullable {
                    return Ok(value);
                }
                let n = count(self, accs);
                Ok(over_nothing(value, n))
            }
            "avg" => {
                let sum_type = match arg.ty {
                    SqlType::Decimal(_, s) => SqlType::Decimal(38, s),
                    _ => SqlType::Float64,
                };
                let id = self.accumulate(AccFn::Sum, Some(arg.clone()), sum_type, "sum", accs);
                let n = count(self, accs);
                let (sum, by) = (Box::new(Expr::col(id, sum_type)), Box::new(n.clone()));
                let quotient = Expr::new(Kind::Arith(Arith::Div, sum, by), ty);
                Ok(over_nothing(quotient, n))
            }
            other => unsupported(format!("aggregate function {other}")),
        }
    }

    fn accumulate(
        &mut self,
        func: AccFn,
        arg: Option<Expr>,
        ty: SqlType,
        name: &str,
        accs: &mut Vec<Acc>,
    ) -> ColId {
        // Sums of decimals are the same number whatever their precision.
        let kind = |ty: SqlType| match ty {
            SqlType::Decimal(_, s) => SqlType::Decimal(38, s),
            other => other,
        };
        let same =
            accs.iter().find(|a| a.func == func && a.arg == arg && kind(self.columns[a.id].ty) == kind(ty));
        if let Some(acc) = same {
            return acc.id;
        }
        let readable = name.split(['(', ' ', '.']).next().unwrap_or("acc");
        let id = self.define(readable, ty, 1000.0);
        accs.push(Acc { id, func, arg });
        id
    }

    fn expr(&mut self, e: &df::Expr, scope: &Scope<'_>) -> Result<Expr, PlanError> {
        if is_constant(e) {
            return self.constant(e, scope);
        }
        let go = |this: &mut Self, e: &df::Expr| this.expr(e, scope).map(Box::new);
        match e {
            df::Expr::Alias(a) => self.expr(&a.expr, scope),
            df::Expr::Column(c) => {
                scope.resolve(c).ok_or_else(|| PlanError::Query(format!("no column `{c}`")))
            }
            df::Expr::BinaryExpr(b) => self.binary(e, b, scope),
            df::Expr::Not(a) => Ok(Expr::bool(Kind::Not(go(self, a)?))),
            df::Expr::IsNull(a) | df::Expr::IsUnknown(a) => Ok(Expr::bool(Kind::IsNull(go(self, a)?))),
            df::Expr::IsNotNull(a) | df::Expr::IsNotUnknown(a) => {
                Ok(not(Expr::bool(Kind::IsNull(go(self, a)?))))
            }
            df::Expr::IsTrue(a) => Ok(is_true(self.expr(a, scope)?)),
            df::Expr::IsNotTrue(a) => Ok(not(is_true(self.expr(a, scope)?))),
            df::Expr::IsFalse(a) => Ok(is_true(not(self.expr(a, scope)?))),
            df::Expr::IsNotFalse(a) => Ok(not(is_true(not(self.expr(a, scope)?)))),
            df::Expr::Negative(a) => {
                let a = self.expr(a, scope)?;
                let (ty, zero) = (a.ty, self.lift(&ParamValue::Int(0), a.ty));
                Ok(Expr::new(Kind::Arith(Arith::Sub, Box::new(zero), Box::new(a)), ty))
            }
            df::Expr::Between(b) => {
                let (x, low, high) = (go(self, &b.expr)?, go(self, &b.low)?, go(self, &b.high)?);
                let both = Expr::bool(Kind::And(vec![
                    Expr::bool(Kind::Cmp(Cmp::Ge, x.clone(), low)),
                    Expr::bool(Kind::Cmp(Cmp::Le, x, high)),
                ]));
                Ok(if b.negated { not(both) } else { both })
            }
            df::Expr::InList(InList { expr, list, negated }) => {
                let x = self.expr(expr, scope)?;
                let mut any = Vec::new();
                for item in list {
                    any.push(Expr::eq(x.clone(), self.expr(item, scope)?));
                }
                let any = Expr::bool(Kind::Or(any));
                Ok(if *negated { not(any) } else { any })
            }
            df::Expr::Like(l) if !l.case_insensitive && matches!(l.escape_char, None | Some('\\')) => {
                let like = Expr::bool(Kind::Like(go(self, &l.expr)?, go(self, &l.pattern)?));
                Ok(if l.negated { not(like) } else { like })
            }
            df::Expr::Case(c) => {
                let ty = known_type(&e.get_type(&scope.schema()).map_err(query_error)?)?;
                let base = c.expr.as_deref().map(|b| self.expr(b, scope)).transpose()?;
                let mut arms = Vec::new();
                for (when, then) in &c.when_then_expr {
                    let when = self.expr(when, scope)?;
                    let condition = match &base {
                        Some(b) => Expr::eq(b.clone(), when),
                        None => when,
                    };
                    arms.push((condition, self.expr(then, scope)?));
                }
                let other = c.else_expr.as_deref().map(|o| go(self, o)).transpose()?;
                Ok(Expr::new(Kind::Case(arms, other), ty))
            }
            df::Expr::Cast(c) => {
                let ty = known_type(c.field.data_type())?;
                let a = self.expr(&c.expr, scope)?;
                if a.ty == ty { Ok(a) } else { Ok(Expr::new(Kind::Cast(Box::new(a)), ty)) }
            }
            df::Expr::ScalarFunction(f) => self.function(f, scope),
            df::Expr::ScalarSubquery(s) => self.scalar_subquery(s),
            other => unsupported(format!("expression {other}")),
        }
    }

    fn binary(&mut self, e: &df::Expr, b: &df::BinaryExpr, scope: &Scope<'_>) -> Result<Expr, PlanError> {
        if let (Operator::Plus | Operator::Minus, df::Expr::Literal(interval, _)) = (b.op, &*b.right)
            && let Some((months, days)) = months_and_days(interval)
        {
            let date = self.expr(&b.left, scope)?;
            if date.ty != SqlType::Date {
                return unsupported(format!("intervals added to {}", date.ty));
            }
            let sign = if b.op == Operator::Minus { -1 } else { 1 };
            let mut count =
                |n: i32| Box::new(self.lift(&ParamValue::Int(i128::from(n) * sign), SqlType::Int32));
            let (months, days) = (count(months), count(days));
            return Ok(Expr::new(Kind::AddInterval(Box::new(date), months, days), SqlType::Date));
        }
        let left = Box::new(self.expr(&b.left, scope)?);
        let right = Box::new(self.expr(&b.right, scope)?);
        let cmp = |op| Ok(Expr::bool(Kind::Cmp(op, left.clone(), right.clone())));
        let arith = match b.op {
            Operator::And => {
                let mut list = Vec::new();
                conjuncts(*left, &mut list);
                conjuncts(*right, &mut list);
                return Ok(Expr::bool(Kind::And(list)));
            }
            Operator::Or => return Ok(Expr::bool(Kind::Or(vec![*left, *right]))),
            Operator::Eq => return cmp(Cmp::Eq),
            Operator::NotEq => return cmp(Cmp::Ne),
            Operator::Lt => return cmp(Cmp::Lt),
            Operator::LtEq => return cmp(Cmp::Le),
            Operator::Gt => return cmp(Cmp::Gt),
            Operator::GtEq => return cmp(Cmp::Ge),
            Operator::Plus => Arith::Add,
            Operator::Minus => Arith::Sub,
            Operator::Multiply => Arith::Mul,
            Operator::Divide => Arith::Div,
            Operator::Modulo => Arith::Mod,
            op => return unsupported(format!("operator {op}")),
        };
        let ty = known_type(&e.get_type(&scope.schema()).map_err(query_error)?)?;
        Ok(Expr::new(Kind::Arith(arith, left, right), ty))
    }

    fn function(&mut self, f: &df::expr::ScalarFunction, scope: &Scope<'_>) -> Result<Expr, PlanError> {
        match (f.func.name(), f.args.as_slice()) {
            ("date_part", [part, date]) => {
                let df::Expr::Literal(part, _) = part else { return unsupported("date_part of a column") };
                let part = match part.to_string().to_lowercase().as_str() {
                    "year" => DatePart::Year,
                    "month" => DatePart::Month,
                    "day" => DatePart::Day,
                    other => return unsupported(format!("extract({other})")),
                };
                let date = self.expr(date, scope)?;
                if date.ty != SqlType::Date {
                    return unsupported(format!("extract from {}", date.ty));
                }
                Ok(Expr::new(Kind::Extract(part, Box::new(date)), SqlType::Int32))
            }
            ("substr" | "substring", [text, from, rest @ ..]) if rest.len() <= 1 => {
                let text = Box::new(self.expr(text, scope)?);
                let from = Box::new(self.expr(from, scope)?);
                let count = rest.first().map(|c| self.expr(c, scope).map(Box::new)).transpose()?;
                Ok(Expr::new(Kind::Substring(text, from, count), SqlType::Utf8))
            }
            ("coalesce", args) => {
                let mut lowered = Vec::new();
                for a in args {
                    lowered.push(self.expr(a, scope)?);
                }
                let last = lowered.pop().ok_or_else(|| PlanError::Query("coalesce()".to_owned()))?;
                let ty = last.ty;
                let arms =
                    lowered.into_iter().map(|a| (not(Expr::bool(Kind::IsNull(Box::new(a.clone())))), a));
                Ok(Expr::new(Kind::Case(arms.collect(), Some(Box::new(last))), ty))
            }
            (name, _) => unsupported(format!("function {name}")),
        }
    }

    /// A column-free expression as a parameter.
    fn constant(&mut self, e: &df::Expr, scope: &Scope<'_>) -> Result<Expr, PlanError> {
        let ty = e.get_type(&scope.schema()).map_err(query_error)?;
        match e {
            df::Expr::Alias(a) => return self.constant(&a.expr, scope),
            df::Expr::Literal(ScalarValue::Null, _) => return Ok(Expr::new(Kind::Null, SqlType::Bool)),
            df::Expr::Literal(v, _) if v.is_null() => return Ok(Expr::new(Kind::Null, known_type(&ty)?)),
            df::Expr::Literal(ScalarValue::Boolean(Some(b)), _) => return Ok(Expr::bool(Kind::Bool(*b))),
            df::Expr::Literal(v, _) => {
                let ty = known_type(&ty)?;
                let value = scalar(v).ok_or_else(|| PlanError::Unsupported(format!("literal {v}")))?;
                return Ok(self.lift(&value, ty));
            }
            _ => {}
        }
        let ty = known_type(&ty)?;
        if let Some(name) = declared_placeholder(e)
            && self.params.get(name).is_some_and(|p| p.ty == ty)
        {
            return Ok(Expr::new(Kind::Param(name.to_owned()), ty));
        }
        let text = expr_to_sql(e).map_err(query_error)?.to_string().replace('$', ":");
        let same = self.params.iter().find(|(_, p)| p.value.as_deref() == Some(&text) && p.ty == ty);
        if let Some((name, _)) = same {
            return Ok(Expr::new(Kind::Param(name.clone()), ty));
        }
        let name = self.fresh_param("d");
        self.params.insert(name.clone(), Param { ty, default: None, value: Some(text), digits: None });
        Ok(Expr::new(Kind::Param(name), ty))
    }

    fn fresh_param(&self, prefix: &str) -> String {
        let free = (1..).map(|n| format!("{prefix}{n}")).find(|name| !self.params.contains_key(name));
        free.expect("there are more names than parameters")
    }

    /// Lifts a literal: equal literals of one type share a parameter.
    fn lift(&mut self, value: &ParamValue, ty: SqlType) -> Expr {
        let text = values::print(value, ty);
        let key = (ty, text.clone());
        if let Some(name) = self.lifted.get(&key) {
            return Expr::new(Kind::Param(name.clone()), ty);
        }
        // Arithmetic may rely on the number of digits.
        let digits = match value {
            ParamValue::Int(v) if !matches!(ty, SqlType::Date | SqlType::Timestamp) => {
                let digits = v.unsigned_abs().checked_ilog10().map_or(1, |d| d + 1);
                Some(digits as u8)
            }
            _ => None,
        };
        let name = self.fresh_param("p");
        self.params.insert(name.clone(), Param { ty, default: Some(text), value: None, digits });
        self.lifted.insert(key, name.clone());
        Expr::new(Kind::Param(name), ty)
    }
}

/// The range of an integer-like type.
pub(crate) fn type_range(ty: SqlType) -> Option<(i128, i128)> {
    let ten = |p: u8| 10i128.checked_pow(p.into()).map(|n| (1 - n, n - 1));
    match ty {
        SqlType::Bool => Some((0, 1)),
        SqlType::Int8 => Some((i8::MIN.into(), i8::MAX.into())),
        SqlType::Int16 => Some((i16::MIN.into(), i16::MAX.into())),
        SqlType::Int32 | SqlType::Date => Some((i32::MIN.into(), i32::MAX.into())),
        SqlType::Int64 | SqlType::Timestamp => Some((i64::MIN.into(), i64::MAX.into())),
        SqlType::Decimal(p, _) => ten(p),
        SqlType::Float32 | SqlType::Float64 | SqlType::Utf8 => None,
    }
}

fn query_error(e: datafusion::error::DataFusionError) -> PlanError {
    PlanError::Query(crate::sql::error_text(&e))
}

fn not(e: Expr) -> Expr {
    match e.kind {
        Kind::Not(inner) => *inner,
        _ => Expr::bool(Kind::Not(Box::new(e))),
    }
}

/// `e` with NULL as false.
fn is_true(e: Expr) -> Expr {
    let is_null = Expr::bool(Kind::IsNull(Box::new(e.clone())));
    Expr::bool(Kind::And(vec![not(is_null), e]))
}

fn with_mark(outputs: &[Expr], mark: Option<ColId>) -> Vec<Expr> {
    let mark = mark.map(|id| Expr::col(id, SqlType::Bool));
    outputs.iter().cloned().chain(mark).collect()
}

fn strip_alias(e: &df::Expr) -> &df::Expr {
    match e {
        df::Expr::Alias(a) => strip_alias(&a.expr),
        _ => e,
    }
}

fn is_constant(e: &df::Expr) -> bool {
    let mut constant = true;
    e.apply(|e| {
        let leaf = matches!(
            e,
            df::Expr::Column(_)
                | df::Expr::AggregateFunction(_)
                | df::Expr::ScalarSubquery(_)
                | df::Expr::OuterReferenceColumn(..)
                | df::Expr::Exists(_)
                | df::Expr::InSubquery(_)
        );
        constant &= !leaf;
        Ok(if leaf { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })
    .expect("the visitor never fails");
    constant
}

/// The name of a placeholder, possibly under casts.
fn declared_placeholder(e: &df::Expr) -> Option<&str> {
    match e {
        df::Expr::Placeholder(p) => p.id.strip_prefix(['$', ':']),
        df::Expr::Cast(c) => declared_placeholder(&c.expr),
        _ => None,
    }
}

/// An interval literal of whole days.
fn months_and_days(v: &ScalarValue) -> Option<(i32, i32)> {
    match v {
        ScalarValue::IntervalMonthDayNano(Some(i)) if i.nanoseconds == 0 => Some((i.months, i.days)),
        ScalarValue::IntervalYearMonth(Some(months)) => Some((*months, 0)),
        ScalarValue::IntervalDayTime(Some(i)) if i.milliseconds == 0 => Some((0, i.days)),
        _ => None,
    }
}

/// The value of a non-null literal.
pub(crate) fn scalar(v: &ScalarValue) -> Option<ParamValue> {
    use ScalarValue::*;
    Some(match v {
        Boolean(Some(b)) => ParamValue::Int((*b).into()),
        Int8(Some(n)) => ParamValue::Int((*n).into()),
        Int16(Some(n)) => ParamValue::Int((*n).into()),
        Int32(Some(n)) | Date32(Some(n)) => ParamValue::Int((*n).into()),
        Int64(Some(n)) | TimestampMicrosecond(Some(n), None) => ParamValue::Int((*n).into()),
        Decimal128(Some(n), _, _) => ParamValue::Int(*n),
        Float32(Some(f)) => ParamValue::Float((*f).into()),
        Float64(Some(f)) => ParamValue::Float(*f),
        Utf8(Some(s)) | LargeUtf8(Some(s)) | Utf8View(Some(s)) => ParamValue::Text(s.clone()),
        _ => return None,
    })
}

fn operator_name(plan: &LogicalPlan) -> String {
    let text = plan.display().to_string();
    match plan {
        LogicalPlan::Union(_) => "UNION".to_owned(),
        LogicalPlan::Window(_) => "window functions".to_owned(),
        LogicalPlan::Limit(_) | LogicalPlan::Sort(_) => "LIMIT below the top of the query".to_owned(),
        _ => text.split([':', ' ']).next().unwrap_or("operator").to_owned(),
    }
}
