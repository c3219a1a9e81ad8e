//! `skewbridge check upgrade` against real servers.

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, Protocol, Request, ServerSpec, VersionSpecificApi, Via, minors_of_one_plane,
    old_and_new_versions,
};

const CLASSES: &str = "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";

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
        skewbridge_testkit::eventually(
            "the bridge lists both servers",
            std::time::Duration::from_secs(30),
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
