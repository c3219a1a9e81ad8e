//! The fields of pods and their owners that the commands read.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) metadata: Metadata,
    pub(crate) spec: PodSpec,
    pub(crate) status: PodStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) creation_timestamp: Option<String>,
    pub(crate) deletion_timestamp: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodSpec {
    pub(crate) containers: Vec<Container>,
    pub(crate) init_containers: Vec<Container>,
    pub(crate) ephemeral_containers: Vec<Container>,
    pub(crate) node_name: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Container {
    pub(crate) name: String,
    pub(crate) tty: bool,
    pub(crate) ports: Vec<ContainerPort>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ContainerPort {
    pub(crate) name: String,
    #[serde(rename = "containerPort")]
    pub(crate) number: u16,
    pub(crate) protocol: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PodStatus {
    pub(crate) phase: String,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) container_statuses: Vec<ContainerStatus>,
    pub(crate) init_container_statuses: Vec<ContainerStatus>,
    pub(crate) ephemeral_container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    last_transition_time: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ContainerStatus {
    name: String,
    restart_count: u32,
    state: State,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct State {
    running: Option<Running>,
    waiting: Option<Waiting>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Running {}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Waiting {
    reason: String,
    message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Terminated {
    exit_code: i32,
    reason: String,
    message: String,
}

/// A service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Service {
    pub(crate) spec: ServiceSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServiceSpec {
    #[serde(rename = "clusterIP")]
    pub(crate) cluster_ip: String,
    pub(crate) ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ServicePort {
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) target_port: Option<TargetPort>,
    pub(crate) protocol: String,
}

/// A number, or the name of a port of a container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum TargetPort {
    Number(u16),
    Name(String),
}

/// An owner of pods.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Workload {
    pub(crate) spec: WorkloadSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WorkloadSpec {
    selector: serde_json::Value,
}

/// Any object, with its name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamedObject {
    pub(crate) metadata: Metadata,
}

/// A list.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct List<T> {
    #[serde(default = "Vec::new")]
    pub(crate) items: Vec<T>,
}

impl Pod {
    /// All containers, with kubectl's suffix for their names.
    pub(crate) fn containers(&self) -> impl Iterator<Item = (&Container, &'static str)> {
        let plain = self.spec.containers.iter().map(|it| (it, ""));
        let ephemeral = self
            .spec
            .ephemeral_containers
            .iter()
            .map(|it| (it, " (ephem)"));
        let init = self.spec.init_containers.iter().map(|it| (it, " (init)"));
        plain.chain(ephemeral).chain(init)
    }

    /// The container of this name.
    pub(crate) fn container(&self, name: &str) -> Option<&Container> {
        self.containers()
            .map(|(it, _)| it)
            .find(|it| it.name == name)
    }

    /// Whether a container is ephemeral.
    pub(crate) fn is_ephemeral(&self, container: &str) -> bool {
        let mut ephemeral = self.spec.ephemeral_containers.iter();
        ephemeral.any(|it| it.name == container)
    }

    /// Why a container does not run, if that is known.
    pub(crate) fn why_not_running(&self, container: &str) -> Option<String> {
        let status = &self.status;
        let mut all = [
            &status.container_statuses,
            &status.init_container_statuses,
            &status.ephemeral_container_statuses,
        ]
        .into_iter()
        .flatten();
        let found = all.find(|status| status.name == container)?;
        let state = &found.state;
        let describe_state = match (&state.running, &state.waiting, &state.terminated) {
            (Some(_), ..) => return None,
            (_, Some(waiting), _) => {
                describe_state("is waiting", &waiting.reason, &waiting.message)
            }
            (_, _, Some(ended)) => {
                let what = format!("has ended with exit code {}", ended.exit_code);
                describe_state(&what, &ended.reason, &ended.message)
            }
            _ => "has not been started".to_owned(),
        };
        let restarts = match found.restart_count {
            0 => String::new(),
            1 => "; it was restarted once".to_owned(),
            times => format!("; it was restarted {times} times"),
        };
        let pod = &self.metadata.name;
        Some(format!(
            "container {container:?} of pod {pod:?} {describe_state}{restarts}"
        ))
    }

    /// Sort key: the greatest pod is chosen. The order is kubectl's (reversed `ActivePods`).
    pub(crate) fn fitness(&self) -> impl Ord + use<> {
        let phase = match self.status.phase.as_str() {
            "Running" => 2,
            "Unknown" => 1,
            _ => 0,
        };
        let mut conditions = self.status.conditions.iter();
        let ready = conditions.find(|it| it.kind == "Ready" && it.status == "True");
        let since = ready.map(|it| older_is_more(it.last_transition_time.as_deref()));
        let restarts = self.status.container_statuses.iter();
        let restarts = restarts.map(|it| it.restart_count).max().unwrap_or(0);
        (
            !self.spec.node_name.is_empty(),
            self.metadata.deletion_timestamp.is_none(),
            phase,
            since,
            std::cmp::Reverse(restarts),
            older_is_more(self.metadata.creation_timestamp.as_deref()),
        )
    }
}

/// RFC 3339 in UTC sorts as text.
fn older_is_more(time: Option<&str>) -> Option<std::cmp::Reverse<String>> {
    time.map(|time| std::cmp::Reverse(time.to_owned()))
}

fn describe_state(what: &str, reason: &str, message: &str) -> String {
    match (reason.is_empty(), message.is_empty()) {
        (true, true) => what.to_owned(),
        (false, true) => format!("{what} ({reason})"),
        (true, false) => format!("{what}: {message}"),
        (false, false) => format!("{what} ({reason}): {message}"),
    }
}

impl Workload {
    /// As a query value; `None` if there is no selector.
    pub(crate) fn selector(&self) -> Option<String> {
        use serde_json::Value;
        let equal = |labels: &Value| -> Vec<String> {
            let labels = labels.as_object().into_iter().flatten();
            labels
                .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
                .collect()
        };
        let selector = &self.spec.selector;
        let is_structured = selector.get("matchLabels").is_some_and(Value::is_object)
            || selector
                .get("matchExpressions")
                .is_some_and(Value::is_array);
        if !is_structured {
            let terms = equal(selector);
            return (!terms.is_empty()).then(|| terms.join(","));
        }
        let mut terms = equal(selector.get("matchLabels").unwrap_or(&Value::Null));
        let expressions = selector.get("matchExpressions").and_then(Value::as_array);
        for expression in expressions.into_iter().flatten() {
            let text = |field| expression.get(field).and_then(Value::as_str).unwrap_or("");
            let values = expression.get("values").and_then(Value::as_array);
            let values = values.into_iter().flatten().filter_map(Value::as_str);
            let values = values.collect::<Vec<_>>().join(",");
            let key = text("key");
            terms.push(match text("operator") {
                "In" => format!("{key} in ({values})"),
                "NotIn" => format!("{key} notin ({values})"),
                "DoesNotExist" => format!("!{key}"),
                _ => key.to_owned(),
            });
        }
        Some(terms.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(json: &str) -> Pod {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_container_that_does_not_run_is_reported_with_its_state() {
        let with = |state: &str| {
            pod(&format!(
                r#"{{"metadata":{{"name":"web"}},"status":{{"containerStatuses":[{{"name":"app","restartCount":3,"state":{state}}}]}}}}"#
            ))
        };
        let rows = [
            (r#"{"running":{"startedAt":"x"}}"#, None),
            (
                r#"{"waiting":{"reason":"CrashLoopBackOff","message":"back-off 5m0s"}}"#,
                Some("is waiting (CrashLoopBackOff): back-off 5m0s; it was restarted 3 times"),
            ),
            (
                r#"{"terminated":{"exitCode":137,"reason":"OOMKilled"}}"#,
                Some("has ended with exit code 137 (OOMKilled); it was restarted 3 times"),
            ),
            ("{}", Some("has not been started; it was restarted 3 times")),
        ];
        for (state, expected) in rows {
            let expected = expected.map(|it| format!("container \"app\" of pod \"web\" {it}"));
            assert_eq!(with(state).why_not_running("app"), expected);
        }
        assert_eq!(with("{}").why_not_running("other"), None);
    }

    #[test]
    fn the_pod_that_kubectl_would_choose_is_chosen() {
        let made = |node: &str, phase: &str, ready: Option<&str>, restarts: u32, born: &str| {
            let ready = ready.map_or(String::new(), |since| {
                format!(r#"{{"type":"Ready","status":"True","lastTransitionTime":"{since}"}}"#)
            });
            pod(&format!(
                r#"{{"metadata":{{"creationTimestamp":"{born}"}},"spec":{{"nodeName":"{node}"}},
                "status":{{"phase":"{phase}","conditions":[{ready}],"containerStatuses":[{{"restartCount":{restarts}}}]}}}}"#
            ))
        };
        let worst_to_best = [
            made("", "Pending", None, 0, "2026-01-01T00:00:00Z"),
            made("n", "Pending", None, 0, "2026-01-01T00:00:00Z"),
            made("n", "Running", None, 0, "2026-01-01T00:00:00Z"),
            made(
                "n",
                "Running",
                Some("2026-01-03T00:00:00Z"),
                0,
                "2026-01-01T00:00:00Z",
            ),
            made(
                "n",
                "Running",
                Some("2026-01-02T00:00:00Z"),
                2,
                "2026-01-01T00:00:00Z",
            ),
            made(
                "n",
                "Running",
                Some("2026-01-02T00:00:00Z"),
                1,
                "2026-01-02T00:00:00Z",
            ),
            made(
                "n",
                "Running",
                Some("2026-01-02T00:00:00Z"),
                1,
                "2026-01-01T00:00:00Z",
            ),
        ];
        for pair in worst_to_best.windows(2) {
            assert!(pair[0].fitness() < pair[1].fitness(), "{pair:?}");
        }
    }

    #[test]
    fn selectors_are_encoded_for_a_query() {
        let selector = |json: &str| {
            let json = format!(r#"{{"spec":{{"selector":{json}}}}}"#);
            serde_json::from_str::<Workload>(&json).unwrap().selector()
        };
        assert_eq!(selector(r#"{"app":"web"}"#).as_deref(), Some("app=web"));
        assert_eq!(selector("null"), None);
        assert_eq!(selector("{}"), None);
        let both = r#"{"matchLabels":{"app":"web"},"matchExpressions":[
            {"key":"tier","operator":"In","values":["a","b"]},{"key":"x","operator":"Exists"},{"key":"y","operator":"DoesNotExist"}]}"#;
        assert_eq!(
            selector(both).as_deref(),
            Some("app=web,tier in (a,b),x,!y")
        );
    }
}
