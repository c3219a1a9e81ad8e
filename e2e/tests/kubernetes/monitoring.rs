//! The real Prometheus scrapes bridges in front of real kube-apiservers, and evaluates the alert rules
//! that `skewbridge manifest prometheus-rules` prints.

mod alerts;
mod policy_and_stream_alerts;
mod rule_tests;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, HttpClient, Output, Prometheus, Protocol, Request, ServerSpec, User, Via,
    free_address, is_since, newest, versions,
};
use skewbridge_testkit::{Response, eventually};

const PAGE: &str = include_str!("../../../docs/monitoring.md");
const RBAC: &str = include_str!("../../../crates/cli/src/manifest/rbac.yaml");

/// Some scrapes and evaluations.
const ALERT_TIMEOUT: Duration = Duration::from_secs(90);

/// When discovery of a peer counts as stale, by the printed rules.
const PRINTED_STALENESS_SECONDS: u32 = 600;

/// The same in a test. A peer that answers is polled every 24 to 30 s at the longest.
const STALENESS_SECONDS: u32 = 45;

/// The block of the documentation page that begins with this line.
fn documented(first_line: &str) -> &'static str {
    let mut blocks = PAGE.split("```yaml\n").skip(1);
    let block = blocks.find(|it| it.starts_with(first_line)).unwrap();
    block.split_once("```").unwrap().0
}

async fn apply(plane: &ControlPlane, name: &str, text: &str) {
    let file = plane.file(name, text);
    let words = ["apply", "-f", &file];
    let applied = plane.kubectl(0, Via::Server, User::Admin, &words).await;
    assert_eq!(applied.code, Some(0), "{}", applied.stderr);
}

/// The token of a service account, as the page gets it.
async fn token(plane: &ControlPlane, name: &str) -> String {
    let words = ["create", "token", name, "--namespace=monitoring"];
    let created = plane.kubectl(0, Via::Server, User::Admin, &words).await;
    assert_eq!(created.code, Some(0), "{}", created.stderr);
    created.stdout.trim().to_owned()
}

async fn manifest(plane: &ControlPlane, kind: &str) -> Output {
    let mut command = plane.skewbridge_command(0, Via::Bridge, User::Admin);
    Output::of(&command.args(["manifest", kind]).output().await.unwrap())
}

