//! Models behind HTTP: two protocols, and what is tried again.
//!
//! Invariant: the key is in a header of the request and nowhere else; no message holds it.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::HeaderMap;

use super::provider::{MOST_REPLY_BYTES, Provider, Reply, Request, estimate, pause};

/// How often a request is sent at most.
const MOST_TRIES: u32 = 6;

/// The longest wait that a server may ask for.
const MOST_WAIT: Duration = Duration::from_secs(600);

/// Characters of an answer that a message shows.
const SHOWN_CHARS: usize = 500;

/// The version of Anthropic's protocol.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// How requests and answers look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// OpenAI's chat completions.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
}

impl Protocol {
    /// The endpoint that is used without `--base-url`, which needs a key.
    pub fn base_url(self) -> &'static str {
        match self {
            Protocol::OpenAi => "https://api.openai.com/v1",
            Protocol::Anthropic => "https://api.anthropic.com",
        }
    }

    /// The environment variable that holds the key.
    pub fn key_env(self) -> &'static str {
        match self {
            Protocol::OpenAi => "OPENAI_API_KEY",
            Protocol::Anthropic => "ANTHROPIC_API_KEY",
        }
    }

    fn path(self) -> &'static str {
        match self {
            Protocol::OpenAi => "/chat/completions",
            Protocol::Anthropic => "/v1/messages",
        }
    }

    /// Headers beside the content type.
    fn headers(self, key: Option<&str>) -> Vec<(&'static str, String)> {
        match self {
            Protocol::OpenAi => {
                key.map(|key| ("authorization", format!("Bearer {key}"))).into_iter().collect()
            }
            Protocol::Anthropic => [("anthropic-version", ANTHROPIC_VERSION.to_owned())]
                .into_iter()
                .chain(key.map(|key| ("x-api-key", key.to_owned())))
                .collect(),
        }
    }

    /// A request's body. Anthropic's needs a limit of tokens.
    fn body(self, model: &str, prompt: &str, max_tokens: Option<u64>) -> Value {
        let mut body = json!({ "model": model, "messages": [{ "role": "user", "content": prompt }] });
        let limit = match self {
            Protocol::OpenAi => max_tokens.map(|limit| ("max_completion_tokens", limit)),
            Protocol::Anthropic => Some(("max_tokens", max_tokens.unwrap_or(32_000))),
        };
        if let Some((name, limit)) = limit {
            body[name] = limit.into();
        }
        body
    }

    /// The parts of an answer; None where it is no answer of the protocol.
    fn parts(self, answer: &Value) -> Option<Parts> {
        let tokens = |name: &str| answer["usage"][name].as_u64();
        match self {
            Protocol::OpenAi => {
                let choice = answer.get("choices")?.get(0)?;
                Some(Parts {
                    // A refusal has no content.
                    text: choice.get("message")?["content"].as_str().unwrap_or_default().to_owned(),
                    cut_off: choice["finish_reason"] == "length",
                    tokens: tokens("prompt_tokens").zip(tokens("completion_tokens")),
                })
            }
            Protocol::Anthropic => {
                let blocks = answer.get("content")?.as_array()?;
                let cached = ["cache_creation_input_tokens", "cache_read_input_tokens"].map(tokens);
                let cached: u64 = cached.into_iter().flatten().sum();
                Some(Parts {
                    text: blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
                    cut_off: answer["stop_reason"] == "max_tokens",
                    tokens: tokens("input_tokens").map(|tokens| tokens + cached).zip(tokens("output_tokens")),
                })
            }
        }
    }
}

/// What an answer says.
struct Parts {
    text: String,
    cut_off: bool,
    /// Of prompt and reply, where the server counts them.
    tokens: Option<(u64, u64)>,
}

/// What a model is asked with.
#[derive(Clone)]
pub struct HttpOptions {
    /// How requests and answers look.
    pub protocol: Protocol,
    /// What the protocol's path is appended to; None for the protocol's own.
    pub base_url: Option<String>,
    /// The key; servers of one's own may need none.
    pub key: Option<String>,
    /// The model, as the server names it.
    pub model: String,
    /// Limit of a reply's tokens; None for the server's own, or 32000 where it has none.
    pub max_tokens: Option<u64>,
    /// How long one try may take.
    pub timeout: Duration,
    /// The wait after the first failed try; it doubles with each.
    pub first_wait: Duration,
}

/// A model behind HTTP.
pub struct Http {
    options: HttpOptions,
    url: String,
    agent: Agent,
}

/// Why a try failed.
enum Failure {
    /// Another try fails alike.
    Lasting(String),
    /// Another try may succeed, after the time that the server asks for.
    Passing(String, Option<Duration>),
}

impl Http {
    /// A model; nothing is sent yet.
    ///
    /// # Errors
    /// The URL cannot be used.
    pub fn new(options: HttpOptions) -> Result<Http> {
        let base = options.base_url.as_deref().unwrap_or(options.protocol.base_url()).trim_end_matches('/');
        // Credentials within a URL would appear in messages.
        let usable =
            (base.starts_with("http://") || base.starts_with("https://")) && !base.contains(['@', '?', '#']);
        ensure!(usable, "--base-url: give http://HOST:PORT/PATH or https://..., and the key by --key-env");
        let url = format!("{base}{}", options.protocol.path());
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirected request would carry the key to another host.
            .max_redirects(0)
            .timeout_global(Some(options.timeout))
            .build();
        Ok(Http { options, url, agent: config.new_agent() })
    }

