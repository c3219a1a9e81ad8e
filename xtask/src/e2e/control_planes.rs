//! The control planes that the tests run on, and the programs to build for them.

use std::collections::BTreeSet;
use std::{env, fmt};

use super::version::Version;
use crate::step::StepError;

/// The control planes of the test command: two versions that can share an etcd, and one from
/// before WebSocket streams. The test program uses the same by default.
const DEFAULT: &str = include_str!("../../../e2e/default-planes");

/// Additional control planes for `--all`.
const ADDITIONAL: &str = "1.34.4+1.35.8+1.36.4 1.28.15+1.29.15 1.36.4+1.37.1";

/// The minor versions between those of all control planes, for `--all`. Only their kube-apiservers are built:
/// a server is replaced by each next one.
const IN_BETWEEN: &str = "1.30.14 1.31.4 1.32.13 1.33.13";

/// Environment variable with the versions of the only control plane to use.
const VERSIONS_VARIABLE: &str = "E2E_VERSIONS";

/// The most minor versions between servers on one etcd. Kubernetes supports one; two work.
/// With more, the older server may exit: 1.28 does beside 1.36.
const MAX_MINOR_VERSION_SKEW: u16 = 2;

/// The programs of each version: folders under `e2e/kubernetes`.
pub(super) const PROGRAMS_OF_EACH_VERSION: [&str; 2] = ["kube-apiserver", "kubectl"];

/// The programs of versions that share a control plane: they install one, and run on its nodes.
/// The newest version has them, too, for tests with one leader.
const PROGRAMS_OF_MIXED_CONTROL_PLANES: [&str; 3] =
    ["kube-controller-manager", "kube-scheduler", "kubeadm"];

/// How much to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SuiteSelection {
    /// As much as the test command runs.
    Default,
    /// The additional control planes and the long tests too.
    All,
}

impl SuiteSelection {
    /// Long tests are `#[ignore]`d; this flag includes them.
    pub(super) fn test_flag(self) -> Option<&'static str> {
        match self {
            Self::Default => None,
            Self::All => Some("--include-ignored"),
        }
    }
}

/// Control planes, each as the versions of its kube-apiservers. Written as the test program
/// reads them: `1.34.4+1.36.4 1.28.15`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Planes(Vec<Vec<Version>>);

impl Planes {
    /// The control planes for a flag and the environment. Warns of versions too far apart.
    pub(super) fn choose(extent: SuiteSelection) -> Result<Self, StepError> {
        let chosen = env::var(VERSIONS_VARIABLE).unwrap_or_default();
        let planes = Self::of(extent, &chosen).map_err(StepError)?;
        if let Some(warning) = planes.skew_warning() {
            eprintln!("warning: {warning}");
        }
        Ok(planes)
    }

    /// A control plane of one server for each of these versions.
    pub(super) fn of_single_servers(words: &[&str]) -> Result<Self, StepError> {
        let versions = listed(&words.join(" "), &[',', ' ']).map_err(StepError)?;
        if versions.is_empty() {
            let why = "api-data needs the versions to query, such as 1.34.4";
            return Err(StepError(why.to_owned()));
        }
        Ok(Self(versions.into_iter().map(|it| vec![it]).collect()))
    }

    fn of(extent: SuiteSelection, chosen: &str) -> Result<Self, String> {
        let chosen =
            listed(chosen, &[',', ' ']).map_err(|why| format!("{VERSIONS_VARIABLE}: {why}"))?;
        if !chosen.is_empty() {
            return Ok(Self(vec![chosen]));
        }
        let text = match extent {
            SuiteSelection::Default => DEFAULT.to_owned(),
            SuiteSelection::All => format!("{DEFAULT} {ADDITIONAL}"),
        };
        let planes = text.split_whitespace().map(|plane| listed(plane, &['+']));
        planes.collect::<Result<_, _>>().map(Self)
    }

    /// The versions of which only kube-apiserver is built.
    pub(super) fn in_between(extent: SuiteSelection) -> Result<Vec<Version>, StepError> {
        let is_chosen = env::var(VERSIONS_VARIABLE).is_ok_and(|it| !it.trim().is_empty());
        match extent {
            SuiteSelection::All if !is_chosen => listed(IN_BETWEEN, &[' ']).map_err(StepError),
            _ => Ok(Vec::new()),
        }
    }

    /// Every version once, newest first.
    pub(super) fn versions(&self) -> impl Iterator<Item = Version> {
        let versions: BTreeSet<_> = self.0.iter().flatten().copied().collect();
        versions.into_iter().rev()
    }

