//! The status column of a pod: the rules are kube-apiserver's.

use serde_json::Value;

use super::age;
use crate::object::Object;
use crate::time::Time;

/// A summary of the containers of a pod.
struct Summary {
    word: String,
    ready: usize,
    restarts: i64,
    last_restart: Option<Time>,
}

pub(super) fn cells(pod: &Object, now: Time) -> Vec<Value> {
    let list = |path: &[&str]| {
        pod.at(path)
            .and_then(Value::as_array)
            .map_or(&[][..], |it| it)
    };
    let sidecars = list(&["spec", "initContainers"])
        .iter()
        .filter(|it| is_sidecar(it))
        .count();
    let total = list(&["spec", "containers"]).len() + sidecars;
    let summary = summary(pod);
    let restarts = match summary.last_restart {
        Some(ended) if summary.restarts > 0 => {
            format!("{} ({} ago)", summary.restarts, age(Some(ended), now))
        }
        _ => summary.restarts.to_string(),
    };
    let or_none = |text: &str| {
        if text.is_empty() {
            "<none>".to_owned()
        } else {
            text.to_owned()
        }
    };
    let addresses = list(&["status", "podIPs"]);
    let address = addresses.first().and_then(|it| it["ip"].as_str());
    let address = address.unwrap_or_else(|| pod.text(&["status", "podIP"]));
    let gates = list(&["spec", "readinessGates"]);
    let open = gates
        .iter()
        .filter(|gate| is_true(pod, gate["conditionType"].as_str()));
    let gates = match gates.len() {
        0 => "<none>".to_owned(),
        count => format!("{}/{count}", open.count()),
    };
    vec![
        pod.name().into(),
        format!("{}/{total}", summary.ready).into(),
        summary.word.into(),
        restarts.into(),
        age(pod.creation_timestamp(), now).into(),
        or_none(address).into(),
        or_none(pod.text(&["spec", "nodeName"])).into(),
        or_none(pod.text(&["status", "nominatedNodeName"])).into(),
        gates.into(),
    ]
}

fn summary(pod: &Object) -> Summary {
    let phase = pod.text(&["status", "phase"]);
    let mut summary = Summary {
        word: match pod.text(&["status", "reason"]) {
            "" => phase.to_owned(),
            reason => reason.to_owned(),
        },
        ready: 0,
        restarts: 0,
        last_restart: None,
    };
    let conditions = statuses(pod, "conditions");
    if conditions
        .iter()
        .any(|it| it["type"] == "PodScheduled" && it["reason"] == "SchedulingGated")
    {
        "SchedulingGated".clone_into(&mut summary.word);
    }
    let of_sidecars = summary.initial(pod);
    if of_sidecars.is_some() || is_true(pod, Some("Initialized")) {
        (summary.restarts, summary.last_restart) =
            of_sidecars.unwrap_or_else(|| sidecar_restarts(pod));
        summary.main(pod);
    }
    if pod.deletion_timestamp().is_some() {
        if pod.text(&["status", "reason"]) == "NodeLost" {
            "Unknown".clone_into(&mut summary.word);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut summary.word);
        }
    }
    summary
}

impl Summary {
    /// Init containers. Returns the restarts of sidecars, if all have started.
    fn initial(&mut self, pod: &Object) -> Option<(i64, Option<Time>)> {
        let specs = pod
            .at(&["spec", "initContainers"])
            .and_then(Value::as_array);
        let specs = specs.map_or(&[][..], |it| it);
        for (place, status) in statuses(pod, "initContainerStatuses").iter().enumerate() {
            self.count(status);
            let spec = specs.iter().find(|it| it["name"] == status["name"]);
            let terminated = status["state"].get("terminated");
            let waiting = status["state"]["waiting"]["reason"]
                .as_str()
                .unwrap_or_default();
            if terminated.is_some_and(|it| it["exitCode"] == 0) {
                continue;
            }
            if spec.is_some_and(is_sidecar) && status["started"] == true {
                self.ready += usize::from(status["ready"] == true);
                continue;
            }
            self.word = match terminated {
                Some(terminated) => format!("Init:{}", end_of(terminated)),
                None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
                None => format!("Init:{place}/{}", specs.len()),
            };
            return None;
        }
        Some(sidecar_restarts(pod))
    }

    /// The main containers, from the last to the first: the first one decides.
    fn main(&mut self, pod: &Object) {
        let mut runs = false;
        let mut failure = None;
        for status in statuses(pod, "containerStatuses").iter().rev() {
            self.count(status);
            let state = &status["state"];
            let waiting = state["waiting"]["reason"].as_str().unwrap_or_default();
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.word);
            } else if let Some(terminated) = state.get("terminated") {
                self.word = end_of(terminated);
                if terminated["exitCode"] != 0 {
                    failure = Some(self.word.clone());
                }
            } else if status["ready"] == true && state.get("running").is_some() {
                runs = true;
                self.ready += 1;
            }
        }
        if self.word == "Completed" {
            if runs && is_true(pod, Some("Ready")) {
                "Running".clone_into(&mut self.word);
            } else if let Some(failure) = failure {
                self.word = failure;
            } else if runs {
                "NotReady".clone_into(&mut self.word);
            }
        }
    }

    fn count(&mut self, status: &Value) {
        self.restarts += status["restartCount"].as_i64().unwrap_or_default();
        self.last_restart = self.last_restart.max(last_end(status));
    }
}

fn statuses<'a>(pod: &'a Object, field: &str) -> &'a [Value] {
    pod.at(&["status", field])
        .and_then(Value::as_array)
        .map_or(&[], |it| it)
}

fn sidecar_restarts(pod: &Object) -> (i64, Option<Time>) {
    let specs = pod
        .at(&["spec", "initContainers"])
        .and_then(Value::as_array);
    let specs = specs.map_or(&[][..], |it| it);
    let of_sidecars = statuses(pod, "initContainerStatuses")
        .iter()
        .filter(|status| {
            specs
                .iter()
                .any(|spec| spec["name"] == status["name"] && is_sidecar(spec))
        });
    of_sidecars.fold((0, None), |(restarts, last), status| {
        let more = status["restartCount"].as_i64().unwrap_or_default();
        (restarts + more, last.max(last_end(status)))
    })
}

fn last_end(status: &Value) -> Option<Time> {
    Time::parse(status["lastState"]["terminated"]["finishedAt"].as_str()?)
}

fn is_sidecar(spec: &Value) -> bool {
    spec["restartPolicy"] == "Always"
}

fn is_true(pod: &Object, condition: Option<&str>) -> bool {
    let mut conditions = statuses(pod, "conditions").iter();
    conditions.any(|it| it["type"].as_str() == condition && it["status"] == "True")
}

fn end_of(terminated: &Value) -> String {
    match (terminated["reason"].as_str(), terminated["signal"].as_i64()) {
        (Some(reason), _) if !reason.is_empty() => reason.to_owned(),
        (_, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        _ => format!(
            "ExitCode:{}",
            terminated["exitCode"].as_i64().unwrap_or_default()
        ),
    }
}
