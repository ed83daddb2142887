//! The way of one query: its rounds so far, what comes next, and what the next prompt says about them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::reply::{fenced, fenced_block};
use super::store::{Judged, Store};
use super::{End, Judge, Prices, Prompts, Reply, Trajectory};
use crate::verdict::{MOST_ROUNDS, Outcome, Round, Verdict};

/// How a reply must look.
const CLOSING: &str = "Reply with exactly one fenced code block, which holds the whole plan.";

/// A query under way.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) query: String,
    past: Vec<Past>,
    /// Seconds of asking and judging in all rounds.
    spent: f64,
    /// Set once there are no more rounds.
    pub(crate) end: Option<End>,
}

/// A round that was judged.
#[derive(Debug)]
struct Past {
    round: Round,
    /// None where the reply held none.
    candidate: Option<String>,
}

/// What a query needs.
pub(crate) enum Next {
    /// A reply to this prompt.
    Ask(String),
    /// A verdict on this reply.
    Judge(Reply),
    /// No more; the end is set.
    Nothing,
}

impl Course {
    /// A query as far as the folder holds it.
    pub(crate) fn read(store: &Store, query: &str) -> Result<Course> {
        let mut course = Course { query: query.to_owned(), past: Vec::new(), spent: 0.0, end: None };
        while let Some(Judged { round, seconds }) = store.verdict(query, course.round())? {
            let asking = store.reply(query, course.round())?.map_or(0.0, |reply| reply.seconds);
            let candidate = store.candidate(query, course.round())?;
            course.spent += asking + seconds;
            course.past.push(Past { round, candidate });
        }
        Ok(course)
    }

    /// The round under way.
    pub(crate) fn round(&self) -> u32 {
        self.past.len() as u32 + 1
    }

    /// What comes next; a prompt is in the folder by then.
    pub(crate) fn next(&mut self, store: &Store, prompts: &dyn Prompts, wall: Duration) -> Result<Next> {
        let accepted = |past: &Past| past.round.verdict.outcome == Outcome::Accepted;
        self.end = if self.past.last().is_some_and(accepted) {
            Some(End::Accepted)
        } else if self.round() > MOST_ROUNDS {
            Some(End::Rounds)
        } else if self.spent >= wall.as_secs_f64() {
            Some(End::Wall)
        } else {
            None
        };
        if self.end.is_some() {
            return Ok(Next::Nothing);
        }
        let (query, round) = (&self.query, self.round());
        if let Some(reply) = store.reply(query, round)? {
            return Ok(Next::Judge(reply));
        }
        if let Some(prompt) = store.prompt(query, round)? {
            return Ok(Next::Ask(prompt));
        }
        let first = match store.prompt(query, 1)? {
            Some(first) => first,
            None => prompts.first(query).with_context(|| format!("{query}: there is no prompt"))?,
        };
        let prompt = self.prompt(first);
        store.add_prompt(query, round, &prompt)?;
        Ok(Next::Ask(prompt))
    }

    /// Ends the round with the verdict on its reply.
    pub(crate) fn judge(
        &mut self,
        store: &Store,
        judge: &mut dyn Judge,
        prices: Option<Prices>,
        reply: &Reply,
    ) -> Result<()> {
        let (query, round) = (&self.query, self.round());
        let begun = Instant::now();
        let (candidate, verdict) = match fenced_block(&reply.text) {
            Ok(plan) => {
                store.add_candidate(query, round, &plan)?;
                let verdict = judge
                    .judge(query, &plan)
                    .with_context(|| format!("{query}, round {round}: no verdict"))?;
                (Some(plan), verdict)
            }
            Err(problem) if reply.cut_off => {
                (None, refused(&format!("{problem}: it was cut off at the limit of tokens")))
            }
            Err(problem) => (None, refused(&problem.to_string())),
        };
        let Reply { tokens_in, tokens_out, .. } = *reply;
        let cost_usd = prices.map(|prices| prices.cost_usd(tokens_in, tokens_out));
        let judged = Judged {
            round: Round { tokens_in, tokens_out, cost_usd, verdict },
            seconds: begun.elapsed().as_secs_f64(),
        };
        store.add_verdict(query, round, &judged)?;
        self.spent += reply.seconds + judged.seconds;
        self.past.push(Past { round: judged.round, candidate });
        Ok(())
    }

    /// What became of the query; None while it is under way.
    pub(crate) fn trajectory(self) -> Option<Trajectory> {
        let rounds = self.past.into_iter().map(|past| past.round).collect();
        Some(Trajectory { query: self.query, rounds, end: self.end? })
    }

    /// The prompt of the round under way: the first one and what has become of the candidates since.
    fn prompt(&self, first: String) -> String {
        let Some(last) = self.past.last() else { return first };
        let mut prompt = first.trim_end().to_owned();
        let mut add = |title: &str, text: &str| {
            prompt.push_str(&format!("\n\n## {title}\n\n{}\n", text.trim_end()));
        };
        let candidate = self.past.iter().rposition(|past| past.candidate.is_some());
        if let Some((at, plan)) = self.candidate(candidate) {
            add(&format!("Your last candidate, of round {}", at + 1), &fenced(plan));
            add("What was found", &self.past[at].round.verdict.feedback);
        }
        if last.candidate.is_none() {
            add(&format!("Your reply of round {}", self.past.len()), &last.round.verdict.feedback);
        }
        let best = self.best();
        if let Some((at, plan)) = self.candidate(best) {
            let speedup = match &self.past[at].round.verdict.timing {
                Some(timing) => format!("{:.3} times as fast as the baseline", timing.speedup),
                None => "not timed".to_owned(),
            };
            let text = match best == candidate {
                true => format!("It is the last one ({speedup})."),
                false => format!("It is of round {} ({speedup}).\n\n{}", at + 1, fenced(plan)),
            };
            add("The best right candidate so far", &text);
        }
        add("Your reply", CLOSING);
        prompt
    }

    fn candidate(&self, at: Option<usize>) -> Option<(usize, &str)> {
        Some((at?, self.past[at?].candidate.as_deref()?))
    }

    /// The fastest candidate with right answers, the first of equals.
    fn best(&self) -> Option<usize> {
        let speedup =
            |at: &usize| self.past[*at].round.verdict.timing.as_ref().map_or(0.0, |timing| timing.speedup);
        (0..self.past.len())
            .rev()
            .filter(|at| self.past[*at].round.verdict.outcome.is_correct())
            .max_by(|a, b| speedup(a).total_cmp(&speedup(b)))
    }
}

/// The verdict on a reply that holds no candidate.
fn refused(reason: &str) -> Verdict {
    Verdict {
        outcome: Outcome::Refused,
        reason: reason.to_owned(),
        feedback: format!("Nothing was run: {reason}."),
        timing: None,
        paper: None,
        plan_sha256: String::new(),
        checks: BTreeMap::new(),
    }
}
