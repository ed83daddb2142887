//! Who writes the replies: a model behind HTTP, a command, a person or program that watches a folder, or an
//! earlier run.

use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::store;
use crate::file::write_file;

/// The longest reply that is read, in bytes.
pub(crate) const MOST_REPLY_BYTES: u64 = 32 << 20;

/// Bytes of a command's standard error that an error shows.
const STDERR_TAIL_BYTES: usize = 2000;

/// Between two looks at a mailbox.
const MAILBOX_POLL: Duration = Duration::from_millis(200);

/// Between two looks at a command or a flag.
const POLL: Duration = Duration::from_millis(10);

/// Answers prompts; several threads may ask at once.
pub trait Provider: Sync {
    /// The reply to a prompt; None where a provider of old replies has no more.
    ///
    /// # Errors
    /// There is no reply, and why.
    fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>>;
}

/// One prompt.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The query's name.
    pub query: &'a str,
    /// Counted from 1.
    pub round: u32,
    /// Everything that the model is told.
    pub prompt: &'a str,
    /// Set once the run has failed: mail is no longer awaited, and failed requests are not sent again.
    pub stop: &'a AtomicBool,
}

/// What `reply.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// What the model wrote.
    pub text: String,
    /// Tokens of the prompt.
    pub tokens_in: u64,
    /// Tokens of the reply, those of hidden reasoning included.
    pub tokens_out: u64,
    /// Whether the tokens are bytes / 4, because the provider does not count them.
    pub estimated: bool,
    /// Whether the reply ends at the limit of tokens.
    pub cut_off: bool,
    /// How long it took, in seconds, with what was tried in vain.
    pub seconds: f64,
    /// The reply as the provider gave it.
    pub raw: Value,
}

impl Reply {
    /// A reply of which only the text is known.
    pub fn plain(prompt: &str, text: String, asked: Instant) -> Reply {
        Reply {
            tokens_in: estimate(prompt),
            tokens_out: estimate(&text),
            estimated: true,
            cut_off: false,
            seconds: asked.elapsed().as_secs_f64(),
            raw: Value::String(text.clone()),
            text,
        }
    }
}

/// Tokens of a text, by the rule of thumb.
pub(crate) fn estimate(text: &str) -> u64 {
    (text.len() as u64).div_ceil(4)
}

/// A provider as it is named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderName {
    /// Any endpoint that speaks OpenAI's chat completions.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// A command of the shell: the prompt on standard input, the reply on standard output.
    Exec(String),
    /// A folder in which prompts appear and replies are awaited.
    Mailbox(PathBuf),
    /// The folder of an earlier run.
    Replay(PathBuf),
}

impl FromStr for ProviderName {
    type Err = String;

    fn from_str(text: &str) -> Result<ProviderName, String> {
        match text.split_once(':') {
            None if text == "openai" => Ok(ProviderName::OpenAi),
            None if text == "anthropic" => Ok(ProviderName::Anthropic),
            Some(("exec", command)) if !command.trim().is_empty() => {
                Ok(ProviderName::Exec(command.to_owned()))
            }
            Some(("mailbox", folder)) if !folder.is_empty() => Ok(ProviderName::Mailbox(folder.into())),
            Some(("replay", folder)) if !folder.is_empty() => Ok(ProviderName::Replay(folder.into())),
            _ => Err("give openai, anthropic, exec:CMD, mailbox:DIR or replay:DIR".to_owned()),
        }
    }
}

impl fmt::Display for ProviderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProviderName::OpenAi => write!(f, "openai"),
            ProviderName::Anthropic => write!(f, "anthropic"),
            ProviderName::Exec(command) => write!(f, "exec:{command}"),
            ProviderName::Mailbox(folder) => write!(f, "mailbox:{}", folder.display()),
            ProviderName::Replay(folder) => write!(f, "replay:{}", folder.display()),
        }
    }
}

/// A command of the shell.
#[derive(Debug)]
pub struct Exec {
    /// What `sh -c` gets.
    pub command: String,
    /// How long it may take.
    pub timeout: Duration,
}

