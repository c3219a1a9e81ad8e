//! The order of the steps of an upgrade or a rollback: what to do, what to wait for, what to check,
//! and when to return.
//!
//! The commands are those of kubeadm, kubectl and skewbridge. kube-apiservers change first in an
//! upgrade and last in a rollback, because no component may be newer than its kube-apiserver.

use serde::{Serialize, Serializer};
use skewbridge_k8s_api::version::Version;
use skewbridge_released_apis::Minor;

use crate::components::between;
use crate::direction::Direction;
use crate::facts::{Component, Facts};
use crate::finding::{Finding, Severity};
use crate::skew_policy::{self, Violation};
use crate::verdict::Report;

mod commands;
mod nodes;
mod servers;

/// The names that a step lists.
const MAX_NAMES: usize = 10;

/// A step of the plan. It is done when all of its checks are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// The part of the plan.
    pub phase: Phase,
    /// What is done.
    pub title: String,
    /// What to know about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Commands of a shell, or sentences that begin with `#`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// What to wait for before the next step, and what to check then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// When to return, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollback: Option<RollbackPoint>,
}

/// The part of the plan that a step belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Before anything changes.
    Before,
    /// On the way to this minor version.
    To(Minor),
    /// After all kube-apiservers have the target version.
    After,
}

impl Serialize for Phase {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Before => serializer.serialize_str("before"),
            Self::To(minor) => serializer.collect_str(minor),
            Self::After => serializer.serialize_str("after"),
        }
    }
}

/// A command, and what it has to show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// A command of a shell.
    pub command: String,
    /// What it has to show.
    pub expected: String,
}

/// When to return, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RollbackPoint {
    /// When.
    pub when: String,
    /// How: commands of a shell, or sentences that begin with `#`.
    pub commands: Vec<String>,
}

impl Step {
    fn new(phase: Phase, title: impl Into<String>) -> Self {
        Self {
            phase,
            title: title.into(),
            notes: Vec::new(),
            commands: Vec::new(),
            checks: Vec::new(),
            rollback: None,
        }
    }

    fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    fn commands(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.commands.extend(commands);
        self
    }

    fn checks(mut self, checks: impl IntoIterator<Item = Check>) -> Self {
        self.checks.extend(checks);
        self
    }
}

impl Check {
    fn new(command: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            expected: expected.into(),
        }
    }
}

/// The minor versions of the way to the target of a report, with it. Empty if all servers have it.
pub fn minors(facts: &Facts, report: &Report) -> Vec<Minor> {
    let versions = facts.servers.iter();
    let versions = versions.filter_map(|it| it.version.as_ref().ok());
    let current = versions.map(|version| Minor::from(*version));
    let current = match report.direction {
        Direction::Upgrade => current.min(),
        Direction::Rollback => current.max(),
    };
    let target = report.target;
    match current {
        Some(current) if is_before(report.direction, current, target) => {
            let mut minors = between(current, target);
            minors.push(target);
            minors
        }
        _ => Vec::new(),
    }
}

/// Whether a version has to change to get to another one.
fn is_before(direction: Direction, version: Minor, other: Minor) -> bool {
    match direction {
        Direction::Upgrade => version < other,
        Direction::Rollback => version > other,
    }
}

/// The steps to the target of a report, through a release of each of its [`minors`].
pub fn steps(facts: &Facts, report: &Report, path: &[Version]) -> Vec<Step> {
    let mut steps = findings(report);
    if path.is_empty() {
        return steps;
    }
    steps.push(commands::snapshot(facts));
    let mut previous = None;
    let mut facts = facts.clone();
    for (number, version) in path.iter().enumerate() {
        let hop = Hop {
            facts: &facts,
            direction: report.direction,
            version: *version,
            previous,
            rest: path.get(number..).unwrap_or_default(),
        };
        match report.direction {
            Direction::Upgrade => steps.extend(hop.upgrade()),
            Direction::Rollback => steps.extend(hop.rollback()),
        }
        let after = hop.facts_after();
        previous = Some(*version);
        facts = after;
    }
    steps.extend(after(&facts, report, path));
    steps
}

