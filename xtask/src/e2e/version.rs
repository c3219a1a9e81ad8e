//! Released versions of Kubernetes. `skewbridge-k8s-api` parses versions too; xtask does not depend
//! on it, so that it builds quickly.

use std::fmt;
use std::str::FromStr;

/// A released version such as `1.34.4`, ordered by age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) minor: u16,
    pub(super) patch: u16,
}

impl FromStr for Version {
    type Err = String;

    /// Reads `1.34.4` and `v1.34.4`. Vendor suffixes and pre-releases are refused: the module
    /// registry does not have them.
    fn from_str(text: &str) -> Result<Self, String> {
        let plain = text.strip_prefix('v').unwrap_or(text);
        let numbers = plain.strip_prefix("1.").and_then(|it| it.split_once('.'));
        numbers
            .and_then(|(minor, patch)| {
                let (minor, patch) = (minor.parse().ok()?, patch.parse().ok()?);
                Some(Self { minor, patch })
            })
            // No signs and no leading zeros.
            .filter(|version| version.to_string() == plain)
            .ok_or_else(|| {
                format!("{text:?} is not a released version of Kubernetes such as 1.34.4")
            })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}.{}", self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_versions_are_read_and_written() {
        for text in ["1.34.4", "1.28.15", "1.30.0"] {
            assert_eq!(text.parse::<Version>().expect(text).to_string(), text);
            assert_eq!(format!("v{text}").parse::<Version>(), text.parse());
        }
    }

    #[test]
    fn a_text_that_is_not_a_released_version_is_refused() {
        for wrong in [
            "",
            "1.34",
            "latest",
            "1.34.4.1",
            "1.34.4-rc.1",
            "1.34.4+k3s1",
            "2.0.0",
            "1.034.4",
            "1.+34.4",
            "1.99999.0",
            "vv1.34.4",
        ] {
            let why = wrong.parse::<Version>().expect_err(wrong);
            assert!(why.starts_with(&format!("{wrong:?} is not")), "{why}");
        }
    }

    #[test]
    fn versions_are_ordered_by_number() {
        let version = |text: &str| text.parse::<Version>().expect(text);
        assert!(version("1.9.9") < version("1.10.0"));
        assert!(version("1.28.9") < version("1.28.15"));
    }
}
