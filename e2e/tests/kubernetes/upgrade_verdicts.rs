//! The verdict of `skewbridge check upgrade` on each pair of neighbouring versions equals what then
//! happens when the server is replaced, in both directions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, Protocol, Request, ServerSpec, VersionSpecificApi, Via, kube_apiserver_versions,
    old_and_new_versions,
};
use skewbridge_released_apis::{ApiName, Minor};

/// The most minor versions between a pair. Kubernetes supports one; an etcd can be shared over two.
const MAX_STEP: i32 = 2;

/// By the path of a collection, what it returned: `None` for 404.
type Collections = BTreeMap<String, Option<Vec<Value>>>;

#[tokio::test]
async fn the_verdict_on_an_upgrade_and_the_way_back_is_what_then_happens() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    there_and_back(&old, &new, "api/all=true").await;
}

/// From 1.28 to 1.37.
#[tokio::test]
#[ignore = "long: cargo xtask e2e --all"]
async fn the_verdict_on_each_pair_of_versions_is_what_then_happens() {
    let versions = kube_apiserver_versions();
    let mut pairs = 0;
    for pair in versions.windows(2) {
        let [old, new] = [&pair[0], &pair[1]];
        let [from, to] = [old, new].map(|it| it.parse::<Minor>().unwrap());
        if !(1..=MAX_STEP).contains(&to.ahead_of(from)) {
            continue;
        }
        pairs += 1;
        println!("{old} to {new}, and back");
        // All APIs, then the default ones.
        for apis in ["api/all=true", "api/legacy=true"] {
            there_and_back(old, new, apis).await;
        }
    }
    if pairs == 0 {
        println!("skipped: there are no neighbouring versions");
    }
}

async fn there_and_back(old: &str, new: &str, apis: &str) {
    let server = ServerSpec::of(old).runtime_config(apis).without_bridge();
    let mut plane = ControlPlane::start(&[server]).await;
    create_objects(&plane, "older").await;
    step(&mut plane, new, "--target").await;
    create_objects(&plane, "newer").await;
    step(&mut plane, old, "--rollback").await;
}

/// Checks, replaces the server, and compares.
async fn step(plane: &mut ControlPlane, version: &str, flag: &str) {
    let minor: Minor = version.parse().unwrap();
    let before = collections(plane, None).await;
    let report = check(plane, &format!("{flag}={minor}")).await;
    replace(plane, version).await;
    let paths = before.keys().cloned().collect();
    let after = collections(plane, Some(paths)).await;
    println!("{}: {} collections", report["verdict"], before.len());
    assert_apis_are_as_reported(&report, minor, &before, &after);
    assert_fields_are_as_reported(&report, &before, &after);
    let has_findings = !findings(&report, "finding").is_empty();
    assert_eq!(report["verdict"] == "findings", has_findings);
    assert!(findings(&report, "notKnown").is_empty(), "{report:#}");
}

/// The API that a finding or note is about is gone, its objects can be read as it says, and no other
/// API is gone.
fn assert_apis_are_as_reported(
    report: &Value,
    minor: Minor,
    before: &Collections,
    after: &Collections,
) {
    let gone = before.iter().filter(|(path, _)| after[*path].is_none());
    let gone: BTreeSet<_> = gone.map(|(path, _)| qualified(path)).collect();
    let reported: BTreeMap<_, _> = ["finding", "note"]
        .into_iter()
        .flat_map(|severity| findings(report, severity))
        .filter(|it| it["topic"] == "apis" && text(it, "message").starts_with(&format!("{minor} ")))
        .filter(|it| !text(it, "message").ends_with("it has no stored objects"))
        .map(|it| (text(&it, "subject"), text(&it, "message")))
        .collect();
    assert_eq!(gone, reported.keys().cloned().collect());
    for (path, objects) in before {
        let (Some(message), Some(objects)) = (reported.get(&qualified(path)), objects) else {
            continue;
        };
        println!("{}: {message}", qualified(path));
        let (api, rest) = path.rsplit_once('/').unwrap();
        let (group, _) = api.rsplit_once('/').unwrap();
        let readable = |version: &str| {
            let path = format!("{group}/{version}/{rest}");
            after.get(&path).and_then(Option::as_ref).map(Vec::len)
        };
        if message.ends_with("it has no objects") {
            assert!(objects.is_empty(), "{path}: {message}");
        } else if let Some((_, versions)) = message.split_once("can be read as ") {
            let versions = versions.split(", but ").next().unwrap();
            for version in versions.split(", ") {
                // Only what the old server listed as well was read again.
                if let Some(found) = readable(version) {
                    assert_eq!(found, objects.len(), "{path} as {version}: {message}");
                }
            }
        } else {
            assert!(
                message.ends_with("can no longer be read"),
                "{path}: {message}"
            );
            assert!(!objects.is_empty(), "{path}: {message}");
        }
    }
}

