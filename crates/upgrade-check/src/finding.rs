//! Findings, as the report shows them.

use serde::Serialize;

/// What a finding is about. Findings are printed in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Topic {
    /// Removed and added APIs.
    Apis,
    /// Calls of deprecated APIs.
    Calls,
    /// Stored objects.
    Storage,
    /// Fields that the target does not know.
    Fields,
    /// Versions and the skew policy.
    Versions,
    /// Readiness and certificates.
    Servers,
}

/// What a finding means for the verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// To be resolved first.
    Finding,
    /// It could not be checked.
    NotKnown,
    /// It changes, and nothing has to be done.
    Note,
}

/// One finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What it is about.
    pub topic: Topic,
    /// What it means.
    pub severity: Severity,
    /// The API, the server, the Node, ...
    pub subject: String,
    /// What is the case.
    pub message: String,
    /// What to do: commands of a shell, or sentences that begin with `#`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Whether the plan has steps of its own that resolve it.
    #[serde(skip)]
    pub planned: bool,
}

impl Finding {
    pub(crate) fn new(
        topic: Topic,
        severity: Severity,
        subject: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            topic,
            severity,
            subject: subject.into(),
            message: message.into(),
            commands: Vec::new(),
            planned: false,
        }
    }

    /// The same, resolved by steps of the plan.
    #[must_use]
    pub(crate) fn planned(mut self) -> Self {
        self.planned = true;
        self
    }

    /// The same with what to do.
    #[must_use]
    pub(crate) fn commands(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.commands.extend(commands);
        self
    }
}

/// `1 object`, `2 objects`.
pub(crate) fn counted(count: u64, at_least: bool, noun: &str) -> String {
    let plural = if count == 1 && !at_least { "" } else { "s" };
    let at_least = if at_least { "at least " } else { "" };
    format!("{at_least}{count} {noun}{plural}")
}
