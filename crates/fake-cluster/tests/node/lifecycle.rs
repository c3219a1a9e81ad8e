//! The lifecycle of pods.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_fake_cluster::resource_strategy::Part;
use skewbridge_fake_cluster::server::pod_streams::StreamKind::Exec;
use skewbridge_fake_cluster::status::GroupResource;
use skewbridge_remotecommand::{ExitCode, Outcome, SpdyProtocol};

use crate::commands::is_running;
use crate::node_fixture::{NodeFixture, eventually, pods, query};

fn shell(script: &str, policy: &str) -> Value {
    json!({
        "restartPolicy": policy,
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "web", "command": ["/bin/sh", "-c", script]}],
    })
}

fn state<'a>(pod: &'a skewbridge_fake_cluster::object::Object, path: &str) -> &'a Value {
    pod.at(&["status", "containerStatuses"])
        .and_then(|all| all.pointer(path))
        .unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_node_registers_and_writes_pod_status() {
    let fixture = NodeFixture::new();
    let container = json!({"name": "web", "image": "web", "ports": [{"containerPort": 8080}]});
    let pod = fixture
        .running("web", &json!({"containers": [container]}))
        .await;
    assert_eq!(pod.text(&["spec", "nodeName"]), "playground");
    assert!(pod.text(&["status", "podIP"]).starts_with("127.0.0."));
    assert_eq!(state(&pod, "/0/ready"), true);
    assert_eq!(state(&pod, "/0/restartCount"), 0);
    let node = fixture
        .store
        .get(&GroupResource::new("", "nodes"), "", "playground");
    let node = node.unwrap();
    let conditions = node.at(&["status", "conditions"]).unwrap();
    assert_eq!(conditions[3]["type"], "Ready");
    assert_eq!(conditions[3]["status"], "True");
}

#[tokio::test]
async fn pods_end_as_their_processes_do() {
    let fixture = NodeFixture::new();
    fixture.create("good", &shell("exit 0", "Never"));
    fixture.create("bad", &shell("exit 7", "Never"));
    fixture.create(
        "missing",
        &json!({
            "restartPolicy": "Never", "containers": [{"name": "web", "command": ["nope-1"]}],
        }),
    );
    fixture.create("again", &shell("exit 1", "Always"));
    fixture
        .until("good", |pod| pod.text(&["status", "phase"]) == "Succeeded")
        .await;
    let bad = fixture
        .until("bad", |pod| pod.text(&["status", "phase"]) == "Failed")
        .await;
    assert_eq!(state(&bad, "/0/state/terminated/exitCode"), 7);
    assert_eq!(state(&bad, "/0/state/terminated/reason"), "Error");
    let missing = fixture
        .until("missing", |pod| pod.text(&["status", "phase"]) == "Failed")
        .await;
    assert_eq!(state(&missing, "/0/state/terminated/exitCode"), 128);
    let again = fixture
        .until("again", |pod| {
            state(pod, "/0/restartCount").as_u64() >= Some(2)
                && state(pod, "/0/state/waiting/reason") == "CrashLoopBackOff"
        })
        .await;
    assert_eq!(state(&again, "/0/lastState/terminated/exitCode"), 1);
}

