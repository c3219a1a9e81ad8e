//! Which control planes the tests run on, and what has to be built for them.

use std::collections::BTreeSet;
use std::{env, fmt};

use super::version::Version;
use crate::step::Failed;

/// Those of the test command: neighbours that can share an etcd, and one from
/// before WebSocket streams. The tests take the same when they are told none.
const DEFAULT: &str = include_str!("../../../e2e/default-planes");

/// Further ones, for `--all`: with the versions between and beside.
const FURTHER: &str = "1.34.4+1.35.8+1.36.4 1.28.15+1.29.15";

/// The versions of one plane to take instead.
const CHOSEN: &str = "E2E_VERSIONS";

/// How many minor versions servers on one etcd may be apart. Kubernetes promises
/// one; two work, and far more do not: 1.28 beside 1.36 ends.
const NEIGHBOURS: u16 = 2;

/// What each version is built of: a folder under `e2e/kubernetes`.
pub(super) const EACH: [&str; 2] = ["kube-apiserver", "kubectl"];

/// What only the newest version is built of: a plane has one leader.
const NEWEST: &str = "kube-controller-manager";

/// How much to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// What the test command does.
    Default,
    /// The further planes too, and the tests that are left to them.
    All,
}

impl Extent {
    /// Tests that take long are ignored unless all are asked for.
    pub(super) fn test_flag(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::All => Some("--include-ignored"),
        }
    }
}

/// Control planes, each the versions of its kube-apiservers. As text, in the way
/// in which the tests are told: `1.34.4+1.36.4 1.28.15`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Planes(Vec<Vec<Version>>);

impl Planes {
    /// As the user wants them, by flag or environment; says what may go wrong.
    pub(super) fn choose(extent: Extent) -> Result<Self, Failed> {
        let chosen = env::var(CHOSEN).unwrap_or_default();
        let planes = Self::of(extent, &chosen).map_err(Failed)?;
        if let Some(warning) = planes.strangers() {
            eprintln!("warning: {warning}");
        }
        Ok(planes)
    }

    fn of(extent: Extent, chosen: &str) -> Result<Self, String> {
        let chosen = listed(chosen, &[',', ' ']).map_err(|why| format!("{CHOSEN}: {why}"))?;
        if !chosen.is_empty() {
            return Ok(Self(vec![chosen]));
        }
        let text = match extent {
            Extent::Default => DEFAULT.to_owned(),
            Extent::All => format!("{DEFAULT} {FURTHER}"),
        };
        let planes = text.split_whitespace().map(|plane| listed(plane, &['+']));
        planes.collect::<Result<_, _>>().map(Self)
    }

    /// Every version once, from the newest.
    pub(super) fn versions(&self) -> impl Iterator<Item = Version> {
        let versions: BTreeSet<_> = self.0.iter().flatten().copied().collect();
        versions.into_iter().rev()
    }

    /// What has to be built of a version.
    pub(super) fn programs(&self, version: Version) -> Vec<&'static str> {
        let newest = self.versions().next() == Some(version);
        EACH.into_iter().chain(newest.then_some(NEWEST)).collect()
    }

    /// A plane whose versions are too far apart to share an etcd.
    fn strangers(&self) -> Option<String> {
        self.0.iter().find_map(|plane| {
            let (oldest, newest) = (plane.iter().min()?, plane.iter().max()?);
            (newest.minor.abs_diff(oldest.minor) > NEIGHBOURS).then(|| {
                format!(
                    "{oldest} and {newest} are more than {NEIGHBOURS} minor versions apart: on \
                     one etcd the older server may end over stored objects that it does not know"
                )
            })
        })
    }
}

impl fmt::Display for Planes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plane = |versions: &Vec<Version>| {
            let versions: Vec<_> = versions.iter().map(Version::to_string).collect();
            versions.join("+")
        };
        let planes: Vec<_> = self.0.iter().map(plane).collect();
        f.write_str(&planes.join(" "))
    }
}

/// Released versions, written as `1.34.4`.
fn listed(text: &str, separators: &[char]) -> Result<Vec<Version>, String> {
    let words = text.split(separators).map(str::trim);
    let words = words.filter(|word| !word.is_empty());
    words.map(str::parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planes(extent: Extent, chosen: &str) -> Planes {
        Planes::of(extent, chosen).expect("planes")
    }

    fn versions(planes: &Planes) -> Vec<String> {
        planes
            .versions()
            .map(|version| version.to_string())
            .collect()
    }

    #[test]
    fn the_default_planes_are_those_of_the_tests() {
        let planes = planes(Extent::Default, "");
        assert_eq!(planes.to_string(), DEFAULT.trim());
        assert_eq!(versions(&planes), ["1.36.4", "1.34.4", "1.28.15"]);
    }

    #[test]
    fn all_planes_are_the_default_ones_and_further_ones() {
        let planes = planes(Extent::All, "");
        assert_eq!(
            planes.to_string(),
            "1.34.4+1.36.4 1.28.15 1.34.4+1.35.8+1.36.4 1.28.15+1.29.15"
        );
        assert_eq!(
            versions(&planes),
            ["1.36.4", "1.35.8", "1.34.4", "1.29.15", "1.28.15"]
        );
        assert_eq!(planes.strangers(), None);
    }

    #[test]
    fn chosen_versions_are_one_plane_instead() {
        for text in ["1.33.5,1.34.4", "1.33.5 1.34.4", " v1.33.5, 1.34.4,"] {
            for extent in [Extent::Default, Extent::All] {
                assert_eq!(planes(extent, text).to_string(), "1.33.5+1.34.4", "{text}");
            }
        }
        let blank = planes(Extent::Default, " ");
        assert_eq!(blank, planes(Extent::Default, ""));
    }

    #[test]
    fn what_is_no_released_version_is_named() {
        for wrong in ["1.34", "latest"] {
            let text = format!("1.34.4,{wrong}");
            let why = Planes::of(Extent::Default, &text).expect_err(wrong);
            assert!(why.starts_with("E2E_VERSIONS: "), "{why}");
            assert!(why.contains(&format!("{wrong:?}")), "{why}");
        }
    }

    #[test]
    fn strangers_are_warned_about() {
        assert_eq!(planes(Extent::Default, "1.34.4,1.36.4").strangers(), None);
        let warning = planes(Extent::Default, "1.36.4,1.34.4,1.33.5").strangers();
        let warning = warning.expect("a warning");
        assert!(warning.starts_with("1.33.5 and 1.36.4 are"), "{warning}");
    }

    #[test]
    fn only_the_newest_version_has_a_controller_manager() {
        let planes = planes(Extent::All, "");
        let with: Vec<_> = planes
            .versions()
            .filter(|version| planes.programs(*version).contains(&NEWEST))
            .map(|version| version.to_string())
            .collect();
        assert_eq!(with, ["1.36.4"]);
    }
}
