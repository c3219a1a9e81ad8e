//! Percentiles of measured times.

use std::time::Duration;

/// The nearest-rank percentile: the smallest sample that at least `percent` of all samples do not
/// exceed. `None` without samples.
pub(crate) fn percentile(samples: &[Duration], percent: u32) -> Option<Duration> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let rank = (sorted.len() * usize::try_from(percent).ok()?).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(samples: impl IntoIterator<Item = u64>) -> Vec<Duration> {
        samples.into_iter().map(Duration::from_millis).collect()
    }

    #[test]
    fn percentiles_are_samples() {
        let hundred = milliseconds((1..=100).rev());
        let rows = [(0, 1), (1, 1), (50, 50), (99, 99), (100, 100)];
        for (percent, expected) in rows {
            let expected = Some(Duration::from_millis(expected));
            assert_eq!(percentile(&hundred, percent), expected, "{percent}");
        }
        let few = milliseconds([30, 10, 20]);
        assert_eq!(percentile(&few, 50), Some(Duration::from_millis(20)));
        assert_eq!(percentile(&few, 99), Some(Duration::from_millis(30)));
        assert_eq!(percentile(&[], 50), None);
    }
}