    /// The programs to build of a version.
    pub(super) fn programs(&self, version: Version) -> Vec<&'static str> {
        let newest = self.versions().next() == Some(version);
        let mut mixed = self.0.iter().filter(|plane| plane.len() > 1);
        let further = newest || mixed.any(|plane| plane.contains(&version));
        let further = further.then_some(PROGRAMS_OF_MIXED_CONTROL_PLANES);
        PROGRAMS_OF_EACH_VERSION
            .into_iter()
            .chain(further.into_iter().flatten())
            .collect()
    }

    /// A warning if the versions of a control plane are too far apart to share an etcd.
    fn skew_warning(&self) -> Option<String> {
        self.0.iter().find_map(|plane| {
            let (oldest, newest) = (plane.iter().min()?, plane.iter().max()?);
            (newest.minor.abs_diff(oldest.minor) > MAX_MINOR_VERSION_SKEW).then(|| {
                format!(
                    "{oldest} and {newest} are more than {MAX_MINOR_VERSION_SKEW} minor versions apart: on \
                     one etcd the older server may exit because of stored objects that it does not know"
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

    fn planes(extent: SuiteSelection, chosen: &str) -> Planes {
        Planes::of(extent, chosen).expect("planes")
    }

    fn versions(planes: &Planes) -> Vec<String> {
        planes
            .versions()
            .map(|version| version.to_string())
            .collect()
    }

    #[test]
    fn the_default_control_planes_are_those_of_the_test_program() {
        let planes = planes(SuiteSelection::Default, "");
        assert_eq!(planes.to_string(), DEFAULT.trim());
        assert_eq!(versions(&planes), ["1.36.4", "1.34.4", "1.28.15"]);
    }

    #[test]
    fn all_control_planes_are_the_default_and_the_additional_ones() {
        let planes = planes(SuiteSelection::All, "");
        assert_eq!(
            planes.to_string(),
            "1.34.4+1.36.4 1.28.15 1.34.4+1.35.8+1.36.4 1.28.15+1.29.15 1.36.4+1.37.1"
        );
        assert_eq!(
            versions(&planes),
            ["1.37.1", "1.36.4", "1.35.8", "1.34.4", "1.29.15", "1.28.15"]
        );
        assert_eq!(planes.skew_warning(), None);
    }

    #[test]
    fn with_the_versions_in_between_each_minor_version_has_the_next_one() {
        let all = planes(SuiteSelection::All, "");
        let in_between = listed(IN_BETWEEN, &[' ']).expect(IN_BETWEEN);
        let minors: BTreeSet<_> = all
            .versions()
            .chain(in_between)
            .map(|it| it.minor)
            .collect();
        assert!(minors.into_iter().eq(28..=37));
    }

    #[test]
    fn versions_from_the_environment_are_the_only_control_plane() {
        for text in ["1.33.5,1.34.4", "1.33.5 1.34.4", " v1.33.5, 1.34.4,"] {
            for extent in [SuiteSelection::Default, SuiteSelection::All] {
                assert_eq!(planes(extent, text).to_string(), "1.33.5+1.34.4", "{text}");
            }
        }
        let blank = planes(SuiteSelection::Default, " ");
        assert_eq!(blank, planes(SuiteSelection::Default, ""));
    }

    #[test]
    fn a_word_that_is_not_a_released_version_is_named() {
        for wrong in ["1.34", "latest"] {
            let text = format!("1.34.4,{wrong}");
            let why = Planes::of(SuiteSelection::Default, &text).expect_err(wrong);
            assert!(why.starts_with("E2E_VERSIONS: "), "{why}");
            assert!(why.contains(&format!("{wrong:?}")), "{why}");
        }
    }

    #[test]
    fn versions_too_far_apart_cause_a_warning() {
        assert_eq!(
            planes(SuiteSelection::Default, "1.34.4,1.36.4").skew_warning(),
            None
        );
        let warning = planes(SuiteSelection::Default, "1.36.4,1.34.4,1.33.5").skew_warning();
        let warning = warning.expect("a warning");
        assert!(warning.starts_with("1.33.5 and 1.36.4 are"), "{warning}");
    }

    #[test]
    fn versions_of_a_mixed_control_plane_and_the_newest_have_all_programs() {
        let rows: [(&str, &[&str]); 4] = [
            ("1.34.4+1.36.4 1.28.15", &["1.36.4", "1.34.4"]),
            ("1.34.4+1.35.8 1.36.4", &["1.36.4", "1.35.8", "1.34.4"]),
            ("1.34.4 1.33.5", &["1.34.4"]),
            ("1.33.5", &["1.33.5"]),
        ];
        for (text, expected) in rows {
            let planes = text.split_whitespace().map(|plane| listed(plane, &['+']));
            let planes = Planes(planes.collect::<Result<_, _>>().expect(text));
            let with: Vec<_> = planes
                .versions()
                .filter(|version| planes.programs(*version).contains(&"kubeadm"))
                .map(|version| version.to_string())
                .collect();
            assert_eq!(with, expected, "{text}");
        }
    }
}
