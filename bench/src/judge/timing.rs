//! The speed of a candidate beside the baseline's: pairs of runs in lock-step, and an interval that assumes nothing
//! about how times are distributed.

use crate::verdict::{LEAST_SPEEDUP, PaperTiming, Timing};

/// Pairs that are run and not counted.
pub(super) const WARMUP_PAIRS: usize = 2;

/// The fewest pairs that count.
pub(super) const LEAST_PAIRS: usize = 31;

/// The most pairs that count: beyond, the machine is too noisy.
pub(super) const MOST_PAIRS: usize = 301;

/// Half the width of the interval of the log ratio that ends the measurement: 1 %.
pub(super) const WITHIN: f64 = 0.01;

/// The same on host devices, which share their cores with everything else: such times are shown, never published.
pub(super) const WITHIN_ON_HOST: f64 = 0.1;

/// The median of samples, of which there is at least one.
fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    dkb_runtime::trace::median(&samples.into_iter().collect::<Vec<_>>()).unwrap_or(f64::NAN)
}

/// The 95 % interval of the median by order statistics: the k-th smallest and k-th largest sample, k being the
/// largest with P(B < k) <= 0.025 for B ~ Binomial(n, 1/2).
///
/// Source: David and Nagaraja, *Order Statistics*, 7.1.
pub(super) fn order_interval(samples: &[f64]) -> (f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let mut probability = 0.5f64.powi(n as i32);
    let mut below = 0.0;
    let mut k = 0;
    // 2^-301 is a normal double.
    while k < n / 2 && below + probability <= 0.025 {
        below += probability;
        probability *= (n - k) as f64 / (k + 1) as f64;
        k += 1;
    }
    let k = k.max(1);
    (sorted[k - 1], sorted[n - k])
}

/// The figures of pairs (baseline, candidate) in milliseconds.
pub(super) fn timing(pairs: &[(f64, f64)]) -> Timing {
    let logs: Vec<f64> = pairs.iter().map(|(base, candidate)| (base / candidate).ln()).collect();
    let (low, high) = order_interval(&logs);
    Timing {
        base_ms: median(pairs.iter().map(|p| p.0)),
        candidate_ms: median(pairs.iter().map(|p| p.1)),
        speedup: median(logs.iter().copied()).exp(),
        interval: (low.exp(), high.exp()),
        pairs: pairs.to_vec(),
    }
}

/// Whether enough pairs have been run.
pub(super) fn is_settled(pairs: &[(f64, f64)], within: f64) -> bool {
    if pairs.len() < LEAST_PAIRS {
        return false;
    }
    let (low, high) = timing(pairs).interval;
    (high / low).ln() / 2.0 <= within
}

/// The paper's rule on the same samples: medians of the first five pairs that count.
pub(super) fn paper(pairs: &[(f64, f64)]) -> PaperTiming {
    let first = &pairs[..pairs.len().min(5)];
    let base_ms = median(first.iter().map(|p| p.0));
    let candidate_ms = median(first.iter().map(|p| p.1));
    PaperTiming { base_ms, candidate_ms, accepted: base_ms / candidate_ms >= LEAST_SPEEDUP }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics_of_known_sizes() {
        // Tabulated k for 95 %: n = 31 gives the 10th, n = 50 the 18th, n = 100 the 40th from either end.
        for (n, k) in [(31, 10), (50, 18), (100, 40)] {
            let samples: Vec<f64> = (1..=n).map(f64::from).rev().collect();
            assert_eq!(order_interval(&samples), (f64::from(k), f64::from(n + 1 - k)), "{n}");
        }
        let most: Vec<f64> = (1..=301).map(f64::from).collect();
        let (low, high) = order_interval(&most);
        assert!((133.0..136.0).contains(&low) && low + high == 302.0, "{low} {high}");
    }

    #[test]
    fn a_speedup_by_hand() {
        let pairs: Vec<(f64, f64)> = (0..31).map(|k| (3.0 + f64::from(k) * 1e-3, 2.0)).collect();
        let timing = timing(&pairs);
        assert!((timing.base_ms - 3.015).abs() < 1e-12 && timing.candidate_ms == 2.0);
        assert!((timing.speedup - 1.5075).abs() < 1e-9);
        assert!((timing.interval.0 - 1.5045).abs() < 1e-9 && (timing.interval.1 - 1.5105).abs() < 1e-9);
        assert!(is_settled(&pairs, WITHIN) && !is_settled(&pairs[..30], WITHIN));
        assert_eq!(paper(&pairs), PaperTiming { base_ms: 3.002, candidate_ms: 2.0, accepted: true });
    }

    #[test]
    fn noise_does_not_settle() {
        let pairs: Vec<(f64, f64)> = (0..60).map(|k| (if k % 2 == 0 { 1.0 } else { 2.0 }, 1.0)).collect();
        assert!(!is_settled(&pairs, WITHIN_ON_HOST));
    }
}