#[tokio::test]
async fn a_deleted_pod_is_removed_after_its_grace_period() {
    let fixture = NodeFixture::new();
    // The process traps SIGTERM, and continues.
    let signalled = fixture.scratch.path().join("signalled");
    let script = format!(
        "trap 'echo > {}' TERM; echo $$ > id; while :; do sleep 0.1; done",
        signalled.display()
    );
    let pod = fixture.running("web", &shell(&script, "Always")).await;
    let directory = fixture.directory(&pod);
    let id: i32 = eventually(
        || {
            std::fs::read_to_string(directory.join("id"))
                .ok()?
                .trim()
                .parse()
                .ok()
        },
        "the pod runs",
    )
    .await;
    assert!(is_running(id));
    let marked = fixture
        .store
        .modify(&pods(), "default", "web", Part::Main, |pod| {
            pod.set(&["metadata", "labels", "x"], "y");
        });
    marked.unwrap();
    let begun = Instant::now();
    fixture.delete_within("web", 3600);
    eventually(
        || signalled.exists().then_some(()),
        "the process gets SIGTERM",
    )
    .await;
    assert!(fixture.pod("web").deletion_timestamp().is_some());
    assert!(is_running(id));
    // A shorter grace period overrides a longer one.
    fixture.delete_within("web", 1);
    eventually(|| (!is_running(id)).then_some(()), "the process is gone").await;
    assert!(begun.elapsed() < Duration::from_secs(30));
    eventually(
        || (!directory.exists()).then_some(()),
        "its directory is removed",
    )
    .await;
    eventually(
        || {
            let found = fixture.store.get(&pods(), "default", "web");
            (found.err()?.code == 404).then_some(())
        },
        "the pod is removed",
    )
    .await;
}

#[tokio::test]
async fn a_pod_deleted_without_grace_leaves_no_directory() {
    let fixture = NodeFixture::new();
    // The processes write to the directory until they are killed.
    let write = "while :; do mkdir -p $n; echo > $n/$i; i=$((i+1)); rm -r $n; done";
    let script = format!("for n in a b c; do (i=0; {write}) & done; echo > begun; wait");
    let pod = fixture.running("web", &shell(&script, "Always")).await;
    let directory = fixture.directory(&pod);
    let begun = directory.join("begun");
    eventually(|| begun.exists().then_some(()), "the processes write").await;
    fixture.delete_within("web", 0);
    assert!(fixture.store.get(&pods(), "default", "web").is_err());
    eventually(
        || (!directory.exists()).then_some(()),
        "its directory is gone",
    )
    .await;
}

#[tokio::test]
async fn a_pod_fails_at_its_active_deadline() {
    let fixture = NodeFixture::new();
    let script = "echo $$ > id; exec sleep 1000";
    let pod = fixture.running("web", &shell(script, "Always")).await;
    let id = fixture.directory(&pod).join("id");
    let read = || std::fs::read_to_string(&id).ok()?.trim().parse().ok();
    let id: i32 = eventually(read, "the pod runs").await;
    let hurried = fixture
        .store
        .modify(&pods(), "default", "web", Part::Main, |pod| {
            pod.set(&["spec", "activeDeadlineSeconds"], 1);
        });
    hurried.unwrap();
    let pod = fixture
        .until("web", |pod| pod.text(&["status", "phase"]) == "Failed")
        .await;
    assert_eq!(pod.text(&["status", "reason"]), "DeadlineExceeded");
    gone(&[id]).await;
}

#[tokio::test]
async fn a_node_that_ends_leaves_nothing_behind() {
    let fixture = NodeFixture::new();
    let script = "sleep 1000 & echo $$ $! > ids; wait";
    let pod = fixture.running("web", &shell(script, "Always")).await;
    let directory = fixture.scratch.path().join("pods").join(pod.uid());
    let ids: Vec<i32> = eventually(
        || {
            let text = std::fs::read_to_string(directory.join("ids")).ok()?;
            let ids: Vec<_> = text.split_whitespace().flat_map(str::parse).collect();
            (ids.len() == 2).then_some(ids)
        },
        "the pod runs",
    )
    .await;
    drop(fixture.node);
    eventually(
        || ids.iter().all(|id| !is_running(*id)).then_some(()),
        "all are gone",
    )
    .await;
    assert!(!directory.exists());
}

