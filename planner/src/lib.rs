//! SQL to kernel plans.
//!
//! SQL goes through DataFusion's optimised logical plan to fused pipelines and from there to a generated
//! [`dkb_kernels::Plan`]. Nothing here touches a device or a file.

mod aggregate;
mod bind;
pub mod catalog;
mod codegen;
mod derive;
mod divide;
mod emit;
mod ir;
mod join;
mod keys;
mod lower;
mod order;
mod pipe;
mod prune;
mod sql;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use datafusion::logical_expr::LogicalPlan;
use dkb_kernels::{Finish, Framework, Level, Param, Plan, SortKey, SqlType, check_name};
use indexmap::IndexMap;

use crate::catalog::TableInfo;
use crate::emit::{Emitter, Fault};
use crate::ir::{Columns, Expr, Rel};
use crate::lower::{Lowering, Query};
use crate::order::Order;

pub use crate::sql::{error_text, statements_plan};

/// Arrays of so many bytes cost more to clear and to exchange than the steps that make smaller ones do.
const LARGE_BYTES: f64 = (2u64 << 30) as f64;

/// A declared query parameter, `:name` in SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamDecl {
    /// Name without the colon.
    pub name: String,
    /// SQL type.
    pub ty: SqlType,
    /// Default value, as literal text without quotes.
    pub default: String,
}

/// A bound parameter value.
#[derive(Debug, Clone, PartialEq)]
pub enum ParamValue {
    /// bool, integers, dates (days), timestamps (microseconds), scaled decimals.
    Int(i128),
    /// float32 and float64.
    Float(f64),
    /// utf8.
    Text(String),
}

/// What the planner may and may not do.
#[derive(Debug, Clone, Default)]
pub struct PlanOptions {
    /// Assumptions (texts of [`Plan::assumes`]) that a run found violated.
    pub denied: Vec<String>,
    /// Bytes that one device may use, if they are limited: state that is large beside them is kept small.
    pub memory_bytes: Option<u64>,
}

impl PlanOptions {
    /// Bytes from which on arrays indexed by a key are large, so that smaller ones are worth further steps.
    fn large_bytes(&self) -> f64 {
        self.memory_bytes.map_or(LARGE_BYTES, |memory| LARGE_BYTES.min(memory as f64 / 64.0))
    }
}

/// A plan and why it looks as it does.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The generated plan.
    pub plan: Plan,
    /// Pipelines, estimates, choices and reasons, for `--explain`.
    pub explain: String,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The query itself is wrong: syntax, unknown table or column, types, parameters.
    #[error("{0}")]
    Query(String),
    /// A valid query that generated kernels do not cover; DataFusion can run it.
    #[error("not supported on the device: {0}")]
    Unsupported(String),
}

/// Plans `sql` over `tables`.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(
    sql: &str,
    params: &[ParamDecl],
    tables: &[TableInfo],
    options: &PlanOptions,
) -> Result<Planned, PlanError> {
    for ParamDecl { name, .. } in params {
        check_name(name).map_err(|e| PlanError::Query(format!("parameter {e}")))?;
    }
    let context = sql::context(tables);
    let ordered = Ordered::new(&sql::logical_plan(&context, sql, params)?, params, tables, options)?;
    // A column that turns out to be needed as codes becomes a dictionary column, and emitting starts over.
    let mut dicts = BTreeSet::new();
    let mut divided = None;
    loop {
        match ordered.emit(sql, tables, options, &dicts, divided.as_ref()) {
            Ok(planned) => return Ok(planned),
            Err(Fault::Divide(division)) => divided = Some(division),
            Err(Fault::NeedDict(table, column)) if dicts.insert((table, column)) => {}
            Err(Fault::NeedDict(table, column)) => {
                let column = tables[table].schema.field(column).name();
                return Err(PlanError::Unsupported(format!("this use of the text column `{column}`")));
            }
            Err(Fault::Plan(e)) => return Err(e),
        }
    }
}

