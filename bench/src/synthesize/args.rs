//! The options of a synthesis: as typed, and as resolved.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use dkb_runtime::tpch::workload;

use super::http::{self, Http, HttpOptions, Protocol};
use super::provider::{Exec, Mailbox, Provider, ProviderName, Replay};
use super::{Config, Prices};
use crate::verdict::{Environment, Run};

/// The wait after the first failed request.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Options of a synthesis.
#[derive(Debug, Args)]
pub struct SynthesizeArgs {
    /// Who writes the plans: openai, anthropic, exec:CMD, mailbox:DIR or replay:DIR
    ///
    /// openai is any endpoint that speaks OpenAI's chat completions. A command gets the prompt on standard input and
    /// prints the reply. In a mailbox, QUERY-RR.prompt.md appears and QUERY-RR.reply.md is awaited. replay takes
    /// the replies of an earlier run's folder.
    #[arg(long, value_name = "PROVIDER")]
    pub provider: ProviderName,
    /// The model, as its provider names it
    #[arg(long, value_name = "NAME")]
    pub model: String,
    /// TPC-H queries, such as q06,q14, or all
    #[arg(
        long,
        visible_alias = "queries",
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub query: Vec<String>,
    /// What the plan's source is written in
    #[arg(long, value_enum, default_value_t = Framework::Cuda)]
    pub framework: Framework,
    /// What of the baseline plan may change: its hot phase, or everything
    #[arg(long, value_enum, default_value_t = Level::Full)]
    pub level: Level,
    /// Blocks to leave out of the prompt
    #[arg(long, value_enum, value_name = "BLOCKS", value_delimiter = ',')]
    pub without: Vec<Block>,
    /// The folder of the run; a run that was stopped goes on there
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
    /// Where the provider's endpoint is, such as http://localhost:8000/v1
    #[arg(long, value_name = "URL")]
    pub base_url: Option<String>,
    /// The environment variable that holds the key [default: OPENAI_API_KEY or ANTHROPIC_API_KEY]
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// Limit of a reply's tokens [default: the server's, or 32000 for anthropic]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_tokens: Option<u64>,
    /// Seconds that one request or command may take
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout: u64,
    /// Seconds of asking and judging after which a query gets no further round
    #[arg(long, value_name = "N", default_value_t = 900, value_parser = clap::value_parser!(u64).range(1..))]
    pub wall: u64,
    /// Queries under way at once; judging takes turns [default: 1, or all for a mailbox]
    ///
    /// With 1, no model is asked while a plan is timed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub jobs: Option<u32>,
    /// US dollars per million tokens of prompts
    #[arg(long, value_name = "USD", requires = "price_out", value_parser = price)]
    pub price_in: Option<f64>,
    /// US dollars per million tokens of replies
    #[arg(long, value_name = "USD", requires = "price_in", value_parser = price)]
    pub price_out: Option<f64>,
}

/// What a plan's source is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Framework {
    /// CUDA C++.
    Cuda,
    /// Triton.
    Triton,
}

impl From<Framework> for dkb_kernels::Framework {
    fn from(framework: Framework) -> Self {
        match framework {
            Framework::Cuda => dkb_kernels::Framework::Cuda,
            Framework::Triton => dkb_kernels::Framework::Triton,
        }
    }
}

/// What of a baseline plan may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// The hot phase.
    Core,
    /// Everything but what the query demands.
    Full,
}

impl From<Level> for dkb_kernels::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::Core => dkb_kernels::Level::Core,
            Level::Full => dkb_kernels::Level::Full,
        }
    }
}

/// A block that a prompt can do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Block {
    /// What the device is like.
    Gpu,
    /// What the data is like.
    Data,
}

impl SynthesizeArgs {
    /// What to do, given who wrote the baseline plans (see [`Run::baseline`]) and where it will be judged.
    ///
    /// # Errors
    /// A query is not known.
    pub fn config(&self, baseline: String, environment: Environment) -> Result<Config> {
        let known: Vec<String> = workload::queries().into_iter().map(|query| query.name).collect();
        let queries = if self.query == ["all"] { known.clone() } else { self.query.clone() };
        if let Some(query) = queries.iter().find(|query| !known.contains(query)) {
            bail!("--query: there is no query {query:?}: give all, or names among {}", known.join(","));
        }
        let mut without = self.without.clone();
        without.sort_unstable();
        without.dedup();
        let jobs = self.jobs.map(|jobs| jobs as usize);
        Ok(Config {
            run: Run {
                model: self.model.clone(),
                provider: self.provider.to_string(),
                framework: name(self.framework),
                level: name(self.level),
                without: without.into_iter().map(name).collect(),
                baseline,
                environment,
            },
            jobs: jobs.unwrap_or(match self.provider {
                ProviderName::Mailbox(_) => queries.len(),
                _ => 1,
            }),
            queries,
            wall: Duration::from_secs(self.wall),
            prices: self.price_in.zip(self.price_out).map(|(in_usd, out_usd)| Prices { in_usd, out_usd }),
        })
    }

