//! Where the time of a generated plan goes: which of its phases is hot, and that phase's share.
//!
//! The planner's mark is an estimate; a device that runs the plan knows better. A mark is moved in the text that a
//! prompt shows, and the judge measures by itself, so that nothing has to be kept between the two.

use std::collections::BTreeMap;

use dkb_kernels::Plan;
use dkb_runtime::exec::Error;
use dkb_runtime::session::{Prepared, Session};
use dkb_runtime::trace::{median, phases};
use serde::{Deserialize, Serialize};

/// Runs that are not counted: the first grow sizes, and record launches.
const WARMUPS: usize = 3;

/// Runs of which medians are taken.
const RUNS: usize = 9;

/// A phase may be taken for the slowest if it takes this share of the slowest's time: two measurements of phases that
/// take as long as each other do not agree on their order.
const NEARLY: f64 = 0.8;

/// The most that a share is stated as: beyond, it is not measured well enough.
const MOST_SHARE: f64 = 0.999;

/// Median times of a plan, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Profile {
    /// From bound parameters to the answer, of ordinary runs.
    exec_ms: f64,
    /// Of the kernels and the exchange of each phase, by its name, of runs that issue launches one by one.
    phase_ms: BTreeMap<String, f64>,
}

impl Profile {
    /// Runs a plan that is loaded, with its default parameters or those given.
    ///
    /// # Errors
    /// A run that fails.
    pub(super) fn measure(
        session: &Session,
        prepared: &mut Prepared,
        params: &[(String, String)],
    ) -> Result<Profile, Error> {
        let (mut exec_ms, mut samples) = (Vec::new(), BTreeMap::<String, Vec<f64>>::new());
        for run in 0..WARMUPS + RUNS {
            let execution = session.execute(prepared, params)?;
            if run >= WARMUPS {
                exec_ms.push(execution.exec_ms);
            }
        }
        for _ in 0..RUNS {
            for (phase, ms) in phases(&session.execute_apart(prepared, params)?.spans) {
                samples.entry(phase).or_default().push(ms);
            }
        }
        let medians = samples.into_iter().filter_map(|(phase, ms)| Some((phase, median(&ms)?)));
        Ok(Profile { exec_ms: median(&exec_ms).unwrap_or_default(), phase_ms: medians.collect() })
    }

    fn ms(&self, phase: &str) -> f64 {
        self.phase_ms.get(phase).copied().unwrap_or_default()
    }

    /// Moves a plan's mark to its slowest phase, or leaves it to the phase `claimed` if that is as good as the slowest.
    /// Returns the marked phase's share of an ordinary run; of all phases, where those take longer one by one.
    pub(super) fn mark(&self, plan: &mut Plan, claimed: Option<&str>) -> Option<f64> {
        let slowest = plan.phases.iter().max_by(|a, b| self.ms(&a.name).total_cmp(&self.ms(&b.name)))?;
        let nearly = NEARLY * self.ms(&slowest.name);
        let claimed = claimed.filter(|name| self.ms(name) >= nearly);
        let hot = claimed.unwrap_or(&slowest.name).to_owned();
        for phase in &mut plan.phases {
            phase.hot = phase.name == hot;
        }
        let whole = self.exec_ms.max(self.phase_ms.values().sum());
        (whole > 0.0).then(|| (self.ms(&hot) / whole).min(MOST_SHARE))
    }
}

#[cfg(test)]
mod tests {
    use dkb_kernels::text;

    use super::*;

    #[test]
    fn the_mark_moves_to_the_slowest_phase() {
        let mut plan = text::parse(include_str!("../../../prompts/example-cuda.plan")).unwrap();
        let of = |unique: f64, groups: f64| {
            let phase_ms = [("unique".to_owned(), unique), ("sales_groups".to_owned(), groups)];
            Profile { exec_ms: 2.0, phase_ms: phase_ms.into() }
        };
        let hot =
            |plan: &Plan| plan.phases.iter().filter(|p| p.hot).map(|p| p.name.clone()).collect::<Vec<_>>();
        assert_eq!((of(1.5, 0.5).mark(&mut plan, None), hot(&plan)), (Some(0.75), vec!["unique".to_owned()]));
        // As good as the slowest.
        let marked = of(0.9, 1.0).mark(&mut plan, Some("unique"));
        assert_eq!((marked, hot(&plan)), (Some(0.45), vec!["unique".to_owned()]));
        for claimed in [Some("unique"), Some("no phase"), None] {
            let marked = of(0.7, 1.0).mark(&mut plan, claimed);
            assert_eq!((marked, hot(&plan)), (Some(0.5), vec!["sales_groups".to_owned()]));
        }
        assert_eq!(of(9.0, 1.0).mark(&mut plan, None), Some(0.9));
        assert_eq!(of(9.0, 0.0).mark(&mut plan, None), Some(MOST_SHARE));
    }
}
