//! The reference: DataFusion over the same files, set up here on its own and not as the program does it.

use std::path::Path;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use datafusion::error::DataFusionError;
use datafusion::physical_plan::collect;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use tokio::runtime::Runtime;

/// DataFusion with a folder of `NAME.parquet` files and `NAME/` folders as tables.
pub struct Reference {
    context: SessionContext,
    runtime: Runtime,
}

impl Reference {
    /// Opens a folder.
    pub fn open(data: &Path) -> Reference {
        let runtime = Runtime::new().expect("threads can be started");
        let mut config = SessionConfig::new().with_target_partitions(2);
        config.options_mut().sql_parser.parse_float_as_decimal = true;
        let context = SessionContext::new_with_config(config);
        for entry in std::fs::read_dir(data).expect("the folder can be listed") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|s| s.to_str()).expect("a plain name");
            let text = path.to_str().expect("a plain path");
            let opened = context.register_parquet(name, text, ParquetReadOptions::default());
            runtime.block_on(opened).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        Reference { context, runtime }
    }

    /// The answer to a query without parameters.
    ///
    /// # Errors
    /// DataFusion's words: the query is wrong, or fails on this data.
    pub fn run(&self, sql: &str) -> Result<RecordBatch, String> {
        let answer = self.runtime.block_on(async {
            let plan = self.context.sql(sql).await?.create_physical_plan().await?;
            let batches = collect(plan.clone(), self.context.task_ctx()).await?;
            // Plans may refine nullability; the batches know best.
            let schema = batches.first().map_or(plan.schema(), RecordBatch::schema);
            Ok::<_, DataFusionError>(concat_batches(&schema, &batches)?)
        });
        answer.map_err(|e| e.to_string())
    }
}
