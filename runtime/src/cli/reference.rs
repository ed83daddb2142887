//! DataFusion over the same files, in process: the reference of checks and the engine of the CPU fallback.

use std::fs::File;
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::common::Column;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::{
    Expr, FetchType, LogicalPlan, LogicalPlanBuilder, Projection, SkipType, Sort, SortExpr,
};
use datafusion::prelude::{ParquetReadOptions, SessionConfig};
use dkb_planner::error_text as message;
use futures::StreamExt;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::check::OrderInfo;

/// Name and version, for reports.
pub fn version() -> String {
    format!("datafusion {}", datafusion::DATAFUSION_VERSION)
}

/// A DataFusion session over one data set.
pub struct Reference {
    context: SessionContext,
    runtime: tokio::runtime::Runtime,
}

/// A query planned but not run.
pub struct Question {
    plan: LogicalPlan,
    /// The same without LIMIT and OFFSET, if it has one, and without order.
    unlimited: Option<LogicalPlan>,
    /// Columns of the answer; the plan's further columns are hidden sort keys.
    pub visible: usize,
    /// What the query says about order. All keys are among the hidden columns.
    pub order: OrderInfo,
    /// The keys that are also columns of the answer, up to the first that is not.
    pub visible_keys: Vec<usize>,
}

impl Question {
    /// The order as an answer without hidden sort keys shows it: ties are told by the visible ones.
    pub fn visible_order(&self) -> OrderInfo {
        OrderInfo { keys: self.visible_keys.clone(), ..self.order.clone() }
    }
}

impl Reference {
    /// Opens the tables of a data folder: files `NAME.parquet` and folders `NAME/` of such files.
    ///
    /// # Errors
    /// A table that DataFusion cannot open, or a folder that cannot be listed.
    pub fn open(data: &Path) -> Result<Reference, String> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|e| e.to_string())?;
        let mut config = SessionConfig::new();
        config.options_mut().sql_parser.parse_float_as_decimal = true;
        let context = SessionContext::new_with_config(config);
        for (name, path) in tables(data)? {
            let opened = context.register_parquet(name.as_str(), path, ParquetReadOptions::default());
            runtime.block_on(opened).map_err(|e| message(&e))?;
        }
        Ok(Reference { context, runtime })
    }

    /// Plans `sql`, whose parameters have been substituted.
    ///
    /// # Errors
    /// DataFusion's words: the query is wrong.
    pub fn plan(&self, sql: &str) -> Result<Question, String> {
        question(self.logical_plan(sql)?).map_err(|e| message(&e))
    }

    /// Rows of the question, hidden sort keys included.
    ///
    /// # Errors
    /// DataFusion's words: the query fails.
    pub fn answer(&self, question: &Question) -> Result<RecordBatch, String> {
        self.collect(question.plan.clone())
    }

    /// Plans `sql` to the end, so that what is wrong with it shows before it runs.
    ///
    /// # Errors
    /// DataFusion's words: the query is wrong.
    pub fn validate(&self, sql: &str) -> Result<(), String> {
        let frame = DataFrame::new(self.context.state(), self.logical_plan(sql)?);
        self.runtime.block_on(frame.create_physical_plan()).map(drop).map_err(|e| message(&e))
    }

    /// Rows of `sql` as it stands.
    ///
    /// # Errors
    /// DataFusion's words: the query is wrong or fails.
    pub fn run(&self, sql: &str) -> Result<RecordBatch, String> {
        self.collect(self.logical_plan(sql)?)
    }

    fn logical_plan(&self, sql: &str) -> Result<LogicalPlan, String> {
        let plan = self.runtime.block_on(dkb_planner::statements_plan(&self.context, sql));
        plan.map_err(|e| message(&e))
    }

    fn collect(&self, plan: LogicalPlan) -> Result<RecordBatch, String> {
        self.runtime.block_on(async {
            let frame = DataFrame::new(self.context.state(), plan);
            let stream = frame.execute_stream().await.map_err(|e| message(&e))?;
            let schema = stream.schema();
            let batches: Vec<_> = stream.collect().await;
            let batches = batches.into_iter().collect::<Result<Vec<_>, _>>().map_err(|e| message(&e))?;
            concat_batches(&schema, &batches).map_err(|e| e.to_string())
        })
    }

    /// Gives `each` all rows of the question without LIMIT and OFFSET, in any order.
    ///
    /// # Errors
    /// DataFusion's words: the query fails.
    pub fn unlimited(&self, question: &Question, each: &mut dyn FnMut(&RecordBatch)) -> Result<(), String> {
        let plan = question.unlimited.clone().unwrap_or_else(|| question.plan.clone());
        self.runtime.block_on(async {
            let frame = DataFrame::new(self.context.state(), plan);
            let mut stream = frame.execute_stream().await.map_err(|e| message(&e))?;
            while let Some(batch) = stream.next().await {
                each(&batch.map_err(|e| message(&e))?);
            }
            Ok(())
        })
    }
}

/// A stored answer and the name of the system that wrote it.
///
/// # Errors
/// Names the file.
pub fn stored_answer(path: &Path) -> Result<(RecordBatch, String), String> {
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let file = File::open(path).map_err(|e| named(&e))?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| named(&e))?;
    let writer = builder.metadata().file_metadata().created_by().unwrap_or("unknown writer").to_owned();
    let schema = builder.schema().clone();
    let reader = builder.build().map_err(|e| named(&e))?;
    let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|e| named(&e))?;
    Ok((concat_batches(&schema, &batches).map_err(|e| named(&e))?, writer))
}

