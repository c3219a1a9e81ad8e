//! How a pod spec is run on this node. Images are not run: a container is the command of its
//! spec, as a process of this machine, or else the sample.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::object::{Object, texts};

/// The default grace period.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// How a pod is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodPlan {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) restart: RestartPolicy,
    pub(super) grace: Duration,
    pub(super) containers: Vec<ContainerPlan>,
}

/// How a container is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerPlan {
    pub(super) name: String,
    /// `None` is the sample.
    pub(super) command: Option<Vec<String>>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) stdin: bool,
    pub(super) stdin_once: bool,
    pub(super) tty: bool,
}

/// When an exited process is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

/// The local resources of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodPlacement {
    /// Its uid.
    pub(super) pod: String,
    pub(super) address: IpAddr,
    pub(super) directory: PathBuf,
    pub(super) node: String,
}

impl RestartPolicy {
    pub(super) fn restarts(self, code: u8) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

impl PodPlan {
    /// The plan of a pod.
    pub(super) fn of(pod: &Object, placement: &PodPlacement) -> Self {
        let containers = pod.at(&["spec", "containers"]).and_then(Value::as_array);
        let containers = containers.into_iter().flatten();
        Self {
            namespace: pod.namespace().to_owned(),
            name: pod.name().to_owned(),
            uid: pod.uid().to_owned(),
            restart: match pod.text(&["spec", "restartPolicy"]) {
                "Never" => RestartPolicy::Never,
                "OnFailure" => RestartPolicy::OnFailure,
                _ => RestartPolicy::Always,
            },
            grace: grace(pod),
            containers: containers
                .map(|container| ContainerPlan::of(container, pod, placement))
                .collect(),
        }
    }
}

/// The grace period of a pod: that of the deletion, or else of the pod.
pub(super) fn grace(pod: &Object) -> Duration {
    let of_deletion = pod.at(&["metadata", "deletionGracePeriodSeconds"]);
    let of_spec = || pod.at(&["spec", "terminationGracePeriodSeconds"]);
    let seconds = of_deletion.or_else(of_spec).and_then(Value::as_u64);
    seconds.map_or(DEFAULT_GRACE, |seconds| {
        // Limited, so that it can be added to any time.
        Duration::from_secs(seconds.min(u64::from(u32::MAX)))
    })
}

impl ContainerPlan {
    fn of(container: &Value, pod: &Object, placement: &PodPlacement) -> Self {
        let is_on = |key: &str| container[key].as_bool().unwrap_or_default();
        let list = |key: &str| texts(container.get(key)).into_iter().map(str::to_owned);
        let (stdin, tty) = (is_on("stdin"), is_on("tty"));
        let command: Vec<String> = list("command").chain(list("args")).collect();
        let ports = container["ports"].as_array().into_iter().flatten();
        let ports = ports.filter_map(|port| u16::try_from(port["containerPort"].as_u64()?).ok());
        let ports: BTreeSet<u16> = ports.collect();
        Self {
            name: container["name"].as_str().unwrap_or_default().to_owned(),
            environment: environment(container, pod, placement, &ports),
            command: match command.is_empty() {
                false => Some(command),
                // As in `kubectl run -it --image=busybox`: a shell.
                true if stdin => Some(vec!["/bin/sh".to_owned()]),
                true => None,
            },
            stdin,
            stdin_once: is_on("stdinOnce"),
            tty,
        }
    }
}

fn environment(
    container: &Value,
    pod: &Object,
    placement: &PodPlacement,
    ports: &BTreeSet<u16>,
) -> Vec<(String, String)> {
    use super::process_entry::{ADDRESS, NAME, PORTS};
    let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
    let mut variables = vec![
        ("HOME".to_owned(), placement.directory.display().to_string()),
        ("HOSTNAME".to_owned(), pod.name().to_owned()),
        (NAME.to_owned(), pod.name().to_owned()),
        (ADDRESS.to_owned(), placement.address.to_string()),
        (PORTS.to_owned(), ports.join(",")),
    ];
    let tty = container["tty"].as_bool().unwrap_or_default();
    if tty {
        variables.push(("TERM".to_owned(), "xterm".to_owned()));
    }
    let given = container["env"].as_array().into_iter().flatten();
    for variable in given {
        let Some(name) = variable["name"].as_str().filter(|it| is_name(it)) else {
            continue;
        };
        let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
        let value = match (variable["value"].as_str(), field) {
            (Some(value), _) => value.to_owned(),
            (None, Some(field)) => field_of(field, pod, placement),
            (None, None) => String::new(),
        };
        if !value.contains('\0') {
            variables.push((name.to_owned(), value));
        }
    }
    variables
}

/// Whether it is a valid name of an environment variable.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// The fields of the downward API that are supported.
fn field_of(path: &str, pod: &Object, placement: &PodPlacement) -> String {
    match path {
        "metadata.name" => pod.name().to_owned(),
        "metadata.namespace" => pod.namespace().to_owned(),
        "metadata.uid" => pod.uid().to_owned(),
        "spec.nodeName" => placement.node.clone(),
        "spec.serviceAccountName" => pod.text(&["spec", "serviceAccountName"]).to_owned(),
        "status.podIP" | "status.hostIP" => placement.address.to_string(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(spec: &Value) -> PodPlan {
        let pod = Object::new(json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": spec,
        }));
        let placement = PodPlacement {
            pod: "u".to_owned(),
            address: "127.0.0.2".parse().unwrap(),
            directory: "/scratch".into(),
            node: "node".to_owned(),
        };
        PodPlan::of(&pod.unwrap(), &placement)
    }

    #[test]
    fn a_container_is_its_command_or_the_sample() {
        let command = |container: Value| {
            let plan = plan(&json!({"containers": [container]}));
            plan.containers[0].command.clone()
        };
        let words = |words: &[&str]| Some(words.iter().map(|it| (*it).to_owned()).collect());
        assert_eq!(command(json!({"image": "nginx"})), None);
        assert_eq!(command(json!({"stdin": true})), words(&["/bin/sh"]));
        assert_eq!(
            command(json!({"args": ["sleep", "5"]})),
            words(&["sleep", "5"])
        );
        let both = json!({"command": ["sh", "-c"], "args": ["date"], "stdin": true});
        assert_eq!(command(both), words(&["sh", "-c", "date"]));
    }

    #[test]
    fn the_environment_is_the_pods_own() {
        let plan = plan(&json!({"containers": [{
            "ports": [{"containerPort": 80}, {"containerPort": 9000}, {"containerPort": 99_999}],
            "env": [
                {"name": "A", "value": "b"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "A=B", "value": "c"},
            ],
        }]}));
        let environment = &plan.containers[0].environment;
        let value = |name: &str| {
            let found = environment.iter().find(|it| it.0 == name);
            found.map(|it| it.1.as_str())
        };
        assert_eq!(value("HOME"), Some("/scratch"));
        assert_eq!(value("POD_PORTS"), Some("80,9000"));
        assert_eq!((value("A"), value("IP")), (Some("b"), Some("127.0.0.2")));
        assert_eq!(value("A=B"), None);
    }

    #[test]
    fn restarts_follow_the_policy() {
        let restarts = |policy: &str, code| {
            let plan = plan(&json!({"restartPolicy": policy, "containers": []}));
            plan.restart.restarts(code)
        };
        for (policy, after_success, after_failure) in [
            ("Always", true, true),
            ("", true, true),
            ("OnFailure", false, true),
            ("Never", false, false),
        ] {
            assert_eq!(restarts(policy, 0), after_success, "{policy}");
            assert_eq!(restarts(policy, 1), after_failure, "{policy}");
        }
    }
}
