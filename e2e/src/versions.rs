//! The Kubernetes versions under test.

use std::env;

use skewbridge_k8s_api::version::Version;

/// Set by `cargo xtask e2e`: the control planes, each as the versions of the servers that
/// share an etcd, in the format of [`DEFAULT`].
const PLANES_VARIABLE: &str = "SKEWBRIDGE_E2E_PLANES";

/// Set by `cargo xtask e2e --all`: the versions of which only kube-apiserver was built.
const IN_BETWEEN_VARIABLE: &str = "SKEWBRIDGE_E2E_IN_BETWEEN";

const DEFAULT: &str = include_str!("../default-planes");

/// The control planes under test, each as the versions of its servers.
pub fn control_planes() -> Vec<Vec<String>> {
    parse(&env::var(PLANES_VARIABLE).unwrap_or_else(|_| DEFAULT.to_owned()))
}

/// Whether the control planes differ from the default ones.
pub fn has_custom_control_planes() -> bool {
    control_planes() != parse(DEFAULT)
}

/// An old and a new version on one control plane that differ in
/// [`VersionSpecificApi`](crate::VersionSpecificApi): 1.34, and 1.36 or the first later one. `None` if
/// other versions are under test.
pub fn old_and_new_versions() -> Option<[String; 2]> {
    minors_of_one_plane([34, 36])
}

/// Versions of these minor versions on one control plane, the second one or the first later one.
/// `None` if other versions are under test.
pub fn minors_of_one_plane(minors: [u16; 2]) -> Option<[String; 2]> {
    let versions = minors_of(&control_planes(), minors);
    if versions.is_none() {
        let [old, new] = minors;
        println!("skipped: it needs a control plane of 1.{old}, and 1.{new} or later");
    }
    versions
}

fn minors_of(control_planes: &[Vec<String>], minors: [u16; 2]) -> Option<[String; 2]> {
    control_planes.iter().find_map(|plane| {
        let [old, new] = minors;
        let old = (plane.iter()).find(|it| is_since(it, old) && !is_since(it, old + 1));
        let newer = plane.iter().filter(|it| is_since(it, new));
        let new = newer.min_by_key(|it| parse_version(it));
        Some([old?.clone(), new?.clone()])
    })
}

/// All versions of [`control_planes`] without duplicates.
pub fn versions() -> Vec<String> {
    sorted(control_planes().concat())
}

/// The same, and the versions of which only kube-apiserver was built.
pub fn kube_apiserver_versions() -> Vec<String> {
    let in_between = env::var(IN_BETWEEN_VARIABLE).unwrap_or_default();
    let in_between = in_between.split_whitespace().map(str::to_owned);
    sorted(versions().into_iter().chain(in_between).collect())
}

fn sorted(mut versions: Vec<String>) -> Vec<String> {
    versions.sort_by_key(|version| parse_version(version));
    versions.dedup();
    versions
}

/// The newest of some versions.
pub fn newest(versions: &[String]) -> &str {
    let newest = versions.iter().max_by_key(|version| parse_version(version));
    newest.expect("at least one version")
}

/// The oldest of some versions.
pub fn oldest(versions: &[String]) -> &str {
    let oldest = versions.iter().min_by_key(|version| parse_version(version));
    oldest.expect("at least one version")
}

/// Whether it is this minor version of Kubernetes 1 or a later one.
pub fn is_since(version: &str, minor: u16) -> bool {
    let version = parse_version(version);
    (version.major, version.minor) >= (1, minor)
}

fn parse(text: &str) -> Vec<Vec<String>> {
    let control_planes = text.split_whitespace();
    let control_planes = control_planes.map(|plane| plane.split('+').map(str::to_owned).collect());
    control_planes.collect()
}

fn parse_version(version: &str) -> Version {
    version.parse().expect("a version such as 1.34.4")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_planes_are_separated_and_their_versions_joined() {
        let control_planes = parse(" 1.34.4+1.36.4  1.28.15\n");
        assert_eq!(control_planes, [vec!["1.34.4", "1.36.4"], vec!["1.28.15"]]);
    }

    #[test]
    fn the_default_control_planes_are_valid() {
        let control_planes = parse(DEFAULT);
        assert!(!control_planes.is_empty());
        for version in control_planes.concat() {
            assert!(is_since(&version, 24), "{version}");
        }
    }

    #[test]
    fn old_and_new_versions_share_a_control_plane() {
        let versions = |text| minors_of(&parse(text), [34, 36]);
        let both = Some(["1.34.4".to_owned(), "1.36.4".to_owned()]);
        assert_eq!(versions("1.28.15 1.34.4+1.35.8+1.36.4"), both);
        assert_eq!(versions("1.34.4 1.36.4"), None);
        assert_eq!(versions("1.33.13"), None);
        let next = Some(["1.34.4".to_owned(), "1.37.2".to_owned()]);
        assert_eq!(versions("1.34.4+1.37.2"), next);
        assert!(minors_of(&parse(DEFAULT), [34, 36]).is_some());
        let oldest = minors_of(&parse("1.34.4+1.36.4 1.28.15+1.29.15"), [28, 29]);
        assert_eq!(oldest, Some(["1.28.15".to_owned(), "1.29.15".to_owned()]));
    }

    #[test]
    fn versions_are_compared_numerically() {
        let versions = ["1.9.9", "1.28.15", "1.28.2"].map(str::to_owned);
        assert_eq!(newest(&versions), "1.28.15");
        assert_eq!(oldest(&versions), "1.9.9");
        assert!(is_since("1.28.15", 28));
        assert!(is_since("1.28.15", 9));
        assert!(!is_since("1.28.15", 29));
        assert!(!is_since("1.9.9", 28));
    }
}