/// Takes LIMIT and ORDER BY off the top of a plan and puts them back with the sort keys as extra columns.
fn question(plan: LogicalPlan) -> Result<Question, DataFusionError> {
    let (skip, fetch, inner) = match &plan {
        LogicalPlan::Limit(limit) => match (limit.get_skip_type()?, limit.get_fetch_type()?) {
            (SkipType::Literal(skip), FetchType::Literal(fetch)) => (skip, fetch, limit.input.as_ref()),
            _ => (0, None, &plan),
        },
        _ => (0, None, &plan),
    };
    let (visible, sort) = match inner {
        LogicalPlan::Sort(sort) => (columns(&sort.input), Some(sort)),
        LogicalPlan::Projection(Projection { expr, input, .. }) => match input.as_ref() {
            LogicalPlan::Sort(sort) => (expr.clone(), Some(sort)),
            _ => (columns(inner), None),
        },
        _ => (columns(inner), None),
    };
    let count = visible.len();
    let cut = skip > 0 || fetch.is_some();
    let mut order = OrderInfo { keys: Vec::new(), limited: fetch.is_some(), skipped: skip > 0 };
    let Some(Sort { expr: keys, input, .. }) = sort else {
        let unlimited = cut.then(|| inner.clone());
        return Ok(Question { unlimited, plan, visible: count, order, visible_keys: Vec::new() });
    };
    order.keys = (count..count + keys.len()).collect();
    let visible_keys = keys.iter().map_while(|key| visible.iter().position(|e| same(e, &key.expr))).collect();
    let hidden =
        keys.iter().enumerate().map(|(i, SortExpr { expr, .. })| expr.clone().alias(format!("__key{i}")));
    let extended: Vec<Expr> = visible.into_iter().chain(hidden).collect();
    let sorted =
        LogicalPlanBuilder::from(input.as_ref().clone()).sort(keys.clone())?.project(extended.clone())?;
    let limited = if cut { sorted.limit(skip, fetch)? } else { sorted };
    let unlimited = match cut {
        true => Some(LogicalPlanBuilder::from(input.as_ref().clone()).project(extended)?.build()?),
        false => None,
    };
    Ok(Question { plan: limited.build()?, unlimited, visible: count, order, visible_keys })
}

fn columns(plan: &LogicalPlan) -> Vec<Expr> {
    plan.schema().iter().map(|(qualifier, field)| Expr::Column(Column::from((qualifier, field)))).collect()
}

fn same(visible: &Expr, key: &Expr) -> bool {
    match visible {
        Expr::Alias(alias) => *alias.expr == *key,
        other => other == key,
    }
}

/// Names and locations of the tables in a data folder.
fn tables(data: &Path) -> Result<Vec<(String, String)>, String> {
    let list = |dir: &Path| {
        let unreadable = |e: std::io::Error| format!("{}: {e}", dir.display());
        let entries =
            std::fs::read_dir(dir).map_err(unreadable)?.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        Ok::<_, String>(entries.into_iter().map(|e| e.path()).collect::<Vec<_>>())
    };
    let is_parquet = |path: &Path| path.is_file() && path.extension().is_some_and(|e| e == "parquet");
    let data = data.canonicalize().map_err(|e| format!("{}: {e}", data.display()))?;
    let mut tables = Vec::new();
    for path in list(&data)? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().to_lowercase();
        if is_parquet(&path) {
            tables.push((name, url(&path)));
        } else if path.is_dir() && list(&path)?.iter().any(|file| is_parquet(file)) {
            tables.push((name, url(&path) + "/"));
        }
    }
    tables.sort();
    Ok(tables)
}

/// A file URL, so that no character of the path is taken for a pattern.
fn url(path: &Path) -> String {
    use std::fmt::Write;
    let mut out = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(*byte))
            }
            // Infallible: writing to a String.
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question_of(sql: &str) -> (Reference, Question) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let context = SessionContext::new();
        let make = "create table t as values (1, 'b'), (2, 'a'), (2, 'c')";
        runtime.block_on(async { context.sql(make).await.unwrap().collect().await.unwrap() });
        let reference = Reference { context, runtime };
        let question = reference.plan(sql).unwrap();
        (reference, question)
    }

    #[test]
    fn order_is_read_off_the_plan() {
        for (sql, visible, keys, visible_keys, limited) in [
            ("select * from t", 2, 0, vec![], false),
            ("select column1 c, column2 from t order by column2, c", 2, 2, vec![1, 0], false),
            ("select column1 from t order by column2", 1, 1, vec![], false),
            (
                "select column2, count(*) n from t group by column2 order by n desc limit 1",
                2,
                1,
                vec![1],
                true,
            ),
            ("select column1 from t order by column1 + 1 limit 2", 1, 1, vec![], true),
        ] {
            let (reference, question) = question_of(sql);
            assert_eq!(question.visible, visible, "{sql}");
            assert_eq!(question.order.keys.len(), keys, "{sql}");
            assert_eq!(question.visible_keys, visible_keys, "{sql}");
            assert_eq!(question.order.limited, limited, "{sql}");
            let answer = reference.answer(&question).unwrap();
            assert_eq!(answer.num_columns(), visible + keys, "{sql}");
        }
    }

    #[test]
    fn unlimited_rows_have_the_same_columns() {
        let (reference, question) = question_of("select column1 from t order by column2 limit 1");
        let mut rows = 0;
        reference
            .unlimited(&question, &mut |batch| {
                rows += batch.num_rows();
                assert_eq!(batch.num_columns(), 2);
            })
            .unwrap();
        assert_eq!((rows, reference.answer(&question).unwrap().num_rows()), (3, 1));
    }

    #[test]
    fn paths_become_urls() {
        assert_eq!(url(Path::new("/a b/[c]*")), "file:///a%20b/%5Bc%5D%2A");
    }
}
