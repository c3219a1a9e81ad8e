//! What a check has found: pure data, with its exit code.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// A group of findings. Sections are printed in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Section {
    Configuration,
    Certificates,
    Ports,
    Upstream,
    Registry,
    Peers,
    Clocks,
    Kernel,
    Node,
    Bridges,
    Requests,
    Clients,
}

impl Section {
    /// The heading.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Certificates => "certificates and CAs",
            Self::Ports => "ports",
            Self::Upstream => "kube-apiserver",
            Self::Registry => "registry of peers",
            Self::Peers => "peers",
            Self::Clocks => "clocks",
            Self::Kernel => "kernel limits",
            Self::Node => "bridge on this node",
            Self::Bridges => "bridges of the cluster",
            Self::Requests => "requests through the bridge",
            Self::Clients => "clients",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Outcome {
    /// ✓
    Ok,
    /// !: the bridge works, and an administrator should know this.
    Warning,
    /// ✗
    Failure,
    /// ?: this could not be checked from here.
    NotKnown,
}

/// What to do: a sentence, and the parts of it that programs can apply.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remedy {
    pub(crate) text: String,
    /// The flag of `skewbridge serve` to set, with its dashes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) flag: Option<String>,
    /// Its new value, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    /// The file to replace or to edit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<PathBuf>,
    /// A command of a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) command: Option<String>,
}

impl Remedy {
    /// A flag to set; the text describes its value.
    pub(crate) fn flag(flag: &str, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            flag: Some(flag.to_owned()),
            ..Self::default()
        }
    }

    /// A flag to set to this value.
    pub(crate) fn set(flag: &str, value: impl fmt::Display) -> Self {
        Self {
            value: Some(value.to_string()),
            ..Self::flag(flag, format!("set {flag}={value}"))
        }
    }

    /// A file to replace or to edit.
    pub(crate) fn file(file: &Path, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            file: Some(file.to_owned()),
            ..Self::default()
        }
    }

    /// A command to run.
    pub(crate) fn command(command: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            command: Some(command.into()),
            ..Self::default()
        }
    }

    /// The same with the file that the flag names.
    #[must_use]
    pub(crate) fn of_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// The same with the flag that names the file.
    #[must_use]
    pub(crate) fn of_flag(mut self, flag: &str) -> Self {
        self.flag = Some(flag.to_owned());
        self
    }

    /// The same with another text.
    #[must_use]
    pub(crate) fn text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }
}

/// One line of a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    pub(crate) section: Section,
    /// What is checked, as a statement that is true if the outcome is ✓.
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    /// Details, or what is wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<Remedy>,
}

impl Finding {
    fn new(section: Section, name: impl Into<String>, outcome: Outcome) -> Self {
        Self {
            section,
            name: name.into(),
            outcome,
            message: String::new(),
            remedy: None,
        }
    }

    pub(crate) fn ok(section: Section, name: impl Into<String>) -> Self {
        Self::new(section, name, Outcome::Ok)
    }

    pub(crate) fn warning(
        section: Section,
        name: impl Into<String>,
        message: impl Into<String>,
        remedy: Remedy,
    ) -> Self {
        Self {
            remedy: Some(remedy),
            ..Self::new(section, name, Outcome::Warning).message(message)
        }
    }

    /// Every failure has a remedy.
    pub(crate) fn failure(
        section: Section,
        name: impl Into<String>,
        message: impl Into<String>,
        remedy: Remedy,
    ) -> Self {
        Self {
            remedy: Some(remedy),
            ..Self::new(section, name, Outcome::Failure).message(message)
        }
    }

    pub(crate) fn not_known(
        section: Section,
        name: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self::new(section, name, Outcome::NotKnown).message(why)
    }

    /// The same with details.
    #[must_use]
    pub(crate) fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }
}

/// All findings of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    findings: Vec<Finding>,
}

/// How many findings have each outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    pub(crate) ok: usize,
    pub(crate) warnings: usize,
    pub(crate) failures: usize,
    pub(crate) not_known: usize,
}

impl Report {
    /// In the order of sections; within a section, in the given order.
    pub(crate) fn new(mut findings: Vec<Finding>) -> Self {
        findings.sort_by_key(|it| it.section);
        Self { findings }
    }

    pub(crate) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = &Finding> {
        let all = self.findings.iter();
        all.filter(|it| it.outcome == Outcome::Failure)
    }

    pub(crate) fn summary(&self) -> Summary {
        let count = |outcome| {
            self.findings
                .iter()
                .filter(|it| it.outcome == outcome)
                .count()
        };
        Summary {
            ok: count(Outcome::Ok),
            warnings: count(Outcome::Warning),
            failures: count(Outcome::Failure),
            not_known: count(Outcome::NotKnown),
        }
    }

    /// 0, or 1 if there is a ✗.
    pub(crate) fn exit_code(&self) -> u8 {
        u8::from(self.failures().next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_make_the_exit_code() {
        let name = "a";
        let ok = Finding::ok(Section::Ports, name);
        let unknown = Finding::not_known(Section::Ports, name, "");
        let remedy = Remedy::set("--secure-port", 1);
        let warning = Finding::warning(Section::Ports, name, "", remedy.clone());
        let failure = Finding::failure(Section::Ports, name, "", remedy);
        let rows = [
            (vec![], 0),
            (vec![ok.clone(), warning.clone(), unknown], 0),
            (vec![ok, failure, warning], 1),
        ];
        for (findings, code) in rows {
            assert_eq!(
                Report::new(findings.clone()).exit_code(),
                code,
                "{findings:?}"
            );
        }
    }

    #[test]
    fn findings_keep_their_order_within_a_section() {
        let found = |section, name: &str| Finding::ok(section, name);
        let report = Report::new(vec![
            found(Section::Kernel, "d"),
            found(Section::Ports, "b"),
            found(Section::Configuration, "a"),
            found(Section::Ports, "a"),
        ]);
        let names: Vec<_> = report.findings().iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["a", "b", "a", "d"]);
    }
}