    /// The provider; nothing is sent yet.
    ///
    /// # Errors
    /// There is no key, or the URL cannot be used.
    pub fn provider(&self) -> Result<Box<dyn Provider>> {
        let timeout = Duration::from_secs(self.timeout);
        let http = |protocol: Protocol| -> Result<Box<dyn Provider>> {
            let variable = self.key_env.as_deref().unwrap_or(protocol.key_env());
            Ok(Box::new(Http::new(HttpOptions {
                protocol,
                base_url: self.base_url.clone(),
                key: http::key(variable, self.base_url.is_none() || self.key_env.is_some())?,
                model: self.model.clone(),
                max_tokens: self.max_tokens,
                timeout,
                first_wait: FIRST_WAIT,
            })?))
        };
        Ok(match &self.provider {
            ProviderName::OpenAi => http(Protocol::OpenAi)?,
            ProviderName::Anthropic => http(Protocol::Anthropic)?,
            ProviderName::Exec(command) => Box::new(Exec { command: command.clone(), timeout }),
            ProviderName::Mailbox(folder) => Box::new(Mailbox { folder: folder.clone() }),
            ProviderName::Replay(folder) => Box::new(Replay { folder: folder.clone() }),
        })
    }
}

/// A value's name on the command line.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

fn price(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if value >= 0.0 && f64::is_finite(value) => Ok(value),
        _ => Err("give US dollars, such as 1.25".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: SynthesizeArgs,
    }

    fn parse(more: &str) -> Result<SynthesizeArgs, String> {
        let line = format!("dkb-bench --model m --output o {more}");
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.args).map_err(|error| error.to_string())
    }

    #[test]
    fn options_become_a_run() {
        let args = parse("--provider anthropic --without data,gpu --price-in 3 --price-out 15").unwrap();
        let config = args.config("dkb".to_owned(), Environment::default()).unwrap();
        let run = Run {
            model: "m".to_owned(),
            provider: "anthropic".to_owned(),
            framework: "cuda".to_owned(),
            level: "full".to_owned(),
            without: vec!["gpu".to_owned(), "data".to_owned()],
            baseline: "dkb".to_owned(),
            environment: Environment::default(),
        };
        assert_eq!(config.run, run);
        assert_eq!((config.queries.len(), config.jobs, config.wall.as_secs()), (22, 1, 900));
        assert_eq!(config.prices, Some(Prices { in_usd: 3.0, out_usd: 15.0 }));

        let args = parse("--provider mailbox:m --query q06,q14,q01 --framework triton --level core").unwrap();
        let config = args.config("dkb".to_owned(), Environment::default()).unwrap();
        assert_eq!(
            (config.run.framework.as_str(), config.run.level.as_str(), config.jobs),
            ("triton", "core", 3)
        );
        assert_eq!(config.prices, None);
    }

    #[test]
    fn bad_options_are_refused() {
        assert!(parse("--provider file:x").unwrap_err().contains("give openai"));
        assert!(parse("--provider openai --price-in 3").unwrap_err().contains("--price-out"));
        assert!(parse("--provider openai --jobs 0").unwrap_err().contains("--jobs"));
        let config = parse("--provider openai --query q06,q23")
            .unwrap()
            .config("dkb".to_owned(), Environment::default());
        assert!(config.unwrap_err().to_string().contains("\"q23\""));
        let missing = parse("--provider openai --key-env DKB_NO_SUCH_KEY").unwrap().provider();
        assert!(missing.err().unwrap().to_string().contains("set DKB_NO_SUCH_KEY"));
        let url = parse("--provider openai --base-url http://user:secret@host").unwrap().provider();
        let message = url.err().unwrap().to_string();
        assert!(message.contains("--base-url") && !message.contains("secret"), "{message}");
    }
}
