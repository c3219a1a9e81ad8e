//! `skewbridge check upgrade` against real servers.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, Protocol, Request, ServerSpec, VersionSpecificApi, Via, minors_of_one_plane,
    old_and_new_versions,
};
use skewbridge_testkit::eventually;

const CLASSES: &str = "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "widgets.example.com";

/// For a kube-apiserver that begins to serve the versions of a custom resource.
const DEFINITION_TIMEOUT: Duration = Duration::from_secs(30);

const DRIVER_FINDING: &str = "csidrivers.storage.k8s.io: spec.serviceAccountTokenInSecrets is set in 1 \
                              object, such as vault; 1.34 erases it";

const CLASS_FINDING: &str = "volumeattributesclasses.v1alpha1.storage.k8s.io: 1.36 does not serve \
                             storage.k8s.io/v1alpha1; its 1 object can be read as v1";

/// An object of an API that 1.36 does not serve.
fn class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1alpha1", "kind": "VolumeAttributesClass",
        "metadata": {"name": "gold"}, "driverName": "example.com", "parameters": {"a": "b"},
    })
}

/// An object with a field that 1.34 does not have.
fn driver() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "vault"},
        "spec": {"serviceAccountTokenInSecrets": true, "tokenRequests": [{"audience": "vault"}]},
    })
}

/// The exit code, and the report of a target, by the first server.
async fn check(plane: &ControlPlane, words: &[&str]) -> (Option<i32>, Value) {
    check_at(plane, 0, words).await
}

/// The same by the address of another server, or of the bridge in front of it.
async fn check_at(plane: &ControlPlane, server: usize, words: &[&str]) -> (Option<i32>, Value) {
    let config = plane.kubeconfig_of(&[("server", plane.servers[server].bridge)]);
    let line = [&["check", "upgrade", "--context=server", "-o=json"], words].concat();
    let output = plane.skewbridge(&config, &line).await;
    println!("$ skewbridge {}\n{}", line.join(" "), output.stdout);
    assert_eq!(output.stderr, "");
    let mut document: Value = serde_json::from_str(&output.stdout).unwrap();
    (output.code, document["reports"][0].take())
}

/// The subjects and messages of the findings of a severity.
fn findings(report: &Value, severity: &str) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|it| it["severity"] == severity)
        .map(|it| {
            format!(
                "{}: {}",
                it["subject"].as_str().unwrap(),
                it["message"].as_str().unwrap()
            )
        })
        .collect()
}

/// Runs the commands that a report has for a topic and a subject.
async fn follow(plane: &ControlPlane, report: &Value, topic: &str, subject: &str) {
    let findings = report["findings"].as_array().unwrap();
    let finding = findings
        .iter()
        .find(|it| it["topic"] == topic && it["subject"] == subject);
    let commands = finding.unwrap_or_else(|| panic!("{subject}: {report:#}"))["commands"]
        .as_array()
        .unwrap();
    let commands: Vec<_> = commands.iter().map(|it| it.as_str().unwrap()).collect();
    let is_command = |it: &&str| it.starts_with("kubectl ");
    assert!(commands.iter().any(is_command), "{commands:#?}");
    let script = commands.join("\n");
    let output = plane.shell_with_kubectl(0, Via::Server, &script).await;
    println!("{script}\n{}{}", output.stdout, output.stderr);
    assert_eq!(
        (output.code, &*output.stderr),
        (Some(0), ""),
        "{}",
        output.stdout
    );
}

async fn create(plane: &ControlPlane, path: &str, object: &Value) {
    create_at(plane, 0, path, object).await;
}

async fn create_at(plane: &ControlPlane, server: usize, path: &str, object: &Value) {
    let request = Request::new("POST", path).body("application/json", &object.to_string());
    let mut client = plane.http_client(server, Via::Server, Protocol::H2);
    let created = client.send(&request).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text());
}

