//! The status of a pod that runs here.

use serde_json::{Value, json};

use super::container::{Phase, State, Termination};
use super::pod_plan::{ContainerPlan, PodPlacement, RestartPolicy};
use crate::object::Object;
use crate::time::Time;

/// The status of a pod, given its containers.
pub(super) fn status(
    pod: &Object,
    placement: &PodPlacement,
    policy: RestartPolicy,
    containers: &[(&ContainerPlan, State)],
    started: Time,
    now: Time,
) -> Value {
    let phase = phase(policy, containers);
    let is_ready = matches!(phase, "Running") && containers.iter().all(|(_, it)| it.is_running());
    let over = matches!(phase, "Succeeded" | "Failed");
    let why_not = match (is_ready, over) {
        (true, _) => json!({}),
        (false, true) if phase == "Succeeded" => json!({"reason": "PodCompleted"}),
        (false, true) => json!({"reason": "PodFailed"}),
        (false, false) => {
            let waiting = containers.iter().filter(|(_, it)| !it.is_running());
            let names: Vec<_> = waiting.map(|(plan, _)| plan.name.as_str()).collect();
            json!({
                "reason": "ContainersNotReady",
                "message": format!("containers with unready status: [{}]", names.join(" ")),
            })
        }
    };
    let conditions = [
        ("PodReadyToStartContainers", true, json!({})),
        ("Initialized", true, json!({})),
        ("Ready", is_ready, why_not.clone()),
        ("ContainersReady", is_ready, why_not),
        ("PodScheduled", true, json!({})),
    ];
    let conditions: Vec<_> = conditions
        .into_iter()
        .map(|(kind, is_true, why)| condition(pod, kind, is_true, &why, now))
        .collect();
    let address = placement.address.to_string();
    json!({
        "phase": phase,
        "conditions": conditions,
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": started.to_string(),
        "qosClass": "BestEffort",
        "containerStatuses": containers
            .iter()
            .map(|(plan, state)| container(pod, plan, state))
            .collect::<Vec<_>>(),
    })
}

fn phase(policy: RestartPolicy, containers: &[(&ContainerPlan, State)]) -> &'static str {
    let ended: Option<Vec<u8>> = containers
        .iter()
        .map(|(_, state)| match &state.phase {
            Phase::Terminated(how) if !policy.restarts(how.code) => Some(how.code),
            _ => None,
        })
        .collect();
    let started = |state: &State| !matches!(state.phase, Phase::Waiting { reason, .. } if reason == "ContainerCreating");
    match ended {
        Some(codes) if !codes.is_empty() && codes.iter().all(|code| *code == 0) => "Succeeded",
        Some(codes) if !codes.is_empty() => "Failed",
        _ if containers.iter().all(|(_, state)| started(state)) => "Running",
        _ => "Pending",
    }
}

/// Its transition time is that of the last change.
fn condition(pod: &Object, kind: &str, is_true: bool, why: &Value, now: Time) -> Value {
    let status = if is_true { "True" } else { "False" };
    let before = pod.at(&["status", "conditions"]).and_then(Value::as_array);
    let before = before
        .into_iter()
        .flatten()
        .find(|it| it["type"] == kind && it["status"] == status);
    let since = before.and_then(|it| it["lastTransitionTime"].as_str());
    let since = since.map_or_else(|| now.to_string(), str::to_owned);
    let mut condition = json!({
        "type": kind,
        "status": status,
        "lastProbeTime": null,
        "lastTransitionTime": since,
    });
    for field in ["reason", "message"] {
        if let Some(text) = why.get(field) {
            condition[field] = text.clone();
        }
    }
    condition
}

fn container(pod: &Object, plan: &ContainerPlan, state: &State) -> Value {
    let id = |number: u32| format!("playground://{}/{}/{number}", pod.uid(), plan.name);
    let now = match &state.phase {
        Phase::Waiting { reason, message } if message.is_empty() => {
            json!({"waiting": {"reason": reason}})
        }
        Phase::Waiting { reason, message } => {
            json!({"waiting": {"reason": reason, "message": message}})
        }
        Phase::Running { since, .. } => json!({"running": {"startedAt": since.to_string()}}),
        Phase::Terminated(how) => terminated(how, &id(state.restarts)),
    };
    let last = state.last.as_ref().map_or_else(
        || json!({}),
        |how| terminated(how, &id(state.restarts.saturating_sub(1))),
    );
    json!({
        "name": plan.name,
        "image": image(pod, &plan.name),
        "imageID": "",
        "containerID": id(state.restarts),
        "state": now,
        "lastState": last,
        "ready": state.is_running(),
        "started": state.is_running(),
        "restartCount": state.restarts,
    })
}

/// The image of the current spec: images are not run, so a changed one has no other effect.
fn image<'a>(pod: &'a Object, container: &str) -> &'a str {
    let all = pod.at(&["spec", "containers"]).and_then(Value::as_array);
    let found = all.into_iter().flatten().find(|it| it["name"] == container);
    found
        .and_then(|it| it["image"].as_str())
        .unwrap_or_default()
}

fn terminated(how: &Termination, id: &str) -> Value {
    let mut state = json!({
        "exitCode": how.code,
        "reason": how.reason,
        "startedAt": how.started.to_string(),
        "finishedAt": how.finished.to_string(),
        "containerID": id,
    });
    if !how.message.is_empty() {
        state["message"] = how.message.clone().into();
    }
    json!({"terminated": state})
}

impl State {
    fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }
}
