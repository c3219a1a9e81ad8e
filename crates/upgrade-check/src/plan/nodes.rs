//! The kubelets and kube-proxies: the version skew policy says when they have to change.

use skewbridge_k8s_api::version::Version;
use skewbridge_released_apis::Minor;

use super::{Check, Hop, Phase, Step, commands, counted, described, listed, violates};
use crate::direction::Direction;
use crate::facts::{Component, Facts};
use crate::skew_policy::{self, Violation};

const KUBELET: &str = "kubelet";
const KUBE_PROXY: &str = "kube-proxy";

/// Whether a component belongs to a Node, and not to the control plane.
pub(super) fn is_of_node(component: &Component) -> bool {
    [KUBELET, KUBE_PROXY].contains(&component.name.as_str())
}

impl Hop<'_> {
    /// The steps before the first kube-apiserver changes: of components that would be too old for it,
    /// and on the way back of those that would be newer than it.
    pub(super) fn nodes(&self) -> Vec<Step> {
        let Some(to) = self.node_version() else {
            return Vec::new();
        };
        let of = |name: &str| -> Vec<&Component> {
            let components = self.components();
            let changed = components.filter(|it| it.name == name && self.changes(it));
            changed.collect()
        };
        let kubelets = of(KUBELET);
        let proxies = of(KUBE_PROXY);
        let mut steps = Vec::new();
        if !kubelets.is_empty() {
            steps.push(kubelet_step(self.phase(), self.direction, &kubelets, to));
        }
        if !proxies.is_empty() {
            steps.push(self.kube_proxy_step(&proxies, to));
        }
        steps
    }

    /// The version that the components of Nodes get before this hop: that of the kube-apiservers; on
    /// the way back the oldest one that these allow, so that they change once.
    fn node_version(&self) -> Option<Version> {
        let before = self.before()?;
        match self.direction {
            Direction::Upgrade => Some(before),
            Direction::Rollback => {
                let mut path = self.rest.iter().rev();
                let is_allowed = |it: &&Version| {
                    skew_policy::violation(KUBELET, (**it).into(), before.into()).is_none()
                };
                Some(path.find(is_allowed).copied().unwrap_or(self.version))
            }
        }
    }

    /// Whether a component has to change before the kube-apiservers.
    fn changes(&self, component: &Component) -> bool {
        let violation = violates(component, self.minor());
        is_of_node(component)
            && match self.direction {
                Direction::Upgrade => matches!(violation, Some(Violation::TooOld(_))),
                Direction::Rollback => violation == Some(Violation::Newer),
            }
    }

    /// The facts after this hop: a component that has changed does not change again.
    pub(super) fn facts_after(&self) -> Facts {
        let mut facts = self.facts.clone();
        let nodes = self.node_version();
        let kubelets = facts.kubelets.iter_mut().flatten();
        for component in kubelets.chain(&mut facts.components.found) {
            let is_newer = violates(component, self.minor()) == Some(Violation::Newer);
            if let (true, Some(to)) = (self.changes(component), nodes) {
                component.version = Ok(to);
            } else if self.direction == Direction::Rollback && is_newer {
                component.version = Ok(self.version);
            }
        }
        facts
    }

    fn kube_proxy_step(&self, proxies: &[&Component], to: Version) -> Step {
        let names: Vec<_> = proxies.iter().map(|it| described(it)).collect();
        let verb = match self.direction {
            Direction::Upgrade => "Upgrade",
            Direction::Rollback => "Return",
        };
        let commands = commands::set_kube_proxy_image(&to.to_string());
        let step = Step::new(self.phase(), format!("{verb} {} to {to}", counted(proxies)));
        step.note(listed(&names)).commands(commands).checks([
            Check::new(
                "kubectl -n kube-system rollout status daemonset/kube-proxy",
                "successfully rolled out",
            ),
            Check::new(
                "kubectl -n kube-system get daemonset kube-proxy -o wide",
                format!("the tag in IMAGES begins with v{to}"),
            ),
        ])
    }
}

/// The kubelets that are older than the target after all kube-apiservers have it.
pub(super) fn last_kubelets(facts: &Facts, target: Version) -> Option<Step> {
    let is_older = |it: &&Component| match it.version {
        Ok(found) => Minor::from(found) < target.into(),
        Err(_) => true,
    };
    let kubelets: Vec<_> = facts.kubelets.iter().flatten().filter(is_older).collect();
    (!kubelets.is_empty())
        .then(|| kubelet_step(Phase::After, Direction::Upgrade, &kubelets, target))
}

fn kubelet_step(phase: Phase, direction: Direction, kubelets: &[&Component], to: Version) -> Step {
    let names: Vec<_> = kubelets.iter().map(|it| described(it)).collect();
    let text = to.to_string();
    let (verb, commands) = match direction {
        Direction::Upgrade => ("Upgrade", commands::upgrade_kubelet(&text)),
        Direction::Rollback => ("Return", commands::return_kubelet(&text)),
    };
    Step::new(phase, format!("{verb} {} to {to}", counted(kubelets)))
        .note(listed(&names))
        .commands(commands)
        .checks([Check::new(
            "kubectl get nodes -o wide",
            format!("each of these Nodes is Ready, with VERSION v{to}"),
        )])
}