#[tokio::test]
async fn an_api_that_goes_is_found_with_the_object_in_it() {
    let Some([old, _]) = old_and_new_versions() else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&old).without_bridge()]).await;
    let class = class();
    let gone = "volumeattributesclasses.v1alpha1.storage.k8s.io: 1.36 does not serve storage.k8s.io/v1alpha1; ";

    let (_, before) = check(&plane, &["--target=1.36"]).await;
    assert!(findings(&before, "note").contains(&format!("{gone}it has no objects")));

    create(&plane, CLASSES, &class).await;
    let (code, report) = check(&plane, &["--target=1.36"]).await;
    assert_eq!((code, &report["verdict"]), (Some(2), &json!("findings")));
    let found = findings(&report, "finding");
    assert!(
        found
            .iter()
            .any(|it| it.starts_with(&format!("{gone}its 1 object can be read as v1"))),
        "{found:?}"
    );
    let call = " has answered requests for it since it started, and 1.36 does not serve it";
    assert!(found.iter().any(|it| it.ends_with(call)), "{found:?}");
    assert_eq!(findings(&report, "notKnown"), Vec::<String>::new());

    let config = plane.kubeconfig_of(&[("server", plane.servers[0].address)]);
    let line = ["check", "upgrade", "--context=server", "--target=1.36"];
    let text = plane.skewbridge(&config, &line).await;
    println!("{}", text.stdout);
    assert_eq!(text.code, Some(2));
    let verdict = text.stdout.lines().next().unwrap();
    assert!(verdict.starts_with("upgrade to 1.36: "), "{verdict}");
    let is_command = |line: &&str| line.trim_start().starts_with("kubectl ");
    let mut lines = text.stdout.lines().filter(|line| !is_command(line));
    assert!(lines.all(|line| line.chars().count() <= 100));
    for format in ["markdown", "html"] {
        let output = format!("--output={format}");
        let written = plane
            .skewbridge(&config, &[&line[..], &[&output]].concat())
            .await;
        assert!(
            written.stdout.contains(verdict),
            "{format}: {}",
            written.stdout
        );
    }

    // What it advises removes what it has found.
    let subject = "volumeattributesclasses.v1alpha1.storage.k8s.io";
    follow(&plane, &report, "apis", subject).await;
    let (_, report) = check(&plane, &["--target=1.36"]).await;
    let found = findings(&report, "note");
    let is_left = format!("{gone}its 1 object can be read as v1");
    assert!(
        found.iter().any(|it| it.starts_with(&is_left)),
        "{report:#}"
    );
}

/// A definition with these versions: name, whether it is served. Objects are stored in the last one.
fn widget_versions(versions: &[(&str, bool)]) -> Value {
    let last = versions.len() - 1;
    let versions = versions.iter().enumerate().map(|(number, (name, served))| {
        json!({
            "name": name, "served": served, "storage": number == last,
            "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        })
    });
    versions.collect()
}

async fn set_widget_versions(plane: &ControlPlane, versions: &Value) -> u16 {
    let widgets = format!("{DEFINITIONS}/{WIDGETS}");
    let patch = json!({"spec": {"versions": versions}}).to_string();
    let request = Request::new("PATCH", &widgets).body("application/merge-patch+json", &patch);
    let mut client = plane.http_client(0, Via::Server, Protocol::H2);
    let response = client.send(&request).await.unwrap();
    println!("{widgets}: {}", response.text());
    response.status
}

fn widgets(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/widgets")
}

async fn wait_for_widgets(plane: &ControlPlane, version: &str) {
    let what = format!("widgets are served as {version}");
    eventually(&what, DEFINITION_TIMEOUT, async || {
        plane.status(0, Via::Server, &widgets(version)).await == 200
    })
    .await;
}

#[tokio::test]
async fn the_commands_for_custom_resources_store_them_in_the_current_version() {
    let Some([old, _]) = old_and_new_versions() else {
        return;
    };
    let server = ServerSpec::of(&old).runtime_config("api/legacy=true");
    let mut plane = ControlPlane::start(&[server.without_bridge()]).await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": WIDGETS},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": widget_versions(&[("v1alpha1", true)]),
        },
    });
    create(&plane, DEFINITIONS, &definition).await;
    wait_for_widgets(&plane, "v1alpha1").await;
    let widget = json!({
        "apiVersion": "example.com/v1alpha1", "kind": "Widget", "metadata": {"name": "first"},
    });
    create(&plane, &widgets("v1alpha1"), &widget).await;
    let storage_is = |plane: &mut ControlPlane, version: &str| {
        let key = "/registry/example.com/widgets/default/first";
        let stored = plane.etcd().stored_text(key);
        let expected = format!("{{\"apiVersion\":\"example.com/{version}\",");
        assert!(stored.starts_with(&expected), "{expected}: {stored}");
    };

    let may_be_stored = format!("{WIDGETS}: objects may be stored as ");
    let stored_versions = |report: &Value| -> Vec<String> {
        let found = [findings(report, "finding"), findings(report, "note")].concat();
        let of_widgets = found.into_iter().filter(|it| it.starts_with(WIDGETS));
        of_widgets.collect()
    };
    // The old version is served, and then another one is not.
    let rows = [
        (
            "v1alpha1",
            true,
            "v1beta1",
            "v1alpha1, v1beta1; all of these are served",
        ),
        ("v1beta1", false, "v1", "v1beta1, which is not served"),
    ];
    for (old, is_served, new, expected) in rows {
        let versions = widget_versions(&[(old, is_served), (new, true)]);
        assert_eq!(set_widget_versions(&plane, &versions).await, 200);
        wait_for_widgets(&plane, new).await;
        storage_is(&mut plane, old);
        let (_, report) = check(&plane, &["--target=1.35"]).await;
        assert_eq!(
            stored_versions(&report),
            [format!("{may_be_stored}{expected}")]
        );
        // kube-apiserver keeps a version in which there may be objects.
        let only = widget_versions(&[(new, true)]);
        assert_eq!(set_widget_versions(&plane, &only).await, 422);

        follow(&plane, &report, "storage", WIDGETS).await;
        storage_is(&mut plane, new);
        let (code, report) = check(&plane, &["--target=1.35"]).await;
        assert_eq!((code, stored_versions(&report)), (Some(0), Vec::new()));
        assert_eq!(set_widget_versions(&plane, &only).await, 200);
    }
}

