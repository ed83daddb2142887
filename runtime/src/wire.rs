//! How a parent and its worker process talk: one JSON object a line; the rows of an answer follow their line as an
//! Arrow IPC stream of the stated length.

use std::fs::File;
use std::io::{self, BufRead, Cursor, Read, Write};
use std::os::fd::FromRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use arrow::array::RecordBatch;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A worker's standard output as a file of its own; descriptor 1 becomes standard error, so that nothing that a library
/// prints gets between the messages.
///
/// # Errors
/// No descriptor is free.
pub fn take_stdout() -> io::Result<File> {
    // SAFETY: dup and dup2 take descriptors only; the new descriptor is owned by the file alone.
    unsafe {
        let own = libc::fcntl(1, libc::F_DUPFD_CLOEXEC, 3);
        if own < 0 || libc::dup2(2, 1) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(File::from_raw_fd(own))
    }
}

/// Writes one message.
///
/// # Errors
/// Those of the stream.
pub fn write_message(out: &mut impl Write, message: &(impl Serialize + ?Sized)) -> io::Result<()> {
    serde_json::to_writer(&mut *out, message)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Reads one message; None at the end of the stream.
///
/// # Errors
/// Those of the stream, or a line that is no message.
pub fn read_message<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

/// A batch as an Arrow IPC stream.
///
/// # Errors
/// A type that the format does not hold.
pub fn encode_batch(batch: &RecordBatch) -> Result<Vec<u8>, arrow::error::ArrowError> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema())?;
    writer.write(batch)?;
    writer.into_inner()
}

/// Reads a batch of `bytes` bytes.
///
/// # Errors
/// Those of the stream, or bytes that are no Arrow IPC stream.
pub fn read_batch(input: &mut impl Read, bytes: usize) -> io::Result<RecordBatch> {
    let mut buffer = vec![0; bytes];
    input.read_exact(&mut buffer)?;
    let broken = |e: arrow::error::ArrowError| io::Error::other(e);
    let mut reader = StreamReader::try_new(Cursor::new(buffer), None).map_err(broken)?;
    match reader.next() {
        Some(batch) => batch.map_err(broken),
        None => Ok(RecordBatch::new_empty(reader.schema())),
    }
}

/// How a worker process ended, as the end of a sentence that begins with it.
pub fn how_it_ended(status: ExitStatus) -> String {
    const NAMES: [(i32, &str); 6] = [
        (libc::SIGABRT, "aborted"),
        (libc::SIGBUS, "bus error"),
        (libc::SIGFPE, "arithmetic error"),
        (libc::SIGILL, "illegal instruction"),
        (libc::SIGKILL, "killed, perhaps for want of memory"),
        (libc::SIGSEGV, "segmentation fault"),
    ];
    match (status.signal(), status.code()) {
        (Some(signal), _) => {
            let name = NAMES.iter().find(|(number, _)| *number == signal).map_or("", |(_, name)| name);
            let name = if name.is_empty() { String::new() } else { format!(": {name}") };
            format!("was ended by signal {signal}{name}")
        }
        (None, Some(code)) => format!("ended with exit code {code}"),
        (None, None) => "ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    #[test]
    fn messages_and_batches_round_trip() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let batch = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let bytes = encode_batch(&batch).unwrap();
        let mut stream = Vec::new();
        write_message(&mut stream, "two\nlines").unwrap();
        stream.extend_from_slice(&bytes);
        let mut input = stream.as_slice();
        assert_eq!(read_message::<String>(&mut input).unwrap().as_deref(), Some("two\nlines"));
        assert_eq!(read_batch(&mut input, bytes.len()).unwrap(), batch);
        assert!(read_message::<String>(&mut input).unwrap().is_none());
    }
}
