//! Kubernetes versions, as servers report them.

use std::fmt;
use std::str::FromStr;

/// A release version, without vendor suffixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The major version, always 1 so far.
    pub major: u16,
    /// The minor version.
    pub minor: u16,
    /// The patch version.
    pub patch: u16,
}

/// The text is not a Kubernetes version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a Kubernetes version such as v1.34.4")]
pub struct ParseVersionError(String);

/// The maximum length of a suffix: many times that of any distribution.
const MAX_SUFFIX_BYTES: usize = 128;

/// What follows the numbers in a `gitVersion`: the pre-release, the build, or both (`-beta.0+k3s1`).
/// Empty for a release of Kubernetes. Servers with different suffixes may have different APIs.
pub fn suffix(git_version: &str) -> &str {
    let start = git_version.find(['-', '+']).unwrap_or(git_version.len());
    let suffix = &git_version[start..];
    match suffix
        .char_indices()
        .find(|(at, _)| *at >= MAX_SUFFIX_BYTES)
    {
        Some((end, _)) => &suffix[..end],
        None => suffix,
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = ParseVersionError;

    /// Parses a `gitVersion`: `v1.34.4`, `v1.30.2-eks-1552ad0`, `v1.28.15+k3s1`.
    fn from_str(text: &str) -> Result<Self, ParseVersionError> {
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let numbers = numbers.split(['-', '+']).next().unwrap_or_default();
        let mut parts = numbers.split('.').map(|part| {
            part.bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| part.parse().ok())
                .flatten()
        });
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Some(major)), Some(Some(minor)), Some(Some(patch)), None) => Ok(Self {
                major,
                minor,
                patch,
            }),
            _ => Err(ParseVersionError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_suffixes_are_ignored() {
        let version = |text: &str| {
            text.parse::<Version>()
                .map(|it| (it.major, it.minor, it.patch))
        };
        assert_eq!(version("v1.34.4"), Ok((1, 34, 4)));
        assert_eq!(version("v1.30.2-eks-1552ad0"), Ok((1, 30, 2)));
        assert_eq!(version("v1.28.15+k3s1"), Ok((1, 28, 15)));
        for text in [
            "",
            "v1",
            "v1.2",
            "v1.2.x",
            "v1.2.+3",
            "v1.2.3.4",
            "v1.-2.3",
            "v99999.1.1",
        ] {
            assert!(version(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_suffix_distinguishes_pre_releases_and_builds() {
        for (text, expected) in [
            ("v1.36.0", ""),
            ("v1.36.0-beta.0", "-beta.0"),
            ("v1.36.0-alpha.1.12+abc", "-alpha.1.12+abc"),
            ("v1.28.15+k3s1", "+k3s1"),
            ("1.36.0-rc.1", "-rc.1"),
            ("", ""),
        ] {
            assert_eq!(suffix(text), expected, "{text}");
        }
        assert_eq!(suffix(&format!("v1.2.3-{}", "é".repeat(200))).len(), 129);
    }

    #[test]
    fn versions_are_ordered_numerically() {
        assert!("v1.9.9".parse::<Version>().unwrap() < "v1.10.0".parse().unwrap());
    }
}