/// 1.34 stores them in a version that 1.37 does not have.
#[tokio::test]
async fn the_commands_for_stored_versions_help_at_a_version_in_between() {
    let Some([old, new]) = old_and_new_versions().filter(|[_, new]| new.starts_with("1.36."))
    else {
        return;
    };
    let server = ServerSpec::of(&old).runtime_config("api/legacy=true");
    let mut plane = ControlPlane::start(&[server.without_bridge()]).await;
    let classes = "volumeattributesclasses.storage.k8s.io";
    let mut class = class();
    class["apiVersion"] = json!("storage.k8s.io/v1");
    create(&plane, &CLASSES.replace("v1alpha1", "v1"), &class).await;
    let is_stored_as_beta = |plane: &mut ControlPlane| {
        let key = "/registry/volumeattributesclasses/gold";
        let stored = plane.etcd().stored_text(key);
        assert!(stored.contains("storage.k8s.io/v1"), "{stored}");
        stored.contains("storage.k8s.io/v1beta1")
    };
    assert!(is_stored_as_beta(&mut plane));
    let (_, report) = check(&plane, &["--target=1.37"]).await;
    let expected =
        format!("{classes}: its 1 object may be stored as v1beta1, which 1.37 does not have");
    let found = findings(&report, "finding");
    assert!(found.contains(&expected), "{found:?}");

    // As it says, they change nothing before the upgrade.
    follow(&plane, &report, "storage", classes).await;
    assert!(is_stored_as_beta(&mut plane));
    plane.stop_server(0, "TERM");
    plane.replace_server(0, &new);
    plane.start_server(0);
    let address = plane.servers[0].address;
    plane.wait_for_ready("the newer server", address).await;
    assert!(is_stored_as_beta(&mut plane));
    follow(&plane, &report, "storage", classes).await;
    assert!(!is_stored_as_beta(&mut plane));
    let (_, report) = check(&plane, &["--target=1.37"]).await;
    let found = findings(&report, "finding");
    assert!(!found.iter().any(|it| it.starts_with(classes)), "{found:?}");
}

#[tokio::test]
async fn a_rollback_names_the_field_that_it_erases() {
    let Some([_, new]) = old_and_new_versions() else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&new)
        .runtime_config("api/legacy=true")
        .without_bridge()])
    .await;
    let (code, clean) = check(&plane, &["--rollback=1.35"]).await;
    assert_eq!(
        (code, &clean["verdict"]),
        (Some(0), &json!("go")),
        "{clean}"
    );

    create(&plane, DRIVERS, &driver()).await;
    let (code, report) = check(&plane, &["--rollback=1.34"]).await;
    assert_eq!(code, Some(2));
    assert!(findings(&report, "finding").contains(&DRIVER_FINDING.to_owned()));
}

#[tokio::test]
async fn a_cluster_with_the_default_apis_may_go_to_the_next_version() {
    let Some([old, _]) = old_and_new_versions() else {
        return;
    };
    let plane = ControlPlane::start(&[ServerSpec::of(&old)
        .runtime_config("api/legacy=true")
        .without_bridge()])
    .await;
    let (code, report) = check(&plane, &["--target=1.35"]).await;
    assert_eq!(
        (code, &report["verdict"]),
        (Some(0), &json!("go")),
        "{report}"
    );

    // A server that does not answer is not known, and not good.
    let closed = "--server=https://127.0.0.1:1";
    let open = format!("--server=https://{}", plane.servers[0].address);
    let (code, report) = check(&plane, &["--target=1.35", &open, closed]).await;
    assert_eq!((code, &report["verdict"]), (Some(1), &json!("notKnown")));
    assert!(!findings(&report, "notKnown").is_empty());
}