impl Provider for Exec {
    fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>> {
        let asked = Instant::now();
        // Files, unlike pipes, are never full and end with the command, whatever processes it leaves behind.
        let scratch = || tempfile::tempfile().context("cannot make a temporary file");
        let (mut input, output, errors) = (scratch()?, scratch()?, scratch()?);
        input
            .write_all(request.prompt.as_bytes())
            .and_then(|()| input.rewind())
            .context("cannot write the prompt to a temporary file")?;
        let share = |file: &File| file.try_clone().map(Stdio::from).context("cannot share a temporary file");
        let mut child = Command::new("sh")
            .args(["-c", &self.command])
            .stdin(input)
            .stdout(share(&output)?)
            .stderr(share(&errors)?)
            .process_group(0)
            .spawn()
            .context("cannot start sh")?;
        let status = loop {
            if let Some(status) = child.try_wait().context("cannot wait for sh")? {
                break status;
            }
            if asked.elapsed() >= self.timeout {
                // SAFETY: kill has no preconditions. The group is the child's, which has not been waited for.
                unsafe { libc::kill(-(child.id() as libc::pid_t), libc::SIGKILL) };
                child.wait().context("cannot wait for sh")?;
                bail!(
                    "`{}` took longer than {} s: allow more by --timeout{}",
                    self.command,
                    self.timeout.as_secs(),
                    tail(errors)
                );
            }
            thread::sleep(POLL);
        };
        ensure!(status.success(), "`{}` ended with {status}{}", self.command, tail(errors));
        let bytes = output.metadata().map_or(0, |metadata| metadata.len());
        ensure!(bytes <= MOST_REPLY_BYTES, "`{}` wrote more than {MOST_REPLY_BYTES} bytes", self.command);
        let text = whole(output)
            .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other))
            .with_context(|| format!("cannot read what `{}` wrote", self.command))?;
        Ok(Some(Reply::plain(request.prompt, text, asked)))
    }
}

/// A file's content, however far it was read or written.
fn whole(mut file: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(MOST_REPLY_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The end of a command's standard error, to append to a message.
fn tail(errors: File) -> String {
    let bytes = whole(errors).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(STDERR_TAIL_BYTES)..]).into_owned();
    if text.trim().is_empty() { String::new() } else { format!(": {}", text.trim()) }
}

/// A folder in which `QUERY-RR.prompt.md` appears and `QUERY-RR.reply.md` is awaited, for as long as it takes.
#[derive(Debug)]
pub struct Mailbox {
    /// The folder; made if need be.
    pub folder: PathBuf,
}

impl Provider for Mailbox {
    fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>> {
        let asked = Instant::now();
        let path = |kind| self.folder.join(format!("{}-{:02}.{kind}.md", request.query, request.round));
        let (prompt, reply) = (path("prompt"), path("reply"));
        fs::create_dir_all(&self.folder).with_context(|| format!("cannot make {}", self.folder.display()))?;
        let old = store::read(&prompt)?;
        if old.as_deref() != Some(request.prompt) {
            ensure!(
                old.is_none() || !reply.exists(),
                "{} answers another prompt: remove it, or name an empty folder",
                reply.display()
            );
            write_file(&prompt, request.prompt)?;
        }
        let mut last_bytes = 0;
        loop {
            let bytes = match fs::metadata(&reply) {
                Ok(metadata) => metadata.len(),
                Err(error) if error.kind() == ErrorKind::NotFound => 0,
                Err(error) => return Err(error).with_context(|| format!("cannot read {}", reply.display())),
            };
            if bytes > 0 && bytes == last_bytes {
                break;
            }
            last_bytes = bytes;
            ensure!(pause(MAILBOX_POLL, request.stop), "{} is no longer awaited", reply.display());
        }
        ensure!(
            last_bytes <= MOST_REPLY_BYTES,
            "{} is larger than {MOST_REPLY_BYTES} bytes",
            reply.display()
        );
        let text = fs::read_to_string(&reply).with_context(|| format!("cannot read {}", reply.display()))?;
        Ok(Some(Reply::plain(request.prompt, text, asked)))
    }
}

/// Sleeps; false if `stop` was set before the time was over.
pub(crate) fn pause(time: Duration, stop: &AtomicBool) -> bool {
    let end = Instant::now() + time;
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(POLL));
    }
}

/// The replies of an earlier run.
#[derive(Debug)]
pub struct Replay {
    /// The run's folder.
    pub folder: PathBuf,
}

impl Provider for Replay {
    fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>> {
        ensure!(
            self.folder.join("run.json").exists(),
            "{} holds no run: name the folder of one, with its run.json",
            self.folder.display()
        );
        store::read_reply(&self.folder, request.query, request.round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_printed() {
        for text in ["openai", "anthropic", "exec:model --x a:b | tail", "mailbox:some/folder", "replay:old"]
        {
            assert_eq!(text.parse::<ProviderName>().unwrap().to_string(), text);
        }
        for text in ["", "OpenAI", "exec", "exec: ", "mailbox:", "replay:", "openai:x", "file:x"] {
            assert!(text.parse::<ProviderName>().unwrap_err().contains("give openai, anthropic"), "{text}");
        }
    }
}