/// Of each object that is still there, exactly the reported fields are gone.
fn assert_fields_are_as_reported(report: &Value, before: &Collections, after: &Collections) {
    let mut lost: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, objects) in before {
        let (Some(objects), Some(left)) = (objects, &after[path]) else {
            continue;
        };
        let left: BTreeMap<_, _> = left.iter().map(|it| (name(it), it)).collect();
        for object in objects {
            let left = left.get(&name(object));
            let left = left.unwrap_or_else(|| panic!("{path}: {} is gone", name(object)));
            let lost = lost.entry(resource(path)).or_default();
            lost.extend(leaves(object).difference(&leaves(left)).cloned());
        }
    }
    lost.retain(|_, fields| !fields.is_empty());
    let mut reported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for finding in findings(report, "finding") {
        if finding["topic"] == "fields" {
            let message = text(&finding, "message");
            let (field, _) = message.split_once(" is set in ").expect(&message);
            let fields = reported.entry(text(&finding, "subject")).or_default();
            fields.insert(field.to_owned());
        }
    }
    println!("fields: {reported:?}");
    for (resource, fields) in &lost {
        let known = reported.get(resource).cloned().unwrap_or_default();
        for field in fields {
            let is_reported = known.iter().any(|it| is_at_or_below(field, it));
            assert!(
                is_reported,
                "{resource}: {field} is lost, and not reported: {known:?}"
            );
        }
    }
    for (resource, fields) in &reported {
        for field in fields {
            let is_lost = lost.get(resource).is_some_and(|lost| {
                let mut lost = lost.iter();
                lost.any(|it| is_at_or_below(it, field))
            });
            assert!(
                is_lost,
                "{resource}: {field} is reported, and not lost: {lost:?}"
            );
        }
    }
}

async fn check(plane: &ControlPlane, target: &str) -> Value {
    let config = plane.kubeconfig_of(&[("server", plane.servers[0].address)]);
    let output = plane
        .skewbridge(&config, &["check", "upgrade", target, "-o=json"])
        .await;
    assert_eq!(output.stderr, "");
    let mut document: Value = serde_json::from_str(&output.stdout).unwrap();
    document["reports"][0].take()
}

/// Replaces the server as an administrator does.
async fn replace(plane: &mut ControlPlane, version: &str) {
    plane.stop_server(0, "TERM");
    plane.replace_server(0, version);
    plane.start_server(0);
    let address = plane.servers[0].address;
    plane
        .wait_for_ready(&format!("the server as {version}"), address)
        .await;
}