/// What is to be resolved, and what is to be found out, before anything changes.
fn findings(report: &Report) -> Vec<Step> {
    let of = |severity, verb: &'static str| {
        let findings = report.findings.iter();
        let findings = findings.filter(move |it| it.severity == severity && !it.planned);
        findings.map(
            move |Finding {
                      subject,
                      message,
                      commands,
                      ..
                  }| {
                Step::new(Phase::Before, format!("{verb} {subject}"))
                    .note(message)
                    .commands(commands.iter().cloned())
            },
        )
    };
    of(Severity::Finding, "Resolve")
        .chain(of(Severity::NotKnown, "Find out about"))
        .collect()
}

/// One minor version of the way.
struct Hop<'a> {
    facts: &'a Facts,
    direction: Direction,
    version: Version,
    /// The version of the hop before.
    previous: Option<Version>,
    /// The versions of this hop and of those after it.
    rest: &'a [Version],
}

impl Hop<'_> {
    fn phase(&self) -> Phase {
        Phase::To(self.minor())
    }

    fn minor(&self) -> Minor {
        Minor::from(self.version)
    }

    /// The version to upgrade to. On the way back it is what the node had before.
    fn text(&self) -> String {
        match self.direction {
            Direction::Upgrade => self.version.to_string(),
            Direction::Rollback => self.minor().to_string(),
        }
    }

    fn upgrade(&self) -> Vec<Step> {
        let minor = self.minor();
        let mut steps = vec![
            Step::new(self.phase(), format!("Check the upgrade to {minor}")).checks([Check::new(
                format!("skewbridge check upgrade --target={minor}"),
                "the first line ends with `: go`; resolve findings first",
            )]),
        ];
        steps.extend(self.nodes());
        steps.extend(self.servers());
        steps.push(self.control_plane_components());
        steps.extend(self.before().map(|before| self.decision(before.into())));
        steps
    }

    fn rollback(&self) -> Vec<Step> {
        let minor = self.minor();
        let mut steps = vec![
            Step::new(self.phase(), format!("Check the return to {minor}"))
                .note("Fields and APIs that it does not have are lost.")
                .checks([Check::new(
                    format!("skewbridge check upgrade --rollback={minor}"),
                    "the first line ends with `: go`, or names only what may be lost",
                )]),
        ];
        steps.extend(self.nodes());
        let others: Vec<_> = self
            .components()
            .filter(|it| !nodes::is_of_node(it))
            .filter(|it| violates(it, minor) == Some(Violation::Newer))
            .collect();
        if !others.is_empty() {
            steps.push(self.returned_components(&others));
        }
        steps.extend(self.servers());
        steps
    }

    fn components(&self) -> impl Iterator<Item = &Component> {
        let kubelets = self.facts.kubelets.iter().flatten();
        kubelets.chain(&self.facts.components.found)
    }

    /// The version that the servers have before this hop, if any is known.
    fn before(&self) -> Option<Version> {
        let servers = self.facts.servers.iter();
        let versions = servers.filter_map(|it| it.version.clone().ok());
        self.previous.or_else(|| match self.direction {
            Direction::Upgrade => versions.min(),
            Direction::Rollback => versions.max(),
        })
    }

    fn control_plane_components(&self) -> Step {
        let version = self.version;
        let of_control_plane = self.components().filter(|it| it.name != "kubelet");
        let names: Vec<_> = of_control_plane.map(described).collect();
        let step = Step::new(
            self.phase(),
            format!("Check that the other components are {version}"),
        )
        .note(
            "`kubeadm upgrade` changes kube-controller-manager and kube-scheduler together with \
             kube-apiserver, and kube-proxy with the last one. Upgrade a cloud-controller-manager as \
             its provider describes.",
        );
        let step = if names.is_empty() {
            step
        } else {
            step.note(format!("Found now: {}", listed(&names)))
        };
        step.checks([
            Check::new(
                commands::IMAGES,
                format!("the tag of each image is v{version}"),
            ),
            Check::new(
                "kubectl -n kube-system rollout status daemonset/kube-proxy",
                "successfully rolled out, if kube-proxy is used",
            ),
        ])
    }

    fn returned_components(&self, components: &[&Component]) -> Step {
        let names: Vec<_> = components.iter().map(|it| described(it)).collect();
        let title = format!("Return {} to {}", counted(components), self.text());
        Step::new(self.phase(), title)
            .note("Before the first kube-apiserver: no component may be newer than its kube-apiserver.")
            .note(listed(&names))
            .commands(commands::restore(
                self.minor(),
                &["kube-controller-manager.yaml", "kube-scheduler.yaml"],
            ))
            .checks([Check::new(
                commands::IMAGES,
                format!("the tags of these images begin with v{}", self.minor()),
            )])
    }

    /// The point at which the administrator decides to go on or to return.
    fn decision(&self, back: Minor) -> Step {
        let mut step = Step::new(
            self.phase(),
            format!("Decide: stay with {}, or return to {back}", self.minor()),
        )
        .note(format!(
            "All kube-apiservers are {} now. With each object that is written with a new field or \
             API, more is lost on the way back; kubelets that are upgraded have to return first.",
            self.minor()
        ))
        .checks([Check::new(
            format!("skewbridge check upgrade --rollback={back}"),
            "what a return would erase",
        )]);
        step.rollback = Some(RollbackPoint {
            when: "clients or controllers fail with the new version".to_owned(),
            commands: vec![format!("skewbridge upgrade plan --rollback={back}")],
        });
        step
    }
}

