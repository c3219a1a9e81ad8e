//! What the candidates of a word are names of.

use clap::{Arg, Command};

/// What the names are names of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    Contexts,
    Clusters,
    Users,
    Namespaces,
    /// Pods, and `TYPE/NAME` of their owners.
    PodReferences,
    /// Containers of the pod that the line names.
    Containers,
    /// Ports of the pod or service that the line names, as `PORT:PORT`.
    Ports,
    /// `POD:` and `NAMESPACE/POD:`
    CopySpecs,
}

impl Names {
    /// The names that are the value of an argument. Only commands with `--kubeconfig` are clients
    /// of a cluster.
    pub(super) fn of_value(command: &Command, argument: &Arg) -> Option<Self> {
        let is_client = |it: &Arg| it.get_long() == Some("kubeconfig");
        if !command.get_arguments().any(is_client) {
            return None;
        }
        match argument.get_long() {
            Some("context") => return Some(Self::Contexts),
            Some("cluster") => return Some(Self::Clusters),
            Some("user") => return Some(Self::Users),
            Some("namespace") => return Some(Self::Namespaces),
            Some("container") => return Some(Self::Containers),
            Some(_) => return None,
            None => {}
        }
        let names = argument.get_value_names()?;
        match names.first()?.as_str() {
            "SRC" | "DEST" => Some(Self::CopySpecs),
            "PORT" => Some(Self::Ports),
            name if name.starts_with("POD ") => Some(Self::PodReferences),
            _ => None,
        }
    }
}
