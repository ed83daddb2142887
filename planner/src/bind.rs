//! Parameter values at bind time: given ones and defaults are read, derived ones evaluated on the host.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatchOptions;
use arrow::datatypes::Schema;
use arrow::record_batch::RecordBatch;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::ColumnarValue;
use datafusion::prelude::SessionContext;
use dkb_kernels::{Param, SqlType};
use indexmap::IndexMap;

use crate::{ParamValue, PlanError, lower, sql, values};

/// Values of the parameters in their order.
///
/// # Errors
/// Names the parameter that is unknown, ill-typed, or cannot be evaluated.
pub(crate) fn bind(
    params: &IndexMap<String, Param>,
    given: &[(String, String)],
) -> Result<Vec<ParamValue>, PlanError> {
    let mut texts: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, text) in given {
        match params.get(name) {
            Some(p) if p.default.is_some() => texts.insert(name, text),
            Some(_) => {
                return Err(PlanError::Query(format!("parameter `{name}` is derived and cannot be given")));
            }
            None => {
                let known: Vec<&str> =
                    params.iter().filter(|(_, p)| p.default.is_some()).map(|(n, _)| n.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(PlanError::Query(format!("no parameter `{name}`; the query has: {known}")));
            }
        };
    }
    let mut bound: Vec<ParamValue> = Vec::new();
    let mut known: Vec<(&str, SqlType, String)> = Vec::new();
    let mut context = None;
    for (name, p) in params {
        let value = match (&p.default, &p.value) {
            (Some(default), _) => {
                let text = texts.get(name.as_str()).copied().unwrap_or(default);
                values::parse(text, p.ty).map_err(|e| PlanError::Query(format!("parameter `{name}`: {e}")))?
            }
            (None, Some(expression)) => {
                let ctx = context.get_or_insert_with(|| sql::context(&[]));
                evaluate(ctx, expression, p.ty, &known)
                    .map_err(|e| PlanError::Query(format!("parameter `{name}` = {expression}: {e}")))?
            }
            (None, None) => return Err(PlanError::Query(format!("parameter `{name}` has no value"))),
        };
        if let (ParamValue::Int(v), Some(digits)) = (&value, p.digits)
            && v.unsigned_abs() >= 10u128.saturating_pow(digits.into())
        {
            return Err(PlanError::Query(format!(
                "parameter `{name}`: {} has more than the {digits} digits that the plan was made for; put the value into the SQL",
                values::print(&value, p.ty)
            )));
        }
        known.push((name, p.ty, values::print(&value, p.ty)));
        bound.push(value);
    }
    Ok(bound)
}

fn evaluate(
    ctx: &SessionContext,
    expression: &str,
    ty: SqlType,
    known: &[(&str, SqlType, String)],
) -> Result<ParamValue, String> {
    let text = sql::substitute(expression, &|name| {
        known.iter().find(|(n, ..)| *n == name).map(|(_, ty, text)| sql::typed_literal(text, *ty))
    });
    let text = format!("cast({text} as {})", sql::type_name(ty));
    let clean = |e: datafusion::error::DataFusionError| sql::error_text(&e);
    let schema = DFSchema::empty();
    let expr = ctx.parse_sql_expr(&text, &schema).map_err(clean)?;
    let physical = ctx.create_physical_expr(expr, &schema).map_err(clean)?;
    let one_row = RecordBatchOptions::new().with_row_count(Some(1));
    let batch = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &one_row)
        .map_err(|e| e.to_string())?;
    let scalar = match physical.evaluate(&batch).map_err(clean)? {
        ColumnarValue::Scalar(s) => s,
        ColumnarValue::Array(a) => ScalarValue::try_from_array(&a, 0).map_err(clean)?,
    };
    if scalar.is_null() {
        return Err("the value is NULL".to_owned());
    }
    lower::scalar(&scalar).ok_or_else(|| format!("unexpected type {}", scalar.data_type()))
}
