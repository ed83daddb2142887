//! Results in the formats people and programs read.
//!
//! Invariant: a file appears complete or not at all: it is written beside its place and renamed.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use arrow::array::RecordBatch;
use arrow::csv;
use arrow::util::display::FormatOptions;
use arrow::util::pretty::pretty_format_batches_with_options;
use parquet::arrow::ArrowWriter;

use super::CliError;
use super::args::Format;
use super::signals::Unfinished;

/// Writes a result to a file, or to standard output.
///
/// # Errors
/// [`CliError::Input`] names the file that cannot be written; [`CliError::Closed`] when nobody reads standard
/// output any more; [`CliError::Failed`] for values the format cannot hold.
pub(super) fn write_result(batch: &RecordBatch, format: Format, path: Option<&Path>) -> Result<(), CliError> {
    match path {
        Some(path) => write_file(path, |file| write_batch(batch, format, file)),
        None => write_stdout(|out| write_batch(batch, format, out)),
    }
}

/// Writes text to standard output.
///
/// # Errors
/// [`CliError::Closed`] when nobody reads it any more.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    write_stdout(|out| writeln!(out, "{}", text.trim_end()))
}

fn write_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), CliError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = write(&mut out).and_then(|()| out.flush());
    written.map_err(|e| match e.kind() {
        io::ErrorKind::BrokenPipe => CliError::Closed,
        _ => CliError::Failed(format!("standard output: {e}")),
    })
}

/// Writes a file through a temporary one in the same folder.
///
/// # Errors
/// [`CliError::Input`] names the file and the reason.
pub(super) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), CliError> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".partial-{}", std::process::id()));
    let partial = path.with_file_name(name);
    let _unfinished = Unfinished::new(&partial);
    let written = File::create(&partial).and_then(|file| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        file.flush()?;
        std::fs::rename(&partial, path)
    });
    written.map_err(|e| {
        // The write has failed: whether its remains can be removed changes nothing.
        let _ = std::fs::remove_file(&partial);
        CliError::Input(format!("cannot write {}: {e}", path.display()))
    })
}

fn write_batch(batch: &RecordBatch, format: Format, out: &mut dyn Write) -> io::Result<()> {
    let arrow = |e: arrow::error::ArrowError| io::Error::other(e);
    match format {
        Format::Table => {
            let options = FormatOptions::new().with_null("NULL");
            let text =
                pretty_format_batches_with_options(std::slice::from_ref(batch), &options).map_err(arrow)?;
            writeln!(out, "{text}")
        }
        Format::Csv => csv::WriterBuilder::new().with_header(true).build(out).write(batch).map_err(arrow),
        Format::Json => {
            let mut writer = arrow::json::WriterBuilder::new()
                .with_explicit_nulls(true)
                .build::<_, arrow::json::writer::JsonArray>(&mut *out);
            writer.write(batch).map_err(arrow)?;
            writer.finish().map_err(arrow)?;
            writeln!(out)
        }
        Format::Parquet => {
            // The writer must own what it writes to, and be Send.
            let mut bytes = Vec::new();
            let mut writer =
                ArrowWriter::try_new(&mut bytes, batch.schema(), None).map_err(io::Error::other)?;
            writer.write(batch).map_err(io::Error::other)?;
            writer.close().map_err(io::Error::other)?;
            out.write_all(&bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Decimal128Array, StringArray};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    fn batch() -> RecordBatch {
        let sums = Decimal128Array::from(vec![Some(12345), None]).with_precision_and_scale(15, 2).unwrap();
        let names: ArrayRef = Arc::new(StringArray::from(vec!["a,b", "c"]));
        RecordBatch::try_from_iter([("sum", Arc::new(sums) as ArrayRef), ("name", names)]).unwrap()
    }

    fn text(format: Format) -> String {
        let mut out = Vec::new();
        write_batch(&batch(), format, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_formats() {
        assert!(text(Format::Table).contains("| 123.45 | a,b  |"));
        assert!(text(Format::Table).contains("| NULL   | c    |"));
        assert_eq!(text(Format::Csv), "sum,name\n123.45,\"a,b\"\n,c\n");
        let json: serde_json::Value = serde_json::from_str(&text(Format::Json)).unwrap();
        assert_eq!(json[0]["name"], "a,b");
        assert!(json[1]["sum"].is_null());
    }

    #[test]
    fn files_are_whole_or_absent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.parquet");
        write_result(&batch(), Format::Parquet, Some(&path)).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
        let read: Vec<_> = reader.build().unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(read[0].num_rows(), 2);
        let error = write_file(&dir.path().join("bad"), |_| Err(io::Error::other("no room"))).unwrap_err();
        assert!(error.to_string().contains("bad: no room"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