/// Of servers and controllers that are not as they are by default.
#[tokio::test]
async fn emulated_versions_and_unfinished_migrations_are_found() {
    let Some([_, new]) = old_and_new_versions().filter(|[_, new]| new.starts_with("1.36.")) else {
        return;
    };
    let default_apis = || {
        let server = ServerSpec::of(&new).without_bridge();
        server.runtime_config("api/legacy=true")
    };
    let emulating = default_apis()
        .flag("--emulated-version=1.35")
        .flag("--min-compatibility-version=1.35");
    let migrating = default_apis()
        .gate("StorageVersionMigrator", true)
        .runtime_config("storagemigration.k8s.io/v1beta1=true");
    let plane = ControlPlane::start(&[emulating, migrating]).await;
    let migration = json!({
        "apiVersion": "storagemigration.k8s.io/v1beta1", "kind": "StorageVersionMigration",
        "metadata": {"name": "all-classes"},
        "spec": {"resource": {"group": "storage.k8s.io", "resource": "volumeattributesclasses"}},
    });
    let migrations = "/apis/storagemigration.k8s.io/v1beta1/storageversionmigrations";
    create_at(&plane, 1, migrations, &migration).await;

    let servers = [0, 1].map(|it| format!("--server=https://{}", plane.servers[it].address));
    let [first, second] = &servers;
    let emulating = plane.servers[0].address;
    let (code, report) = check(&plane, &["--target=1.37", first, second]).await;
    assert_eq!(code, Some(2));
    let note =
        format!("{emulating}: it is {new} and emulates 1.35: APIs of 1.36 are not served yet");
    assert!(findings(&report, "note").contains(&note));
    let unfinished = "StorageVersionMigration all-classes: the migration of \
                      volumeattributesclasses.storage.k8s.io has not finished";
    let found = findings(&report, "finding");
    assert!(found.iter().any(|it| it == unfinished), "{found:?}");

    let (code, report) = check(&plane, &["--rollback=1.34", first, second]).await;
    assert_eq!(code, Some(2));
    let oldest = format!(
        "{emulating}: --min-compatibility-version=1.35: what it stores may not be readable by 1.34"
    );
    let found = findings(&report, "finding");
    assert!(found.contains(&oldest), "{found:?}");
}

/// What both directions have to find while 1.34 and 1.36 are mixed, whatever server is asked first.
async fn assert_found_in_both_directions(plane: &ControlPlane, server: usize, servers: &[&str]) {
    let (code, report) = check_at(plane, server, &[&["--target=1.36"], servers].concat()).await;
    assert_eq!(code, Some(2));
    let found = findings(&report, "finding");
    assert!(
        found.iter().any(|it| it.starts_with(CLASS_FINDING)),
        "{found:?}"
    );
    assert_eq!(findings(&report, "notKnown"), Vec::<String>::new());

    let (code, report) = check_at(plane, server, &[&["--rollback=1.34"], servers].concat()).await;
    assert_eq!(code, Some(2));
    let found = findings(&report, "finding");
    assert!(found.contains(&DRIVER_FINDING.to_owned()), "{found:?}");
    assert_eq!(findings(&report, "notKnown"), Vec::<String>::new());
}

#[tokio::test]
async fn a_mixed_cluster_without_bridges_is_read_at_the_servers_that_show_its_objects() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let servers = versions.map(|it| ServerSpec::of(&it).without_bridge());
    let plane = ControlPlane::start(&servers).await;
    create_at(&plane, 0, CLASSES, &class()).await;
    create_at(&plane, 1, DRIVERS, &driver()).await;
    let [old, new] = [0, 1].map(|it| format!("--server=https://{}", plane.servers[it].address));
    for servers in [[&*old, &*new], [&*new, &*old]] {
        assert_found_in_both_directions(&plane, 0, &servers).await;
    }
    // Without the server that has them, nothing is known of the fields.
    let closed = "--server=https://127.0.0.1:1";
    let (_, report) = check(&plane, &["--rollback=1.34", &old, closed]).await;
    assert!(!findings(&report, "notKnown").is_empty());

    let config = plane.kubeconfig_of(&[("server", plane.servers[0].address)]);
    let line = ["upgrade", "plan", "--target=1.36", &new, &old];
    let plan = plane.skewbridge(&config, &line).await;
    println!("$ skewbridge {}\n{}", line.join(" "), plan.stdout);
    assert_eq!((plan.code, &*plan.stderr), (Some(2), ""));
    let position = |text: &str| plan.stdout.find(text).expect(text);
    let old = plane.servers[0].address;
    let steps = [
        "**Resolve volumeattributesclasses.v1alpha1.storage.k8s.io**".to_owned(),
        "**Save a snapshot of etcd**".to_owned(),
        "## To 1.35".to_owned(),
        format!("**Upgrade the kube-apiserver {old} from"),
        "## To 1.36".to_owned(),
        format!("**Upgrade the kube-apiserver {old} from 1.35"),
    ];
    assert!(steps.map(|it| position(&it)).is_sorted());
}