/// The objects of all collections that the server lists, or of these. Objects that each start of
/// kube-apiserver changes are left out.
async fn collections(plane: &ControlPlane, paths: Option<Vec<String>>) -> Collections {
    const OF_THE_SERVER: [&str; 4] = ["apiservices", "componentstatuses", "events", "leases"];
    let mut client = plane.http_client(0, Via::Server, Protocol::H2);
    let paths = if let Some(paths) = paths {
        paths
    } else {
        let served = plane.discovered(0, Via::Server).await.into_iter();
        let listed = served.filter(|it| it.verbs.contains("list"));
        let kept = listed.filter(|it| !OF_THE_SERVER.contains(&&*it.resource));
        kept.map(|it| format!("{}/{}", it.prefix, it.resource))
            .collect()
    };
    let mut found = Collections::new();
    for path in paths {
        let response = client.send(&Request::get(&path)).await.unwrap();
        let objects = match response.status {
            404 => None,
            200 => {
                let mut list: Value = serde_json::from_slice(&response.body).unwrap();
                match list["items"].take() {
                    Value::Array(items) => Some(items),
                    _ => Some(Vec::new()),
                }
            }
            status => panic!("{path}: {status} {}", response.text()),
        };
        found.insert(path, objects);
    }
    found
}

/// Objects of this name in APIs and with fields that only some versions have, as far as the server
/// serves them.
async fn create_objects(plane: &ControlPlane, name: &str) {
    let apis = VersionSpecificApi::ALL.map(|it| (it.path, it.object(name)));
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name},
        "spec": {"serviceAccountTokenInSecrets": true, "tokenRequests": [{"audience": "vault"}]},
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "none.example.com/c",
            "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}]},
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": "gold",
            "resources": {"requests": {"storage": "1Gi"}}},
    });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"ports": [{"port": 80}], "trafficDistribution": "PreferClose"},
    });
    let fields = [
        ("/apis/storage.k8s.io/v1/csidrivers", driver),
        ("/api/v1/namespaces/default/pods", pod),
        ("/api/v1/namespaces/default/persistentvolumeclaims", claim),
        ("/api/v1/namespaces/default/services", service),
    ];
    let fields = fields.map(|(path, object)| (path, object.to_string()));
    let mut client = plane.http_client(0, Via::Server, Protocol::H2);
    for (path, object) in apis.into_iter().chain(fields) {
        // A server drops the fields that it does not know.
        let request = Request::new("POST", path).body("application/json", &object);
        let created = client.send(&request).await.unwrap();
        // Not served; and of a feature that is off.
        let is_known = matches!(created.status, 201 | 404 | 422);
        assert!(is_known, "{path}: {}", created.text());
    }
}

fn findings(report: &Value, severity: &str) -> Vec<Value> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|it| it["severity"] == severity)
        .cloned()
        .collect()
}

fn text(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}

/// `NAMESPACE/NAME`
fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!("{}/{}", text(metadata, "namespace"), text(metadata, "name"))
}

/// The name of a collection as a report has it: `deployments.v1.apps`.
fn qualified(path: &str) -> String {
    let (api, resource) = path.rsplit_once('/').unwrap();
    let (group, version) = api.rsplit_once('/').unwrap();
    let name = ApiName {
        group: group.strip_prefix("/apis/").unwrap_or_default().to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
    };
    name.qualified()
}

/// `deployments.apps`
fn resource(path: &str) -> String {
    let (api, resource) = path.rsplit_once('/').unwrap();
    let (group, _) = api.rsplit_once('/').unwrap();
    match group.strip_prefix("/apis/") {
        Some(group) => format!("{resource}.{group}"),
        None => resource.to_owned(),
    }
}

/// The paths of all values, in the form of [`skewbridge_field_sets::FieldPath`] without maps. Metadata
/// are left out: the server writes them.
fn leaves(object: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        if !["metadata", "apiVersion", "kind"].contains(&key.as_str()) {
            add_leaves(key.clone(), value, &mut found);
        }
    }
    found
}

fn add_leaves(path: String, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                add_leaves(format!("{path}.{key}"), value, found);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for value in items {
                add_leaves(format!("{path}[]"), value, found);
            }
        }
        _ => {
            found.insert(path);
        }
    }
}

/// Whether a value is at a field or below it.
fn is_at_or_below(value: &str, field: &str) -> bool {
    let rest = value.strip_prefix(field);
    rest.is_some_and(|it| it.is_empty() || it.starts_with(['.', '[']))
}
