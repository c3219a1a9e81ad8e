//! Adds up the reports of several bridges. Without I/O.

use std::collections::HashMap;

use serde::Serialize;
use skewbridge_gateway::vanishing::{Call, CallStats, Reason, Report};
use skewbridge_k8s_api::time::Time;
use skewbridge_released_apis::Minor;

/// What a bridge answered.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) bridge: String,
    pub(super) report: Result<Report, String>,
}

/// The reports of all bridges as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Merged {
    pub(super) bridges: Vec<BridgeSummary>,
    /// Sorted by API and caller.
    pub(super) calls: Vec<Call>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) other: Option<CallStats>,
}

/// A bridge, without its calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BridgeSummary {
    pub(super) bridge: String,
    #[serde(flatten)]
    pub(super) counted: Option<Counted>,
    /// Why it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

/// What a bridge counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counted {
    #[serde(serialize_with = "text")]
    pub(super) since: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) newest_server: Option<Minor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<Minor>,
    pub(super) target_known: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature of serde")]
fn text<S: serde::Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}

impl Merged {
    /// The bridges that did not answer, and why.
    pub(super) fn problems(&self) -> impl Iterator<Item = (&str, &str)> {
        let bridges = self.bridges.iter();
        bridges.filter_map(|it| Some((&*it.bridge, it.error.as_deref()?)))
    }

    /// The bridges that do not know what vanishes, and why.
    pub(super) fn unknown_targets(&self) -> impl Iterator<Item = (&str, String)> {
        let bridges = self.bridges.iter();
        bridges.filter_map(|it| {
            let counted = it.counted.as_ref().filter(|it| !it.target_known)?;
            let why = match (counted.newest_server, counted.target) {
                (Some(newest), Some(target)) => format!(
                    "it does not know what {target} removes from {newest}: only calls to deprecated \
                     APIs are counted"
                ),
                _ => "it does not know the version of its kube-apiserver yet".to_owned(),
            };
            Some((&*it.bridge, why))
        })
    }

    /// What the bridges that answered count.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Counted> {
        self.bridges.iter().filter_map(|it| it.counted.as_ref())
    }
}

/// Whether the target release does not serve the API of a call.
pub(super) fn is_unserved(call: &Call) -> bool {
    call.reason != Reason::Deprecated
}

/// What distinguishes calls.
type Key = (
    (String, String, String),
    (String, Option<String>, String),
    String,
);

fn key(call: &Call) -> Key {
    (
        (
            call.group.clone(),
            call.version.clone(),
            call.resource.clone(),
        ),
        (
            call.user.clone(),
            call.impersonated_user.clone(),
            call.user_agent.clone(),
        ),
        call.verb.clone(),
    )
}

/// Adds up calls of the same caller to the same API. Each was counted by one bridge.
pub(super) fn merge(answers: Vec<Answer>) -> Merged {
    let mut bridges = Vec::new();
    let mut calls = HashMap::<Key, Call>::new();
    let mut other: Option<CallStats> = None;
    for Answer { bridge, report } in answers {
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                bridges.push(BridgeSummary {
                    bridge,
                    counted: None,
                    error: Some(error),
                });
                continue;
            }
        };
        bridges.push(BridgeSummary {
            bridge,
            counted: Some(Counted {
                since: report.since,
                newest_server: report.newest_server,
                target: report.target,
                target_known: report.target_known,
            }),
            error: None,
        });
        for call in report.calls {
            match calls.get_mut(&key(&call)) {
                Some(known) => add(known, call),
                None => drop(calls.insert(key(&call), call)),
            }
        }
        if let Some(stats) = report.other {
            match &mut other {
                Some(other) => other.add(stats),
                None => other = Some(stats),
            }
        }
    }
    let mut calls: Vec<_> = calls.into_values().collect();
    calls.sort_by(|a, b| a.key().cmp(&b.key()));
    Merged {
        bridges,
        calls,
        other,
    }
}

/// Bridges with different targets may have different reasons: the most severe one counts.
fn add(known: &mut Call, call: Call) {
    known.stats.add(call.stats);
    if call.reason < known.reason {
        known.reason = call.reason;
        known.unavailable_in = call.unavailable_in;
    } else if call.reason == known.reason {
        let minors = [known.unavailable_in, call.unavailable_in];
        known.unavailable_in = minors.into_iter().flatten().min();
    }
    if known.replacement.is_none() {
        known.replacement = call.replacement;
    }
}