/// The rules as printed, with times of a test: an alert fires as soon as its condition is seen.
async fn fast_rules(plane: &ControlPlane) -> String {
    let rules = manifest(plane, "prometheus-rules").await;
    assert_eq!(rules.code, Some(0), "{}", rules.stderr);
    let file = plane.file("rules.yaml", &rules.stdout);
    let checked = plane.promtool(&["check", "rules", &file]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let stale = format!("> {PRINTED_STALENESS_SECONDS}'");
    assert_eq!(rules.stdout.matches(&stale).count(), 1);
    let fast = rules.stdout.lines().map(|line| match line.trim_start() {
        rest if rest.starts_with("for: ") => "    for: 0s\n".to_owned(),
        _ => {
            let of_test = format!("> {STALENESS_SECONDS}'");
            format!("{}\n", line.replace(&stale, &of_test))
        }
    });
    plane.file("fast-rules.yaml", &fast.collect::<String>())
}

/// The job in the documentation page that scrapes the secure admin port with a token, with the files
/// and the address of a test.
fn documented_job(plane: &ControlPlane, target: SocketAddr, token: &str, name: &str) -> String {
    const TARGETS: &str = r#""10.0.0.11:10271", "10.0.0.12:10271", "10.0.0.13:10271""#;
    const SECRETS: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let ca = plane.file("prometheus-ca.crt", &plane.ca().pem());
    let token = plane.file(&format!("{name}.token"), token);
    let page = documented("scrape_configs:\n");
    let mut job = page.strip_prefix("scrape_configs:\n").unwrap().to_owned();
    for (documented, here) in [
        (format!("{SECRETS}/token"), token),
        (format!("{SECRETS}/ca.crt"), ca),
        (TARGETS.to_owned(), format!("\"{target}\"")),
    ] {
        assert_eq!(job.matches(&documented).count(), 1, "{documented}: {job}");
        job = job.replace(&documented, &here);
    }
    job
}

/// The same under another name, and with a label that tells its series apart.
fn other_job(plane: &ControlPlane, target: SocketAddr, token: &str, name: &str) -> String {
    let job = documented_job(plane, target, token, name);
    let job = job.replace("job_name: skewbridge", &format!("job_name: {name}"));
    format!(
        "{job}    labels: {{scraper: {name}}}
  relabel_configs: [{{target_label: job, replacement: skewbridge}}]
"
    )
}

fn config(rules: &str, interval: &str, jobs: &str) -> String {
    format!(
        "global: {{scrape_interval: {interval}, scrape_timeout: {interval}, evaluation_interval: 1s}}
rule_files: ['{rules}']
scrape_configs:
{jobs}"
    )
}

/// Waits until a job has scraped with this result.
async fn wait_for_health(prometheus: &Prometheus, job: &str, health: &str, error: &str) {
    let what = format!("the target of {job} is {health} with {error:?}");
    eventually(&what, ALERT_TIMEOUT, async || {
        let targets = prometheus.targets(job).await;
        targets.first().is_some_and(|it| {
            it["health"] == health && it["lastError"].as_str().unwrap().contains(error)
        })
    })
    .await;
}

#[tokio::test]
async fn prometheus_scrapes_with_the_token_of_a_permitted_service_account() {
    let admin = free_address();
    let version = newest(&versions()).to_owned();
    let server = ServerSpec::of(&version)
        .bridge_flag(&format!("--admin-secure-address={admin}"))
        .bridge_flag("--bridge-user=skewbridge");
    let mut plane = ControlPlane::prepare(&[server]);
    plane.start_server(0);
    let address = plane.servers[0].address;
    plane.wait_for_ready("a kube-apiserver", address).await;
    apply(&plane, "rbac.yaml", RBAC).await;
    let manifest = documented("# A service account that may read the metrics");
    apply(&plane, "monitoring.yaml", manifest).await;
    let unpermitted = [
        "create",
        "serviceaccount",
        "unpermitted",
        "--namespace=monitoring",
    ];
    plane
        .kubectl(0, Via::Server, User::Admin, &unpermitted)
        .await;
    plane.start_bridge(0);
    plane.wait_until_ready().await;

    let permitted = token(&plane, "prometheus").await;
    let no_rights = token(&plane, "unpermitted").await;
    let jobs = [
        documented_job(&plane, admin, &permitted, "skewbridge"),
        other_job(&plane, admin, &no_rights, "unpermitted"),
        other_job(&plane, admin, "not-a-token", "unknown"),
    ];
    let rules = fast_rules(&plane).await;
    let config = config(&rules, "5s", &jobs.concat());
    let checked = plane.file("check.yml", &config);
    let checked = plane.promtool(&["check", "config", &checked]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let prometheus = plane.start_prometheus(&config).await;
    wait_for_health(&prometheus, "skewbridge", "up", "").await;
    wait_for_health(&prometheus, "unpermitted", "down", "403 Forbidden").await;
    wait_for_health(&prometheus, "unknown", "down", "401 Unauthorized").await;
    eventually(
        "the bridge is ready in Prometheus",
        ALERT_TIMEOUT,
        async || prometheus.value("skewbridge_ready{scraper=\"\"}").await == Some(1.0),
    )
    .await;
    // The targets that are refused, and no other.
    prometheus
        .wait_for_alert("SkewbridgeDown", ALERT_TIMEOUT)
        .await;
    let down = prometheus.firing_labels().await;
    let is_permitted = |it: &Value| it["alertname"] == "SkewbridgeDown" && it["scraper"].is_null();
    assert!(!down.iter().any(is_permitted), "{down:#?}");
    alerts::silent(&prometheus, admin, "SkewbridgeNotReady").await;

    // The reviews are those of the bridge's user, which has only the rights of the manifest.
    let log = std::fs::read_to_string(&plane.servers[0].audit_log).unwrap();
    let events = log
        .lines()
        .filter_map(|it| serde_json::from_str::<Value>(it).ok());
    let own = events.filter(|it| it["user"]["username"] == "skewbridge");
    let own = own.filter(|it| it["stage"] == "ResponseComplete");
    let mut reviewed = BTreeSet::new();
    for event in own {
        assert_ne!(event["responseStatus"]["code"], 403, "{event}");
        let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
        reviewed.insert(resource.to_owned());
    }
    assert!(reviewed.contains("tokenreviews"), "{reviewed:?}");
    assert!(reviewed.contains("subjectaccessreviews"), "{reviewed:?}");

    // A bridge whose server is down is scraped on, with the permission from before.
    plane.stop_server(0, "KILL");
    prometheus
        .wait_for_alert("SkewbridgeNotReady", ALERT_TIMEOUT)
        .await;
    let up = prometheus.value("up{scraper=\"\"}").await;
    assert_eq!(up, Some(1.0));
}

/// The names of a component and its first lines, for a comparison of two components.
fn without_component(text: &str) -> Vec<String> {
    let lines = text.lines().take(3);
    let lines = lines.map(|it| it.replace("apiserver ", "COMPONENT "));
    lines
        .map(|it| it.replace("skewbridge", "COMPONENT"))
        .collect()
}

/// The types of the fields of an object, by name.
fn shape(object: &Value) -> BTreeSet<(String, &'static str)> {
    let kind = |value: &Value| match value {
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
        Value::Bool(_) | Value::Null => "other",
    };
    let fields = object.as_object().unwrap().iter();
    fields
        .map(|(name, value)| (name.clone(), kind(value)))
        .collect()
}

/// Compares a page of kube-apiserver with that of a bridge.
fn compare(what: &str, theirs: &Response, ours: &Response) {
    let what = format!("{what}: {} {}", theirs.text(), ours.text());
    assert_eq!(ours.status, theirs.status, "{what}");
    for name in ["content-type", "warning"] {
        assert_eq!(ours.header(name), theirs.header(name), "{name} {what}");
    }
    if ours.status != 200 {
        let [theirs, ours]: [Value; 2] =
            [theirs, ours].map(|it| serde_json::from_slice(&it.body).unwrap());
        assert_eq!(ours["reason"], theirs["reason"], "{what}");
        assert_eq!(shape(&ours), shape(&theirs), "{what}");
        return;
    }
    if !ours
        .header("content-type")
        .unwrap()
        .starts_with("application/json")
    {
        let [theirs, ours] = [theirs, ours].map(|it| without_component(&it.text()));
        assert_eq!(ours, theirs);
        return;
    }
    let [theirs, ours]: [Value; 2] =
        [theirs, ours].map(|it| serde_json::from_slice(&it.body).unwrap());
    let (their_shape, our_shape) = (shape(&theirs), shape(&ours));
    let missing: Vec<_> = their_shape.difference(&our_shape).collect();
    // The bridge emulates no version.
    let emulation = ("emulationVersion".to_owned(), "string");
    assert!(missing.iter().all(|it| **it == emulation), "{missing:?}");
    assert!(our_shape.is_subset(&their_shape), "{our_shape:?}");
    assert_eq!(ours["apiVersion"], theirs["apiVersion"]);
    assert_eq!(ours["kind"], theirs["kind"]);
    assert_eq!(shape(&ours["metadata"]), shape(&theirs["metadata"]));
}

#[tokio::test]
async fn statusz_and_flagz_have_the_shape_of_kube_apiserver() {
    let version = newest(&versions()).to_owned();
    if !is_since(&version, 36) {
        return;
    }
    let admin = free_address();
    let server = ServerSpec::of(&version)
        .gate("ComponentStatusz", true)
        .gate("ComponentFlagz", true)
        .bridge_flag(&format!("--admin-secure-address={admin}"));
    let plane = ControlPlane::start(&[server]).await;
    let addresses = [plane.servers[0].address, admin];
    let mut clients = addresses.map(|it| HttpClient::new(plane.client("admin"), it, Protocol::H1));
    for (path, kind) in [("/statusz", "Statusz"), ("/flagz", "Flagz")] {
        let json =
            |version: &str| format!("application/json;g=config.k8s.io;v={version};as={kind}");
        let accepts = [
            String::new(),
            "*/*".to_owned(),
            "text/plain".to_owned(),
            json("v1beta1"),
            json("v1alpha1"),
            "application/json".to_owned(),
            "text/html".to_owned(),
            json("v1"),
        ];
        for accept in accepts {
            let mut request = Request::get(path);
            if !accept.is_empty() {
                request = request.header("Accept", &accept);
            }
            let [theirs, ours] = &mut clients;
            let theirs = theirs.send(&request).await.unwrap();
            let ours = ours.send(&request).await.unwrap();
            compare(&format!("{path} {accept:?}"), &theirs, &ours);
        }
    }
    // Every flag, with its value.
    let accept = "application/json;g=config.k8s.io;v=v1beta1;as=Flagz";
    let request = Request::get("/flagz").header("Accept", accept);
    let flags = clients[1].send(&request).await.unwrap();
    let flags: Value = serde_json::from_slice(&flags.body).unwrap();
    assert_eq!(flags["flags"]["admin-secure-address"], admin.to_string());
    assert_eq!(flags["flags"]["v"], "2");
}
