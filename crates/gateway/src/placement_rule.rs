//! The rules by which a request is placed on a server.

use std::fmt;

/// A rule that decides which server gets a request. The order is that of their weight: a server
/// that breaks only a later rule is better than one that breaks an earlier rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// The server can be expected to answer. Only the local server is reported for this rule: of the
    /// peers the available ones are tried first.
    Available,
    /// The server serves the resource (KEP-4020).
    Serves,
    /// The server enforces the admission policies that match the request.
    Admission,
    /// The server has every field of the kind that another server has.
    Fields,
    /// The server is not older than the component that sends the request.
    Version,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 5] = [
        Self::Available,
        Self::Serves,
        Self::Admission,
        Self::Fields,
        Self::Version,
    ];

    /// The name in metrics and in the access log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Available => "available",
            Self::Serves => "serves",
            Self::Admission => "admission",
            Self::Fields => "fields",
            Self::Version => "version",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Available => 1 << 4,
            Self::Serves => 1 << 3,
            Self::Admission => 1 << 2,
            Self::Fields => 1 << 1,
            Self::Version => 1,
        }
    }
}

/// A set of rules, for example those that a server does not satisfy. Ordered by the weight of the
/// rules in it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleSet(u8);

impl RuleSet {
    /// No rule.
    pub const EMPTY: Self = Self(0);

    /// Adds a rule if the condition holds.
    pub fn insert_if(&mut self, condition: bool, rule: Rule) {
        if condition {
            self.0 |= rule.bit();
        }
    }

    /// Whether a rule is in the set.
    pub fn contains(self, rule: Rule) -> bool {
        self.0 & rule.bit() != 0
    }

    /// The rules that are not in another set.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there is no rule in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The rules of the set, the weightiest first.
    pub fn iter(self) -> impl Iterator<Item = Rule> {
        Rule::ALL
            .into_iter()
            .filter(move |rule| self.contains(*rule))
    }

    /// The weightiest rule of the set.
    pub fn first(self) -> Option<Rule> {
        self.iter().next()
    }
}

impl From<Rule> for RuleSet {
    fn from(rule: Rule) -> Self {
        Self(rule.bit())
    }
}

impl fmt::Debug for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for RuleSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, rule) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", rule.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_with_a_weightier_rule_is_greater() {
        let set = |rules: &[Rule]| {
            let mut set = RuleSet::EMPTY;
            for rule in rules {
                set.insert_if(true, *rule);
            }
            set
        };
        let ascending = [
            set(&[]),
            set(&[Rule::Version]),
            set(&[Rule::Fields]),
            set(&[Rule::Version, Rule::Fields]),
            set(&[Rule::Admission]),
            set(&[Rule::Admission, Rule::Version]),
            set(&[Rule::Serves]),
            set(&[Rule::Available]),
        ];
        assert!(ascending.is_sorted());
        assert_eq!(
            set(&[Rule::Version, Rule::Admission]).first(),
            Some(Rule::Admission)
        );
        assert_eq!(
            set(&[Rule::Version, Rule::Admission]).to_string(),
            "admission, version"
        );
        assert_eq!(RuleSet::EMPTY.first(), None);
        let all = set(&Rule::ALL);
        assert_eq!(
            all.without(set(&[Rule::Available, Rule::Version]))
                .to_string(),
            "serves, admission, fields"
        );
    }
}
