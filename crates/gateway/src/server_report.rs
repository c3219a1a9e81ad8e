//! What a server and its bridge report of themselves at `/version`, for the status page.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::HeaderMap;
use serde::Deserialize;
use skewbridge_peer_directory::Identity;

use crate::bridge_headers::reached_by_bridge;

/// The longest version that is kept.
const MAX_VERSION_CHARS: usize = 64;

/// The report of one server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ServerReport {
    /// The version of the binary: `v1.36.4`.
    pub(crate) git_version: Option<String>,
    /// `--emulated-version`, if the server reports it (from 1.33 on): `1.35`.
    pub(crate) emulated: Option<String>,
    /// `--min-compatibility-version`, if the server reports it: `1.35`.
    pub(crate) min_compatible: Option<String>,
    /// The servers that its bridge reaches, if a bridge has answered and named them.
    pub(crate) reaches: Option<BTreeSet<Identity>>,
}

/// The reports of all peers.
#[derive(Debug, Default)]
pub(crate) struct ServerReports(ArcSwap<BTreeMap<Identity, Arc<ServerReport>>>);

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct VersionInfo {
    git_version: String,
    emulation_major: String,
    emulation_minor: String,
    min_compatibility_major: String,
    min_compatibility_minor: String,
}

impl ServerReport {
    /// From a response of `/version`.
    pub(crate) fn parse(headers: &HeaderMap, body: &[u8]) -> Self {
        let info: VersionInfo = serde_json::from_slice(body).unwrap_or_default();
        let text = |text: String| {
            let is_short = !text.is_empty() && text.chars().count() <= MAX_VERSION_CHARS;
            is_short.then_some(text)
        };
        let numbers =
            |major: String, minor: String| Some(format!("{}.{}", text(major)?, text(minor)?));
        Self {
            git_version: text(info.git_version),
            emulated: numbers(info.emulation_major, info.emulation_minor),
            min_compatible: numbers(info.min_compatibility_major, info.min_compatibility_minor),
            reaches: reached_by_bridge(headers),
        }
    }
}

impl ServerReports {
    /// Replaces the report of a peer, and removes those of servers that are no peers any more.
    pub(crate) fn set(
        &self,
        identity: &Identity,
        report: ServerReport,
        is_peer: impl Fn(&Identity) -> bool,
    ) {
        if (self.0.load().get(identity)).is_some_and(|known| **known == report) {
            return;
        }
        let report = Arc::new(report);
        self.0.rcu(|reports| {
            let mut reports = BTreeMap::clone(reports);
            reports.retain(|it, _| is_peer(it));
            reports.insert(identity.clone(), report.clone());
            reports
        });
    }

    /// The report of a peer.
    pub(crate) fn get(&self, identity: &Identity) -> Option<Arc<ServerReport>> {
        self.0.load().get(identity).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge_headers::mark_reached;

    #[test]
    fn versions_are_read_as_each_release_reports_them() {
        let long = format!(
            r#"{{"gitVersion":"{}"}}"#,
            "v".repeat(MAX_VERSION_CHARS + 1)
        );
        for (body, expected) in [
            (
                r#"{"major":"1","minor":"28","gitVersion":"v1.28.15"}"#,
                [Some("v1.28.15"), None, None],
            ),
            (
                r#"{"gitVersion":"v1.36.4","emulationMajor":"1","emulationMinor":"35",
                    "minCompatibilityMajor":"1","minCompatibilityMinor":"34"}"#,
                [Some("v1.36.4"), Some("1.35"), Some("1.34")],
            ),
            (
                r#"{"gitVersion":"v1.36.4","emulationMajor":"1"}"#,
                [Some("v1.36.4"), None, None],
            ),
            (&long, [None; 3]),
            ("<html>", [None; 3]),
        ] {
            let report = ServerReport::parse(&HeaderMap::new(), body.as_bytes());
            let found = [
                &report.git_version,
                &report.emulated,
                &report.min_compatible,
            ];
            assert_eq!(found.map(|it| it.as_deref()), expected, "{body}");
            assert_eq!(report.reaches, None);
        }
    }

    #[test]
    fn a_bridge_names_the_servers_that_it_reaches() {
        let identities = ["apiserver-a", "apiserver-b"].map(|it| Identity::named(it).unwrap());
        for reached in [&identities[..0], &identities[..1], &identities] {
            let mut headers = HeaderMap::new();
            mark_reached(&mut headers, reached.iter());
            let report = ServerReport::parse(&headers, b"{}");
            assert_eq!(report.reaches, Some(reached.iter().cloned().collect()));
        }
    }

    #[test]
    fn reports_of_servers_that_left_are_removed() {
        let [a, b] = ["apiserver-a", "apiserver-b"].map(|it| Identity::named(it).unwrap());
        let reports = ServerReports::default();
        reports.set(&a, ServerReport::default(), |_| true);
        assert!(reports.get(&a).is_some());
        reports.set(&b, ServerReport::default(), |it| *it == b);
        assert!(reports.get(&a).is_none() && reports.get(&b).is_some());
    }
}