/// The last steps.
fn after(facts: &Facts, report: &Report, path: &[Version]) -> Vec<Step> {
    let mut steps = Vec::new();
    let Some(version) = path.last() else {
        return steps;
    };
    match report.direction {
        Direction::Upgrade => steps.extend(nodes::last_kubelets(facts, *version)),
        Direction::Rollback => steps.push(returned_kubeadm(*version)),
    }
    let mut step = Step::new(Phase::After, "Check the cluster");
    if facts.servers.iter().any(|it| it.bridge.is_some()) {
        step = step.checks([commands::check_bridges()]);
    }
    step = step.checks([Check::new(
        "kubectl get --raw='/readyz?verbose'",
        "`readyz check passed`",
    )]);
    if report.direction == Direction::Upgrade {
        step = step.note(
            "Objects are stored in an older version until they are written again. Migrate them before \
             the next upgrade, as `skewbridge check upgrade` then shows.",
        );
    }
    steps.push(step);
    steps
}

/// What kubeadm keeps of the upgrade after all kube-apiservers have returned.
fn returned_kubeadm(version: Version) -> Step {
    let version = version.to_string();
    Step::new(
        Phase::After,
        format!("Return kubeadm and its configuration to {version}"),
    )
    .note(
        "With another installer than kubeadm, its own commands. etcd keeps its version: the servers of \
         both versions work with it.",
    )
    .commands(commands::return_kubeadm(&version))
    .checks([Check::new(
        "kubectl -n kube-system get configmap kubeadm-config -o yaml",
        format!("`kubernetesVersion: v{version}`"),
    )])
}

fn violates(component: &Component, server: Minor) -> Option<Violation> {
    let version = component.version.as_ref().ok()?;
    skew_policy::violation(&component.name, Minor::from(*version), server)
}

/// `2 kubelets and 1 other component`
fn counted(components: &[&Component]) -> String {
    let mut names: Vec<(&str, usize)> = Vec::new();
    for component in components {
        match names.iter_mut().find(|(name, _)| *name == component.name) {
            Some((_, count)) => *count += 1,
            None => names.push((&component.name, 1)),
        }
    }
    let names = names.into_iter().map(|(name, count)| match count {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    });
    names.collect::<Vec<_>>().join(" and ")
}

fn described(component: &Component) -> String {
    let version = match &component.version {
        Ok(version) => version.to_string(),
        Err(_) => "version not known".to_owned(),
    };
    format!("{} on {} ({version})", component.name, component.instance)
}

/// The first names.
fn listed(names: &[String]) -> String {
    let shown = names.get(..MAX_NAMES.min(names.len())).unwrap_or_default();
    let shown = shown.join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown}, and {more} more"),
    }
}
