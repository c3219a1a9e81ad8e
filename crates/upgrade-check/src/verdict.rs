//! All findings, and the verdict.

use std::fmt;

use serde::Serialize;
use skewbridge_released_apis::{Minor, Release};

use crate::direction::Direction;
use crate::facts::Facts;
use crate::finding::{Finding, Severity};
use crate::{apis, components, fields, servers, storage};

/// The result for one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Nothing is to be done first.
    Go,
    /// There are findings.
    Findings,
    /// There is no finding, but something could not be checked.
    NotKnown,
}

impl Verdict {
    /// The exit code of the command.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Go => 0,
            Self::Findings => 2,
            Self::NotKnown => 1,
        }
    }
}

/// What was found for one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Upgrade or rollback.
    pub direction: Direction,
    /// The target.
    pub target: Minor,
    /// The verdict.
    pub verdict: Verdict,
    /// Sorted by topic, severity and subject.
    pub findings: Vec<Finding>,
}

/// All findings of a cluster whose servers are of some of the known `releases`, and become `target`.
pub fn evaluate(
    facts: &Facts,
    direction: Direction,
    releases: &[Release],
    target: &Release,
) -> Report {
    let minor = Minor::from(target.version);
    let changes = apis::changes(&facts.servers, releases, target);
    let mut findings = apis::findings(facts, &changes, minor);
    findings.extend(apis::unknown_releases(&facts.servers, releases));
    findings.extend(storage::findings(facts, direction, target));
    if direction == Direction::Rollback {
        findings.extend(fields::findings(facts, minor));
    }
    findings.extend(components::findings(facts, direction, minor));
    findings.extend(servers::findings(facts));
    findings.sort_by(|one, other| {
        let key = |it: &Finding| (it.topic, it.severity);
        (key(one), &one.subject, &one.message).cmp(&(key(other), &other.subject, &other.message))
    });
    findings.dedup();
    let has = |severity| findings.iter().any(|it| it.severity == severity);
    let verdict = if has(Severity::Finding) {
        Verdict::Findings
    } else if has(Severity::NotKnown) {
        Verdict::NotKnown
    } else {
        Verdict::Go
    };
    Report {
        direction,
        target: minor,
        verdict,
        findings,
    }
}

impl fmt::Display for Report {
    /// The verdict in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.direction {
            Direction::Upgrade => "upgrade",
            Direction::Rollback => "rollback",
        };
        let count = |severity| {
            let findings = self.findings.iter();
            findings.filter(|it| it.severity == severity).count()
        };
        let unknown = count(Severity::NotKnown);
        write!(f, "{step} to {}: ", self.target)?;
        match (self.verdict, count(Severity::Finding)) {
            (Verdict::Go, _) => write!(f, "go"),
            (Verdict::Findings, 1) => write!(f, "1 finding"),
            (Verdict::Findings, findings) => write!(f, "{findings} findings"),
            (Verdict::NotKnown, _) => write!(f, "not known"),
        }?;
        match unknown {
            0 => Ok(()),
            1 => write!(f, ", 1 check could not be made"),
            _ => write!(f, ", {unknown} checks could not be made"),
        }
    }
}
