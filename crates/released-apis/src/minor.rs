//! Minor versions of Kubernetes: `1.36`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use skewbridge_k8s_api::version::Version;

/// A minor version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minor {
    /// The major version, always 1 so far.
    pub major: u16,
    /// The minor version.
    pub minor: u16,
}

/// The text is not a minor version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a minor version of Kubernetes such as 1.36")]
pub struct ParseMinorError(String);

impl Minor {
    /// How many minor versions `self` is newer than `other`; negative if it is older.
    pub fn ahead_of(self, other: Self) -> i32 {
        i32::from(self.minor) - i32::from(other.minor)
    }
}

impl From<Version> for Minor {
    fn from(version: Version) -> Self {
        Self {
            major: version.major,
            minor: version.minor,
        }
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Serialize for Minor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Minor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl FromStr for Minor {
    type Err = ParseMinorError;

    /// Parses `1.36`, `v1.36`, or a complete version such as `v1.36.4`.
    fn from_str(text: &str) -> Result<Self, ParseMinorError> {
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let version = match numbers.matches('.').count() {
            1 => format!("{numbers}.0").parse::<Version>(),
            _ => numbers.parse(),
        };
        version
            .map(Self::from)
            .map_err(|_| ParseMinorError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_versions_are_parsed_with_and_without_a_patch_version() {
        let minor = |text: &str| text.parse::<Minor>().map(|it| it.to_string());
        assert_eq!(minor("1.36"), Ok("1.36".to_owned()));
        assert_eq!(minor("v1.36.4"), Ok("1.36".to_owned()));
        assert_eq!(minor("1.30.2-eks-1552ad0"), Ok("1.30".to_owned()));
        for text in ["", "1", "1.x", "1.36-rc", "36", "1.36.x", "latest"] {
            assert!(minor(text).is_err(), "{text}");
        }
        assert_eq!(
            "latest".parse::<Minor>().unwrap_err().to_string(),
            "\"latest\" is not a minor version of Kubernetes such as 1.36"
        );
    }

    #[test]
    fn minor_versions_are_ordered_numerically() {
        let minor = |text: &str| text.parse::<Minor>().unwrap();
        assert!(minor("1.9") < minor("1.10"));
        assert_eq!(minor("1.36").ahead_of(minor("1.34")), 2);
        assert_eq!(minor("1.34").ahead_of(minor("1.36")), -2);
    }
}
