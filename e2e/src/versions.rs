//! Which control planes to judge.

use std::env;

use skewbridge_k8s_api::version::Version;

/// Set by `cargo xtask e2e`: planes apart from each other, each the versions of
/// servers that share an etcd, as in [`DEFAULT`].
const PLANES: &str = "SKEWBRIDGE_E2E_PLANES";

const DEFAULT: &str = include_str!("../default-planes");

/// The planes that the tests are to run on, each the versions of its servers.
pub fn control_planes() -> Vec<Vec<String>> {
    read(&env::var(PLANES).unwrap_or_else(|_| DEFAULT.to_owned()))
}

/// Whether they are others than those of the test command.
pub fn has_custom_control_planes() -> bool {
    control_planes() != read(DEFAULT)
}

/// An old and a new version on one plane that [`VersionSpecificApi`](crate::Special) tells
/// apart: 1.34 and 1.36. None where only others are run on.
pub fn old_and_new_versions() -> Option<[String; 2]> {
    let apart = old_and_new_of(&control_planes());
    if apart.is_none() {
        println!("left out: it needs a plane of 1.34 and 1.36");
    }
    apart
}

fn old_and_new_of(control_planes: &[Vec<String>]) -> Option<[String; 2]> {
    control_planes.iter().find_map(|plane| {
        let minor = |minor| {
            let mut versions = plane.iter();
            versions.find(|it| is_since(it, minor) && !is_since(it, minor + 1))
        };
        Some([minor(34)?.clone(), minor(36)?.clone()])
    })
}

/// Each version of [`control_planes`] once.
pub fn versions() -> Vec<String> {
    let mut versions = control_planes().concat();
    versions.sort_by_key(|version| number(version));
    versions.dedup();
    versions
}

/// The newest of some versions.
pub fn newest(versions: &[String]) -> &str {
    let newest = versions.iter().max_by_key(|version| number(version));
    newest.expect("at least one version")
}

/// The oldest of some versions.
pub fn oldest(versions: &[String]) -> &str {
    let oldest = versions.iter().min_by_key(|version| number(version));
    oldest.expect("at least one version")
}

/// Whether it is of this minor release of Kubernetes 1, or of a later one.
pub fn is_since(version: &str, minor: u16) -> bool {
    let version = number(version);
    (version.major, version.minor) >= (1, minor)
}

fn read(text: &str) -> Vec<Vec<String>> {
    let control_planes = text.split_whitespace();
    let control_planes = control_planes.map(|plane| plane.split('+').map(str::to_owned).collect());
    control_planes.collect()
}

fn number(version: &str) -> Version {
    version.parse().expect("a version such as 1.34.4")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_apart_and_their_versions_joined() {
        let control_planes = read(" 1.34.4+1.36.4  1.28.15\n");
        assert_eq!(control_planes, [vec!["1.34.4", "1.36.4"], vec!["1.28.15"]]);
    }

    #[test]
    fn the_default_planes_can_be_read() {
        let control_planes = read(DEFAULT);
        assert!(!control_planes.is_empty());
        for version in control_planes.concat() {
            assert!(is_since(&version, 24), "{version}");
        }
    }

    #[test]
    fn versions_are_told_apart_only_if_they_share_a_plane() {
        let apart = |text| old_and_new_of(&read(text));
        let both = Some(["1.34.4".to_owned(), "1.36.4".to_owned()]);
        assert_eq!(apart("1.28.15 1.34.4+1.35.8+1.36.4"), both);
        assert_eq!(apart("1.34.4 1.36.4"), None);
        assert_eq!(apart("1.33.13"), None);
        assert!(old_and_new_of(&read(DEFAULT)).is_some());
    }

    #[test]
    fn versions_are_compared_by_number() {
        let versions = ["1.9.9", "1.28.15", "1.28.2"].map(str::to_owned);
        assert_eq!(newest(&versions), "1.28.15");
        assert_eq!(oldest(&versions), "1.9.9");
        assert!(is_since("1.28.15", 28));
        assert!(is_since("1.28.15", 9));
        assert!(!is_since("1.28.15", 29));
        assert!(!is_since("1.9.9", 28));
    }
}
