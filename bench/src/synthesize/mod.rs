//! Plans written by a model: for each query, rounds of prompt, reply and verdict until a plan is accepted.
//!
//! Each round's prompt holds all that the model is told, so that any provider serves and a run goes on from its
//! folder alone. Invariant: providers may be asked by several threads, but prompts are composed and plans judged by
//! the caller's thread, one at a time.

mod args;
mod course;
mod http;
mod provider;
mod reply;
mod store;

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use args::{Block, Framework, Level, SynthesizeArgs};
pub use http::{Http, HttpOptions, Protocol};
pub use provider::{Exec, Mailbox, Provider, ProviderName, Replay, Reply, Request};

use crate::verdict::{Round, Run, Verdict};
use course::{Course, Next};
use store::Store;

/// Judges one candidate plan of a query.
pub trait Judge {
    /// The verdict on a plan, whatever is wrong with it.
    ///
    /// # Errors
    /// Judging itself failed, which is no word on the plan.
    fn judge(&mut self, query: &str, plan_text: &str) -> Result<Verdict>;
}

/// Writes the prompt of a query.
pub trait Prompts {
    /// The prompt of the first round.
    ///
    /// # Errors
    /// The query has none, and why.
    fn first(&self, query: &str) -> Result<String>;
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What `run.json` says.
    pub run: Run,
    /// Names of queries, each once.
    pub queries: Vec<String>,
    /// Queries under way at once.
    pub jobs: usize,
    /// Time of asking and judging after which a query gets no further round.
    pub wall: Duration,
    /// What tokens cost, where that is known.
    pub prices: Option<Prices>,
}

/// US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prices {
    /// Of prompts.
    pub in_usd: f64,
    /// Of replies.
    pub out_usd: f64,
}

impl Prices {
    fn cost_usd(self, tokens_in: u64, tokens_out: u64) -> f64 {
        (tokens_in as f64 * self.in_usd + tokens_out as f64 * self.out_usd) / 1e6
    }
}

/// The rounds of a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Trajectory {
    /// The query's name.
    pub query: String,
    /// In order; the first is round 1.
    pub rounds: Vec<Round>,
    /// Why there are no more.
    pub end: End,
}

/// Why a trajectory ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The last plan was accepted.
    Accepted,
    /// There were [`MOST_ROUNDS`](crate::verdict::MOST_ROUNDS) rounds.
    Rounds,
    /// The query's time was over.
    Wall,
    /// The replayed run has no more replies.
    Replies,
}

/// Asks for plans of each query and has them judged, round after round, and keeps everything in the folder `out`;
/// goes on with what is there. Trajectories are in the order of the queries.
///
/// # Errors
/// Asking, judging or writing failed, or `out` holds another run. What is done is kept, so that the same call goes on.
pub fn synthesize(
    config: &Config,
    prompts: &dyn Prompts,
    judge: &mut dyn Judge,
    provider: &dyn Provider,
    out: &Path,
) -> Result<Vec<Trajectory>> {
    let Config { queries, jobs, .. } = config;
    ensure!(*jobs > 0, "at least one query must be under way at once");
    ensure!(queries.iter().collect::<BTreeSet<_>>().len() == queries.len(), "a query is named twice");
    let plain =
        |name: &String| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    ensure!(queries.iter().all(plain), "names of queries are of letters, digits and underscores");

    let store = &Store::open(out, &config.run)?;
    let mut courses = Vec::new();
    for query in queries {
        courses.push(Course::read(store, query)?);
    }
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let ask = |at: usize, query: String, round: u32, prompt: String| {
            let sender = sender.clone();
            scope.spawn(move || {
                let request = Request { query: &query, round, prompt: &prompt, stop };
                // The reply is kept at once: it may have cost money, and the judge may be busy for long.
                let answer = provider.ask(&request).and_then(|reply| {
                    reply.iter().try_for_each(|reply| store.add_reply(&query, round, reply))?;
                    Ok(reply)
                });
                // Nobody receives it once the run has failed.
                let _ = sender.send((at, answer.with_context(|| format!("{query}, round {round}"))));
            });
        };
        let mut work = || -> Result<()> {
            let mut waiting: VecDeque<usize> = (0..courses.len()).collect();
            let mut replied = VecDeque::new();
            let mut asked = 0;
            loop {
                while asked + replied.len() < *jobs {
                    let Some(at) = waiting.pop_front() else { break };
                    let course = &mut courses[at];
                    match course.next(store, prompts, config.wall)? {
                        Next::Ask(prompt) => {
                            ask(at, course.query.clone(), course.round(), prompt);
                            asked += 1;
                        }
                        Next::Judge(reply) => replied.push_back((at, reply)),
                        Next::Nothing => {}
                    }
                }
                if let Some((at, reply)) = replied.pop_front() {
                    courses[at].judge(store, judge, config.prices, &reply)?;
                    waiting.push_front(at);
                } else if asked > 0 {
                    let (at, answer) = receiver.recv().context("no reply can come any more")?;
                    asked -= 1;
                    match answer? {
                        Some(reply) => replied.push_back((at, reply)),
                        None => courses[at].end = Some(End::Replies),
                    }
                } else {
                    return Ok(());
                }
            }
        };
        let worked = work();
        stop.store(worked.is_err(), Ordering::Relaxed);
        worked
    })?;
    Ok(courses.into_iter().filter_map(Course::trajectory).collect())
}
