//! SQL text to DataFusion's optimised logical plan, with parameters as typed placeholders.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use arrow::error::ArrowError;
use datafusion::common::SchemaError;
use datafusion::datasource::empty::EmptyTable;
use datafusion::error::DataFusionError;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{DdlStatement, LogicalPlan, TableType};
use datafusion::optimizer::Optimizer;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::DFParser;
use datafusion::sql::sqlparser::parser::ParserError;
use dkb_kernels::SqlType;
use indexmap::IndexSet;

use crate::catalog::TableInfo;
use crate::{ParamDecl, PlanError};

/// The most names that an error lists.
const MOST_NAMES: usize = 20;

/// A context that knows the tables' schemas and no data. A column without NULLs is declared so, whatever its
/// file says.
pub(crate) fn context(tables: &[TableInfo]) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(1)
        .set_bool("datafusion.sql_parser.parse_float_as_decimal", true);
    // The compiler of the kernels finds common subexpressions; as projections they would only hide constants.
    let rules = Optimizer::new().rules.into_iter().filter(|r| r.name() != "common_sub_expression_eliminate");
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_optimizer_rules(rules.collect())
        .build();
    let ctx = SessionContext::new_with_state(state);
    for table in tables {
        let fields = table.schema.fields().iter().zip(&table.columns);
        let fields = fields.map(|(f, c)| Field::new(f.name(), f.data_type().clone(), c.nullable));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let provider = Arc::new(EmptyTable::new(Arc::new(schema)));
        ctx.register_table(datafusion::common::TableReference::bare(table.name.as_str()), provider)
            .expect("table names are unique");
    }
    ctx
}

/// The optimised logical plan of one query.
///
/// # Errors
/// [`PlanError::Query`] with [`error_text`].
pub(crate) fn logical_plan(
    ctx: &SessionContext,
    sql: &str,
    params: &[ParamDecl],
) -> Result<LogicalPlan, PlanError> {
    let error = |e: DataFusionError| PlanError::Query(error_text(&e));
    let text = substitute(sql.trim().trim_end_matches(';'), &|name| {
        let decl = params.iter().find(|p| p.name == name)?;
        Some(format!("cast(${name} as {})", type_name(decl.ty)))
    });
    let planning = async { ctx.state().optimize(&statements_plan(ctx, &text).await?) };
    futures::executor::block_on(planning).map_err(error)
}

/// The logical plan of a query, which `CREATE VIEW` statements may precede. The views stay in the context until
/// others of their names replace them; tables are never replaced.
///
/// # Errors
/// DataFusion's, and any other statement.
pub async fn statements_plan(ctx: &SessionContext, sql: &str) -> Result<LogicalPlan, DataFusionError> {
    let refuse = |what: &str| Err(DataFusionError::Plan(what.to_owned()));
    let mut statements = DFParser::parse_sql(sql)?;
    let Some(query) = statements.pop_back() else { return refuse("there is no query") };
    for statement in statements {
        match ctx.state().statement_to_plan(statement).await? {
            LogicalPlan::Ddl(DdlStatement::CreateView(mut view)) => {
                let table = ctx.table_provider(view.name.clone()).await;
                if table.is_ok_and(|t| t.table_type() != TableType::View) {
                    return refuse(&format!("view `{}` has the name of a table", view.name));
                }
                view.or_replace = true;
                ctx.execute_logical_plan(LogicalPlan::Ddl(DdlStatement::CreateView(view))).await?;
            }
            _ => return refuse("only CREATE VIEW may precede the query"),
        }
    }
    match ctx.state().statement_to_plan(query).await? {
        LogicalPlan::Ddl(_) | LogicalPlan::Dml(_) | LogicalPlan::Copy(_) | LogicalPlan::Statement(_) => {
            refuse("only queries can be run: SELECT or WITH, after any CREATE VIEW")
        }
        plan => Ok(plan),
    }
}

/// DataFusion's error in one line, without category, backtrace, and the names of DataFusion's own catalog and
/// rules.
pub fn error_text(error: &DataFusionError) -> String {
    let text = match error.find_root() {
        DataFusionError::SQL(error, _) => match error.as_ref() {
            ParserError::ParserError(text) | ParserError::TokenizerError(text) => {
                format!("syntax error: {text}")
            }
            ParserError::RecursionLimitExceeded => "the query is nested too deeply".to_owned(),
        },
        DataFusionError::SchemaError(error, _) => match error.as_ref() {
            SchemaError::FieldNotFound { field, valid_fields } => {
                let known: IndexSet<String> = valid_fields.iter().map(|c| c.quoted_flat_name()).collect();
                let more = if known.len() > MOST_NAMES { ", ..." } else { "" };
                let known = known.into_iter().take(MOST_NAMES).collect::<Vec<_>>().join(", ");
                let known = if known.is_empty() { "none".to_owned() } else { known };
                format!("no column `{}`; there are: {known}{more}", field.flat_name())
            }
            SchemaError::AmbiguousReference { field } => {
                format!("column `{0}` is in several tables: say which, as in `table.{0}`", field.name())
            }
            other => other.to_string(),
        },
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::CastError(text) | ArrowError::ParseError(text) => text.clone(),
            other => other.to_string(),
        },
        root => root.message().into_owned(),
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = text.replace("Error during planning: ", "");
    let text = text.replace("datafusion.public.", "").replace("'datafusion.", "'");
    if let Some(table) = text.strip_prefix("table '").and_then(|rest| rest.strip_suffix("' not found")) {
        return format!("no table `{table}`");
    }
    // DataFusion lists every signature that does not match before it names the call.
    let call = text.split_once("No function matches the given name and argument types '");
    match call.and_then(|(_, rest)| rest.split_once('\'')) {
        Some((call, _)) => format!("no function `{call}`: cast its arguments to types that it takes"),
        None => text,
    }
}