/// A query whose joins are ordered: what emitting starts from.
struct Ordered {
    columns: Columns,
    params: IndexMap<String, Param>,
    /// Default values of the parameters.
    values: BTreeMap<String, ParamValue>,
    rel: Rel,
    /// Name, expression and nullability of each result column, hidden ones last.
    outputs: Vec<(String, Expr, bool)>,
    finish: Finish,
    notes: Vec<String>,
}

impl Ordered {
    fn new(
        logical: &LogicalPlan,
        params: &[ParamDecl],
        tables: &[TableInfo],
        options: &PlanOptions,
    ) -> Result<Ordered, PlanError> {
        let mut lowering = Lowering::new(tables, params);
        let Query { rel, mut outputs, order_by: keys, offset, limit } = lowering.query(logical)?;
        let (mut columns, params) = (lowering.columns, lowering.params);
        let defaults = bind::bind(&params, &[])?;
        let values: BTreeMap<String, ParamValue> = params.keys().cloned().zip(defaults).collect();
        let mut order = Order {
            tables,
            columns: &mut columns,
            values: &values,
            denied: &options.denied,
            notes: Vec::new(),
        };
        let rel = order.order(rel);
        let notes = order.notes;
        // Sort keys that are no output become trailing columns of the result.
        let keep = outputs.len();
        let mut order_by = Vec::new();
        for key in keys {
            let column = outputs.iter().position(|(_, e, _)| *e == key.expr).unwrap_or_else(|| {
                outputs.push((format!("sort key {}", order_by.len() + 1), key.expr.clone(), true));
                outputs.len() - 1
            });
            order_by.push(SortKey { column, descending: key.descending, nulls_first: key.nulls_first });
        }
        let hidden = (outputs.len() > keep).then_some(keep as u64);
        let finish = Finish { order_by, offset, limit, keep: hidden };
        Ok(Ordered { columns, params, values, rel, outputs, finish, notes })
    }

    fn emit(
        &self,
        sql: &str,
        tables: &[TableInfo],
        options: &PlanOptions,
        dicts: &BTreeSet<(usize, usize)>,
        divided: Option<&divide::Division>,
    ) -> Result<Planned, Fault> {
        let Ordered { columns, params, values, rel, outputs, finish, notes } = self;
        let mut required = BTreeSet::new();
        outputs.iter().for_each(|(_, e, _)| e.collect(&mut required));
        let mut emitter =
            Emitter::new(tables, columns.clone(), params.clone(), values, options, dicts, divided);
        let pipes = emitter.produce(rel, &required)?;
        let result = emitter.result(pipes, outputs)?;
        emitter.mark_hot();
        let mut explain: Vec<String> = notes.iter().cloned().chain(emitter.explain).collect();
        for (table, columns) in &emitter.inputs {
            let list: Vec<String> = columns.iter().map(|(name, repr)| format!("{name} {repr}")).collect();
            explain.push(format!("reads {table}: {}", list.join(", ")));
        }
        explain.extend(emitter.assumes.iter().map(|a| format!("assumes {a}, checked while running")));
        let shard = emitter.shard.as_ref();
        explain.extend(shard.map(|s| format!("may be divided by key: {} to {}", s.first, s.last)));
        let explain = explain.into_iter().map(|line| line + "\n").collect();
        let source = format!("#include \"dkb.cuh\"\n\n{}", emitter.kernels.join("\n"));
        let plan = Plan {
            sql: sql.to_owned(),
            framework: Framework::Cuda,
            level: Level::Baseline,
            assumes: emitter.assumes,
            params: emitter.params,
            inputs: emitter.inputs,
            sizes: emitter.sizes,
            buffers: emitter.buffers,
            phases: emitter.phases,
            shard: emitter.shard,
            result,
            finish: finish.clone(),
            source,
            other_source: None,
        };
        Ok(Planned { plan, explain })
    }
}

/// Values of all parameters of `plan`, in its order: given ones, defaults, then derived ones.
///
/// # Errors
/// [`PlanError::Query`] names the parameter that is unknown, ill-typed or cannot be evaluated.
pub fn bind(plan: &Plan, given: &[(String, String)]) -> Result<Vec<ParamValue>, PlanError> {
    bind::bind(&plan.params, given)
}
