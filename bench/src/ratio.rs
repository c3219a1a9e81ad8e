//! Ratios within rounds, and their goals.

use serde::Serialize;

use crate::report::Spread;

/// The goal of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// The ratio is for information.
    None,
}

impl Goal {
    pub(crate) fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
            Self::None => true,
        }
    }

    /// Two cells: the goal, and whether it is met.
    pub(crate) fn cells(self, decimals: usize, met: bool) -> [String; 2] {
        let goal = match self {
            Self::AtLeast(least) => format!("at least {least:.decimals$}"),
            Self::AtMost(most) => format!("at most {most:.decimals$}"),
            Self::None => return Default::default(),
        };
        [goal, if met { "met" } else { "missed" }.to_owned()]
    }
}

/// One candidate over the other, round by round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) of: String,
    pub(crate) spread: Spread,
    pub(crate) goal: Goal,
    /// Whether the median meets the goal.
    pub(crate) met: bool,
}

impl Ratio {
    /// `None` without rounds.
    pub(crate) fn new(
        of: String,
        goal: Goal,
        pairs: impl Iterator<Item = (f64, f64)>,
    ) -> Option<Self> {
        let spread = Spread::of(pairs.map(|(one, other)| one / other))?;
        Some(Self {
            of,
            spread,
            goal,
            met: goal.is_met_by(spread.median),
        })
    }

    pub(crate) fn cells(&self) -> [String; 5] {
        let [median, spread] = self.spread.cells(2);
        let [goal, met] = self.goal.cells(2, self.met);
        [self.of.clone(), median, spread, goal, met]
    }
}

/// Every round starts with another candidate, so that none always runs after the same one.
pub(crate) fn rotated(count: usize, by: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |index| (index + by) % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_round_starts_with_another_candidate() {
        let orders: Vec<Vec<usize>> = (0..3).map(|by| rotated(3, by).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    fn ratio(goal: Goal, pairs: &[(f64, f64)]) -> Ratio {
        Ratio::new("x".to_owned(), goal, pairs.iter().copied()).unwrap()
    }

    #[test]
    fn a_ratio_meets_its_goal_by_its_median() {
        let pairs = [(3.0, 2.0), (1.0, 1.0), (4.0, 2.0)];
        assert!(ratio(Goal::AtLeast(1.5), &pairs).met);
        assert!(!ratio(Goal::AtLeast(1.6), &pairs).met);
        assert!(ratio(Goal::AtMost(1.5), &pairs).met);
        assert!(!ratio(Goal::AtMost(1.4), &pairs).met);
    }

    #[test]
    fn a_ratio_without_a_goal_is_neither_met_nor_missed() {
        let cells = ratio(Goal::None, &[(3.0, 2.0)]).cells();
        assert_eq!(cells, ["x", "1.50", "1.50..1.50", "", ""]);
    }

    #[test]
    fn without_measurements_there_is_no_ratio() {
        let none = std::iter::empty();
        assert_eq!(Ratio::new("x".to_owned(), Goal::AtLeast(1.0), none), None);
    }
}