#[tokio::test]
async fn a_mixed_cluster_is_read_through_any_of_its_bridges() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let servers = versions.map(|it| ServerSpec::of(&it).peer());
    let plane = ControlPlane::start(&servers).await;
    create_at(&plane, 0, CLASSES, &class()).await;
    create_at(&plane, 1, DRIVERS, &driver()).await;
    let [old, new] = [0, 1].map(|it| format!("--server=https://{}", plane.servers[it].bridge));
    for server in [0, 1] {
        eventually(
            "the bridge lists both servers",
            Duration::from_secs(30),
            async || {
                let kinds = plane.kinds(server, Via::Bridge).await;
                plane.kinds(0, Via::Server).await.is_subset(&kinds)
                    && plane.kinds(1, Via::Server).await.is_subset(&kinds)
            },
        )
        .await;
        // The bridge lists the other server.
        let (_, report) = check_at(&plane, server, &["--target=1.36"]).await;
        let other = &plane.servers[1 - server].host;
        let expected = format!(
            "{other}: a bridge lists it, and it was not queried: name each server with --server"
        );
        assert_eq!(findings(&report, "notKnown"), [expected]);
        assert_found_in_both_directions(&plane, server, &[&*old, &*new]).await;
    }
    let config = plane.kubeconfig_of(&[("server", plane.servers[1].bridge)]);
    let plan = ["upgrade", "plan", "--target=1.36", "-o=json", &old, &new];
    let plan = plane.skewbridge(&config, &plan).await;
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    let steps = plan["plans"][0]["steps"].as_array().unwrap();
    let address = plane.servers[0].bridge;
    let title = format!("Upgrade the kube-apiserver {address} from");
    let is_old = |it: &&Value| it["title"].as_str().unwrap().starts_with(&title);
    let step = steps.iter().find(is_old).expect(&title);
    let note = step["notes"][0].as_str().unwrap();
    assert!(
        note.starts_with(&format!("In front of it: the bridge at {address}.")),
        "{note}"
    );
}

#[tokio::test]
async fn the_upgrade_and_the_rollback_of_the_oldest_pair_are_right() {
    let Some([old, new]) = minors_of_one_plane([28, 29]) else {
        return;
    };
    let default_apis = |version: &str| {
        let server = ServerSpec::of(version).without_bridge();
        server.runtime_config("api/legacy=true")
    };
    let plane = ControlPlane::start(&[default_apis(&old)]).await;
    let (code, report) = check(&plane, &["--target=1.29"]).await;
    assert_eq!(
        (code, &report["verdict"]),
        (Some(0), &json!("go")),
        "{report}"
    );
    let schemas = VersionSpecificApi::FLOW_SCHEMAS;
    let schema: Value = serde_json::from_str(&schemas.object("ours")).unwrap();
    create(&plane, schemas.path, &schema).await;
    let (code, report) = check(&plane, &["--target=1.29"]).await;
    assert_eq!(code, Some(2));
    let gone = format!("{}: 1.29 does not serve", schemas.kubectl);
    let found = findings(&report, "finding");
    assert!(found.iter().any(|it| it.starts_with(&gone)), "{found:?}");
    assert_eq!(findings(&report, "notKnown"), Vec::<String>::new());

    let plane = ControlPlane::start(&[default_apis(&new)]).await;
    let (code, report) = check(&plane, &["--rollback=1.28"]).await;
    assert_eq!(
        (code, &report["verdict"]),
        (Some(0), &json!("go")),
        "{report}"
    );
    let schemas = VersionSpecificApi::FLOW_SCHEMAS_V1;
    let schema: Value = serde_json::from_str(&schemas.object("ours")).unwrap();
    create(&plane, schemas.path, &schema).await;
    let (code, report) = check(&plane, &["--rollback=1.28"]).await;
    assert_eq!(code, Some(2));
    let gone = format!("{}: 1.28 does not serve", schemas.kubectl);
    let found = findings(&report, "finding");
    assert!(found.iter().any(|it| it.starts_with(&gone)), "{found:?}");
}