/// Replaces every `:name` outside of quotes and comments for which there is a replacement.
pub(crate) fn substitute(sql: &str, replacement: &dyn Fn(&str) -> Option<String>) -> String {
    let bytes = sql.as_bytes();
    let mut out = String::with_capacity(sql.len());
    let mut at = 0;
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    while at < bytes.len() {
        let end = match bytes[at] {
            quote @ (b'\'' | b'"') => {
                let close = sql[at + 1..].find(quote as char);
                close.map_or(sql.len(), |n| at + n + 2)
            }
            b'-' if sql[at..].starts_with("--") => sql[at..].find('\n').map_or(sql.len(), |n| at + n),
            b':' if sql[at..].starts_with("::") => at + 2,
            b':' => {
                let end = (at + 1..bytes.len()).find(|k| !is_word(bytes[*k])).unwrap_or(bytes.len());
                if let Some(text) = replacement(&sql[at + 1..end]) {
                    out += &text;
                    at = end;
                    continue;
                }
                end
            }
            _ => (at + 1..=bytes.len()).find(|k| sql.is_char_boundary(*k)).unwrap_or(bytes.len()),
        };
        out += &sql[at..end];
        at = end;
    }
    out
}

/// The type's name in SQL.
pub(crate) fn type_name(ty: SqlType) -> String {
    match ty {
        SqlType::Bool => "boolean".to_owned(),
        SqlType::Int8 => "tinyint".to_owned(),
        SqlType::Int16 => "smallint".to_owned(),
        SqlType::Int32 => "int".to_owned(),
        SqlType::Int64 => "bigint".to_owned(),
        SqlType::Float32 => "real".to_owned(),
        SqlType::Float64 => "double".to_owned(),
        SqlType::Date => "date".to_owned(),
        SqlType::Timestamp => "timestamp(6)".to_owned(),
        SqlType::Decimal(p, s) => format!("decimal({p},{s})"),
        SqlType::Utf8 => "varchar".to_owned(),
    }
}

/// A SQL literal of the type.
pub(crate) fn typed_literal(text: &str, ty: SqlType) -> String {
    format!("cast('{}' as {})", text.replace('\'', "''"), type_name(ty))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn errors_are_one_line_in_plain_words() {
        let ctx = context(&[]);
        for (sql, expected) in [
            ("selec 1", "syntax error: Expected: an SQL statement, found: selec at Line: 1, Column: 1"),
            ("select 'a", "syntax error: Unterminated string literal at Line: 1, Column: 8"),
            ("select * from t", "no table `t`"),
            ("select a.x from (select 1 as y) a", "no column `a.x`; there are: a.y"),
            ("select x from (select 1 as x) a, (select 1 as x) b", "column `x` is in several tables"),
            ("select sum('a')", "no function `sum(Utf8)`"),
            ("select date 'soon' < date '2000-01-01'", "Cannot cast string 'soon'"),
        ] {
            let error = logical_plan(&ctx, sql, &[]).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{sql}: {error}");
        }
    }

    #[test]
    fn views_may_precede_a_query() {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let columns = vec![crate::catalog::ColumnInfo::default()];
        let ctx = context(&[TableInfo { name: "t".to_owned(), schema, rows: 0, columns }]);
        let plan = |sql: &str| logical_plan(&ctx, sql, &[]).map(drop).map_err(|e| e.to_string());
        let view = "create view v as select a + 1 as b from t; select b from v";
        assert_eq!(plan(view), Ok(()));
        assert_eq!(plan(view), Ok(()), "the same text plans again");
        let refused = |sql: &str| plan(sql).expect_err(sql);
        assert_eq!(refused("create view t as select 1; select 1"), "view `t` has the name of a table");
        assert_eq!(refused("drop table t; select 1"), "only CREATE VIEW may precede the query");
        assert!(refused("create view v as select 1 as b").starts_with("only queries can be run"));
        assert_eq!(refused(""), "there is no query");
    }

    #[test]
    fn substitutes_outside_quotes_only() {
        let replaced = substitute("select ':a', :a, x::date -- :a\n, \":a\", :b", &|n| {
            (n == "a").then(|| "1".to_owned())
        });
        assert_eq!(replaced, "select ':a', 1, x::date -- :a\n, \":a\", :b");
    }
}