/// Starts processes that escape: one in its own session, one of a shell with job control, and
/// one that is an orphan with a clean environment. Each writes its pid.
const ESCAPING_PROCESSES: &str = "\
    setsid sh -c 'echo $$ > session; exec sleep 1000' & \
    sh -c 'set -m; sh -c \"echo \\$\\$ > job; exec sleep 1000\" & :'; \
    env -i sh -c '(setsid sh -c \"echo \\$\\$ > orphan; exec sleep 1000\" &) &'; \
    until [ -s session ] && [ -s job ] && [ -s orphan ]; do sleep 0.05; done; ";

/// Their pids.
async fn read_escaped_pids(directory: &Path) -> Vec<i32> {
    let read = |name| {
        let text = std::fs::read_to_string(directory.join(name)).ok()?;
        text.trim().parse::<i32>().ok()
    };
    let all = || [read("session"), read("job"), read("orphan")].into_iter();
    let ids: Vec<i32> = eventually(
        || all().collect::<Option<_>>(),
        "all processes have started",
    )
    .await;
    assert!(ids.iter().all(|id| is_running(*id)), "{ids:?}");
    ids
}

async fn gone(ids: &[i32]) {
    let all_exited = || ids.iter().all(|id| !is_running(*id)).then_some(());
    eventually(all_exited, "all are gone").await;
}

#[tokio::test]
async fn escaped_processes_end_with_the_pod() {
    let fixture = NodeFixture::new();
    let script = format!("{ESCAPING_PROCESSES} exec sleep 1000");
    let pod = fixture.running("web", &shell(&script, "Never")).await;
    let ids = read_escaped_pids(&fixture.directory(&pod)).await;
    fixture.delete_within("web", 1);
    gone(&ids).await;
}

#[tokio::test]
async fn escaped_processes_end_with_the_main_process() {
    let fixture = NodeFixture::new();
    let script = format!("{ESCAPING_PROCESSES} until [ -e over ]; do sleep 0.05; done; exit 7");
    let pod = fixture.running("web", &shell(&script, "Never")).await;
    let directory = fixture.directory(&pod);
    let ids = read_escaped_pids(&directory).await;
    std::fs::write(directory.join("over"), "").unwrap();
    let pod = fixture
        .until("web", |pod| pod.text(&["status", "phase"]) == "Failed")
        .await;
    assert_eq!(state(&pod, "/0/state/terminated/exitCode"), 7);
    // The status is written only after they have exited.
    assert!(ids.iter().all(|id| !is_running(*id)), "{ids:?}");
}

#[tokio::test]
async fn escaped_processes_end_with_the_node() {
    let fixture = NodeFixture::new();
    let script = format!("{ESCAPING_PROCESSES} exec sleep 1000");
    let pod = fixture.running("web", &shell(&script, "Never")).await;
    let directory = fixture.directory(&pod);
    let mut ids = read_escaped_pids(&directory).await;
    for name in ["session", "job", "orphan"] {
        std::fs::remove_file(directory.join(name)).unwrap();
    }
    // Processes of exec too.
    let query = query(&["/bin/sh", "-c", &script], "stdin=true&stdout=true");
    let client = fixture.spdy(Exec, &query, SpdyProtocol::V4).await;
    ids.extend(read_escaped_pids(&directory).await);
    client.disconnect();
    drop(fixture.node);
    assert!(ids.iter().all(|id| !is_running(*id)), "{ids:?}");
}

#[tokio::test]
async fn a_command_ends_with_the_container_that_it_is_in() {
    let fixture = NodeFixture::new();
    let pod = fixture
        .running("web", &shell("exec sleep 1000", "Never"))
        .await;
    let script = format!("{ESCAPING_PROCESSES} exec sleep 1000");
    let query = query(&["/bin/sh", "-c", &script], "stdout=true");
    let client = fixture.spdy(Exec, &query, SpdyProtocol::V4).await;
    let ids = read_escaped_pids(&fixture.directory(&pod)).await;
    fixture.delete_within("web", 1);
    let got = client.finish().await;
    assert_eq!(got.outcome, Outcome::Exited(ExitCode::new(137).unwrap()));
    gone(&ids).await;
}
