//! Versions of servers and components against the skew policy.

use skewbridge_released_apis::Minor;

use crate::direction::Direction;
use crate::facts::{Component, Components, Facts};
use crate::finding::{Finding, Severity, Topic};
use crate::skew_policy::{self, MAX_SERVER_SKEW_MINORS, Violation};

/// The findings of the versions of servers, kubelets and other components.
pub(crate) fn findings(facts: &Facts, direction: Direction, target: Minor) -> Vec<Finding> {
    let mut findings = servers(facts, direction, target);
    match &facts.kubelets {
        Ok(kubelets) => findings.extend(
            kubelets
                .iter()
                .filter_map(|it| judged(it, direction, target)),
        ),
        Err(why) => findings.push(unread("kubelets", why)),
    }
    let Components {
        found,
        unread: gaps,
    } = &facts.components;
    findings.extend(found.iter().filter_map(|it| judged(it, direction, target)));
    let gaps = gaps.iter();
    findings.extend(gaps.map(|why| unread("components of the control plane", why)));
    findings.extend(missing(facts));
    findings
}

/// Every cluster with Nodes has these components.
const REQUIRED: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// The components that run somewhere, and were not found.
fn missing(facts: &Facts) -> Vec<Finding> {
    let Components { found, unread } = &facts.components;
    let has_nodes = facts.kubelets.as_ref().is_ok_and(|it| !it.is_empty());
    if !has_nodes || !unread.is_empty() {
        return Vec::new();
    }
    let missing = REQUIRED
        .into_iter()
        .filter(|name| !found.iter().any(|it| it.name == *name));
    let finding = |name| {
        let message = "no Pod, LeaseCandidate or Lease in kube-system names it: compare its version \
                       with the version skew policy yourself";
        Finding::new(Topic::Versions, Severity::NotKnown, name, message)
    };
    missing.map(finding).collect()
}

fn unread(what: &str, why: &str) -> Finding {
    let message = format!("their versions could not be read: {why}");
    Finding::new(Topic::Versions, Severity::NotKnown, what, message)
}

fn servers(facts: &Facts, direction: Direction, target: Minor) -> Vec<Finding> {
    let mut findings = Vec::new();
    let finding = |severity, subject: &str, message: String| {
        Finding::new(Topic::Versions, severity, subject, message)
    };
    for server in &facts.servers {
        let version = match &server.version {
            Ok(version) => *version,
            Err(why) => {
                let message = format!("its version could not be read: {why}");
                findings.push(finding(Severity::NotKnown, &server.name, message));
                continue;
            }
        };
        let minor = Minor::from(version);
        let step = target.ahead_of(minor);
        let wrong_way = match direction {
            Direction::Upgrade => step < 0,
            Direction::Rollback => step > 0,
        };
        if wrong_way {
            let message = match direction {
                Direction::Upgrade => format!("it is {version}, newer than the target {target}"),
                Direction::Rollback => {
                    format!("it is {version}, older than the version {target} to return to")
                }
            };
            findings.push(finding(Severity::Finding, &server.name, message));
        } else if step.abs() > MAX_SERVER_SKEW_MINORS {
            let message = format!(
                "it is {version}; Kubernetes supports one minor version at a time, and {target} is {} away",
                step.abs()
            );
            findings.push(
                finding(Severity::Finding, &server.name, message)
                    .commands([format!(
                        "# upgrade to each minor version in between first: {}",
                        joined(&between(minor, target))
                    )])
                    .planned(),
            );
        }
        if let (Direction::Upgrade, Some(emulated)) = (direction, server.emulated)
            && emulated != minor
        {
            let message = format!(
                "it is {version} and emulates {emulated}: APIs of {minor} are not served yet"
            );
            findings.push(finding(Severity::Note, &server.name, message));
        }
        if let (Direction::Rollback, Some(oldest)) = (direction, server.min_compatibility)
            && target < oldest
        {
            let message = format!(
                "--min-compatibility-version={oldest}: what it stores may not be readable by {target}"
            );
            findings.push(finding(Severity::Finding, &server.name, message));
        }
    }
    findings
}

fn joined(minors: &[Minor]) -> String {
    let minors: Vec<_> = minors.iter().map(Minor::to_string).collect();
    minors.join(", ")
}

/// The minor versions between two, in the order of the steps.
pub(crate) fn between(from: Minor, to: Minor) -> Vec<Minor> {
    let minor = |minor| Minor {
        major: from.major,
        minor,
    };
    if from < to {
        (from.minor.saturating_add(1)..to.minor)
            .map(minor)
            .collect()
    } else {
        let steps = to.minor.saturating_add(1)..from.minor;
        steps.rev().map(minor).collect()
    }
}

/// A component that is out of the policy with servers of the target, or whose version is not known.
fn judged(component: &Component, direction: Direction, target: Minor) -> Option<Finding> {
    let subject = format!("{} on {}", component.name, component.instance);
    let version = match &component.version {
        Ok(version) => *version,
        Err(why) => {
            let message = format!("its version could not be read: {why}");
            return Some(Finding::new(
                Topic::Versions,
                Severity::NotKnown,
                subject,
                message,
            ));
        }
    };
    let violation = skew_policy::violation(&component.name, version.into(), target)?;
    let message = match violation {
        Violation::Newer => format!(
            "it is {version}; it must not be newer than kube-apiserver, which becomes {target}"
        ),
        Violation::TooOld(max_age) => {
            let minors = if max_age == 1 {
                "minor version"
            } else {
                "minor versions"
            };
            format!(
                "it is {version}; with kube-apiserver {target} it may be {max_age} {minors} older at most"
            )
        }
    };
    let finding = Finding::new(Topic::Versions, Severity::Finding, subject, message);
    // The plan upgrades what becomes too old, and returns what becomes too new.
    Some(match (direction, violation) {
        (Direction::Upgrade, Violation::TooOld(_)) | (Direction::Rollback, Violation::Newer) => {
            finding.planned()
        }
        _ => finding,
    })
}