    /// Sends a request once.
    fn post(&self, body: &str) -> Result<(Value, Parts), Failure> {
        let mut request = self.agent.post(&self.url).header("content-type", "application/json");
        for (name, value) in self.options.protocol.headers(self.options.key.as_deref()) {
            request = request.header(name, value);
        }
        let mut response = request.send(body).map_err(|error| self.failure(&error))?;
        let status = response.status();
        let text =
            response.body_mut().with_config().limit(MOST_REPLY_BYTES).lossy_utf8(true).read_to_string();
        if !status.is_success() {
            let text = text.unwrap_or_default();
            let said = format!("{status}: {}", self.shown(&message(&text)));
            return Err(match status.as_u16() {
                408 | 409 | 429 | 500..=599 => Failure::Passing(said, retry_after(response.headers())),
                _ => Failure::Lasting(said),
            });
        }
        let text = text.map_err(|error| self.failure(&error))?;
        let garbled = |what: &str| Failure::Passing(format!("{what}: {}", self.shown(&message(&text))), None);
        let answer: Value = serde_json::from_str(&text).map_err(|_| garbled("the answer is not JSON"))?;
        let parts =
            self.options.protocol.parts(&answer).ok_or_else(|| garbled("the answer holds no message"))?;
        Ok((answer, parts))
    }

    fn failure(&self, error: &ureq::Error) -> Failure {
        use ureq::Error;
        let said = self.shown(&error.to_string());
        match error {
            Error::Timeout(_) => Failure::Passing(format!("{said}; --timeout allows more"), None),
            Error::Io(_)
            | Error::Protocol(_)
            | Error::ConnectionFailed
            | Error::HostNotFound
            | Error::BodyStalled => Failure::Passing(said, None),
            _ => Failure::Lasting(said),
        }
    }

    /// The start of what a server says, without the key that it may quote.
    fn shown(&self, text: &str) -> String {
        let text = match self.options.key.as_deref() {
            Some(key) if !key.is_empty() => text.replace(key, "***"),
            _ => text.to_owned(),
        };
        text.chars().take(SHOWN_CHARS).collect()
    }
}

impl Provider for Http {
    fn ask(&self, request: &Request<'_>) -> Result<Option<Reply>> {
        let asked = Instant::now();
        let Http { options, url, .. } = self;
        let body = options.protocol.body(&options.model, request.prompt, options.max_tokens).to_string();
        let mut backoff = options.first_wait;
        let mut tries = 1;
        let (raw, parts) = loop {
            match self.post(&body) {
                Ok(answer) => break answer,
                Err(Failure::Lasting(said)) => bail!("{url}: {said}"),
                Err(Failure::Passing(said, after)) => {
                    ensure!(
                        tries < MOST_TRIES,
                        "{url}: {said}; tried {tries} times. Start again later with the same options: what is \
                         done is kept"
                    );
                    let wait = after.unwrap_or_default().max(backoff.mul_f64(jitter()));
                    ensure!(
                        wait <= MOST_WAIT,
                        "{url}: {said}; the server asks to wait {} s. Start again then with the same options: \
                         what is done is kept",
                        wait.as_secs()
                    );
                    ensure!(pause(wait, request.stop), "{url}: {said}");
                }
            }
            tries += 1;
            backoff *= 2;
        };
        let (tokens_in, tokens_out) =
            parts.tokens.unwrap_or_else(|| (estimate(request.prompt), estimate(&parts.text)));
        Ok(Some(Reply {
            text: parts.text,
            tokens_in,
            tokens_out,
            estimated: parts.tokens.is_none(),
            cut_off: parts.cut_off,
            seconds: asked.elapsed().as_secs_f64(),
            raw,
        }))
    }
}

/// The key in an environment variable, without white space around it.
///
/// # Errors
/// `required`, and there is none.
pub(crate) fn key(variable: &str, required: bool) -> Result<Option<String>> {
    let key = std::env::var(variable).ok().map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
    ensure!(key.is_some() || !required, "set {variable} to the key, or name its variable by --key-env");
    let printable = key.as_deref().is_none_or(|key| key.bytes().all(|byte| byte.is_ascii_graphic()));
    ensure!(printable, "{variable} holds no key: a key is of printable ASCII characters");
    Ok(key)
}

/// A factor between 0.5 and 1, so that requests that failed together do not come back together.
fn jitter() -> f64 {
    0.5 + RandomState::new().hash_one(()) as f64 / u64::MAX as f64 / 2.0
}

/// The wait that a server asks for, where it does so in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// What an error's body says in the form of either protocol, or the body itself.
fn message(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let message =
        parsed["error"]["message"].as_str().or(parsed["error"].as_str()).or(parsed["message"].as_str());
    message.unwrap_or(body).trim().to_owned()
}
