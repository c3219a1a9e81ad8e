//! `skewbridge skew` against real servers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use skewbridge_e2e::{ControlPlane, Output, ServerSpec, User, Via};

const OLD: &str = "1.34.4";
const NEW: &str = "1.36.4";

/// Runs `skewbridge skew` with this kubeconfig on these contexts.
async fn skew(plane: &ControlPlane, config: &str, contexts: &[&str], words: &[&str]) -> Output {
    let contexts = contexts
        .iter()
        .map(|context| format!("--context={context}"));
    let contexts: Vec<_> = contexts.collect();
    let mut line = vec!["skew"];
    line.extend(contexts.iter().map(String::as_str));
    line.extend(words);
    let output = plane.skewbridge(config, &line).await;
    println!(
        "$ skewbridge {}\n{}{}",
        line.join(" "),
        output.stdout,
        output.stderr
    );
    output
}

/// The servers that a difference in a whole resource affects.
fn affected_servers<'a>(
    report: &'a Value,
    group: &str,
    version: &str,
    resource: &str,
) -> &'a Value {
    let mut differences = report["differences"].as_array().unwrap().iter();
    let found = differences.find(|it| {
        (&it["group"], &it["version"], &it["resource"])
            == (&json!(group), &json!(version), &json!(resource))
            && it.get("subresource").is_none()
    });
    &found.expect(resource)["on"]
}

#[tokio::test]
async fn servers_of_two_versions_are_compared_without_a_bridge() {
    let mut plane = ControlPlane::start(&[
        ServerSpec::of(OLD),
        ServerSpec::of(NEW),
        ServerSpec::of(NEW),
    ])
    .await;
    let address = |server: usize| plane.servers[server].address;
    let config = plane.kubeconfig_of(&[
        ("old", address(0)),
        ("new", address(1)),
        ("other", address(2)),
        ("same", address(1)),
        ("lone", plane.servers[0].bridge),
    ]);

    let ran = skew(&plane, &config, &["old", "new"], &[]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!(ran.stderr, "");
    for expected in [
        "old      v1.34.4",
        "new      v1.36.4",
        "mutatingadmissionpolicies ",
        "storage.k8s.io/v1alpha1 (all of it)",
        "volumeattributesclasses",
        "A client pinned to new would miss ",
    ] {
        assert!(ran.stdout.contains(expected), "no {expected:?}");
    }
    assert!(!ran.stdout.contains('\u{1b}'));
    assert!(ran.stdout.lines().all(|line| line.len() <= 120));

    let ran = skew(&plane, &config, &["old", "new"], &["-o=json"]).await;
    assert_eq!(ran.code, Some(2));
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["complete"], true);
    assert_eq!(report["servers"][0]["version"], "v1.34.4");
    let group = "admissionregistration.k8s.io";
    let policies = affected_servers(&report, group, "v1", "mutatingadmissionpolicies");
    assert_eq!(policies, &json!(["new"]));
    let classes = affected_servers(
        &report,
        "storage.k8s.io",
        "v1alpha1",
        "volumeattributesclasses",
    );
    assert_eq!(classes, &json!(["old"]));

    for contexts in [["new", "same"], ["new", "other"]] {
        let ran = skew(&plane, &config, &contexts, &["-o=wide"]).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.contains("No skew"), "{ran:?}");
    }

    let servers = [0, 1].map(|server| format!("--server=https://{}", address(server)));
    let ran = skew(&plane, &config, &[], &[&servers[0], &servers[1]]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");

    // A server without a bridge does not list the others.
    let ran = skew(&plane, &config, &["old"], &[]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("has no bridge"), "{ran:?}");

    // Nor does a bridge without peers. It reports that it runs local-only.
    let ran = skew(&plane, &config, &["lone"], &[]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains(" runs local-only ("), "{ran:?}");
    let ran = skew(&plane, &config, &["lone", "new"], &[]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stdout.contains("pinned to lone would miss "), "{ran:?}");
    assert!(
        ran.stdout.contains("\nThe bridge lone runs local-only ("),
        "{ran:?}"
    );

    plane.stop_server(2, "KILL");
    let ran = skew(&plane, &config, &["old", "new", "other"], &[]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.starts_with("skewbridge: other: "), "{ran:?}");
    assert!(ran.stdout.contains("mutatingadmissionpolicies "), "{ran:?}");
}

/// The fields of a resource that not all servers have, with the servers that have them.
fn differing_fields<'a>(
    report: &'a Value,
    group: &str,
    resource: &str,
) -> Vec<(&'a str, &'a Value)> {
    let mut differences = report["differences"].as_array().unwrap().iter();
    let found =
        differences.find(|it| (&it["group"], &it["resource"]) == (&json!(group), &json!(resource)));
    let fields = found.expect(resource)["fields"].as_array().unwrap();
    let fields = fields.iter();
    fields
        .map(|it| (it["path"].as_str().unwrap(), &it["knownBy"]))
        .collect()
}

/// Types of the OpenAPI documents of a server, with their own fields.
async fn types(plane: &ControlPlane, server: usize) -> BTreeMap<String, BTreeSet<String>> {
    let mut types = BTreeMap::<String, BTreeSet<String>>::new();
    let raw = async |path: &str| -> Value {
        let ran = plane
            .kubectl(server, Via::Server, User::Admin, &["get", "--raw", path])
            .await;
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let index = raw("/openapi/v3").await;
    for key in index["paths"].as_object().unwrap().keys() {
        let document = raw(&format!("/openapi/v3/{key}")).await;
        let schemas = document["components"]["schemas"].as_object();
        for (name, schema) in schemas.into_iter().flatten() {
            let fields = schema["properties"].as_object();
            let fields = fields.into_iter().flat_map(|it| it.keys().cloned());
            types.entry(name.clone()).or_default().extend(fields);
        }
    }
    types
}

/// 17 types of stored objects with other fields, and `ListMeta`, which is not stored.
const DIFFERING_TYPES: [&str; 18] = [
    "api.core.v1.NodeStatus",
    "api.core.v1.PodCertificateProjection",
    "api.core.v1.PodSpec",
    "api.core.v1.PodStatus",
    "api.core.v1.ResourceHealth",
    "api.core.v1.VolumeMountStatus",
    "api.resource.v1.Device",
    "api.resource.v1.DeviceAttribute",
    "api.resource.v1alpha3.DeviceTaintRule",
    "api.resource.v1alpha3.DeviceTaintSelector",
    "api.resource.v1beta1.BasicDevice",
    "api.resource.v1beta1.DeviceAttribute",
    "api.resource.v1beta2.Device",
    "api.resource.v1beta2.DeviceAttribute",
    "api.storage.v1.CSIDriverSpec",
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionCondition",
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionStatus",
    "apimachinery.pkg.apis.meta.v1.ListMeta",
];

#[tokio::test]
async fn fields_that_one_server_does_not_know_are_found() {
    let servers = [OLD, NEW].map(|version| ServerSpec::of(version).peer());
    let plane = ControlPlane::start(&servers).await;
    let config = plane.kubeconfig_of(&[
        ("old", plane.servers[0].address),
        ("new", plane.servers[1].address),
        ("same", plane.servers[1].address),
        ("old-bridge", plane.servers[0].bridge),
        ("new-bridge", plane.servers[1].bridge),
    ]);
    let tokens = "spec.serviceAccountTokenInSecrets";

    let ran = skew(&plane, &config, &["old", "new"], &["--fields"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert_eq!(ran.stderr, "");
    for expected in [
        "csidrivers.storage.k8s.io (CSIDriver)\n",
        tokens,
        "spec.template.spec.schedulingGroup ",
        // With all APIs turned on: 1.36 does not have the fields of an alpha version.
        "A write through new can erase fields of 1 kind: devicetaintrules.resource.k8s.io\n",
        "Keep to the newest, new:\n    devicetaintrules.resource.k8s.io\n",
    ] {
        assert!(ran.stdout.contains(expected), "no {expected:?}");
    }
    assert!(ran.stdout.lines().all(|line| line.len() <= 120));

    let ran = skew(&plane, &config, &["old", "new"], &["--fields", "-o=json"]).await;
    let direct: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(direct["complete"], true);
    let drivers = differing_fields(&direct, "storage.k8s.io", "csidrivers");
    assert!(drivers.contains(&(tokens, &json!(["new"]))), "{drivers:?}");
    let pods = differing_fields(&direct, "", "pods");
    assert!(
        pods.contains(&("spec.schedulingGroup", &json!(["new"]))),
        "{pods:?}"
    );

    // Types are shared by kinds, of which 14 differ: nine contain a PodSpec.
    let (old, new) = (types(&plane, 0).await, types(&plane, 1).await);
    let differing: Vec<_> = old
        .iter()
        .filter(|(name, fields)| new.get(*name).is_some_and(|other| other != *fields))
        .map(|(name, _)| name)
        .collect();
    let short = differing.iter().map(|name| name.rsplit("io.k8s.").next());
    let short: Vec<_> = short.flatten().collect();
    assert_eq!(short, DIFFERING_TYPES);
    assert_eq!(direct["differences"].as_array().unwrap().len(), 14);

    let ran = skew(&plane, &config, &["new", "same"], &["--fields"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout
            .contains("No skew: all 2 servers know the same fields."),
        "{ran:?}"
    );

    // Two bridges of one cluster: the servers behind them.
    let bridges = ["old-bridge", "new-bridge"];
    let ran = skew(&plane, &config, &bridges, &["--fields", "-o=json"]).await;
    let behind: Value = serde_json::from_str(&ran.stdout).unwrap();
    let paths = |report: &Value| {
        let differences = report["differences"].as_array().unwrap().iter();
        let paths = differences.map(|it| {
            let fields = it["fields"].as_array().unwrap().iter();
            let fields: Vec<_> = fields.map(|it| it["path"].clone()).collect();
            (it["resource"].clone(), fields)
        });
        paths.collect::<Vec<_>>()
    };
    assert_eq!(paths(&behind), paths(&direct));

    // One bridge: all servers of its cluster.
    for context in bridges {
        skewbridge_testkit::eventually(
            "both servers are known",
            PEER_DISCOVERY_TIMEOUT,
            async || {
                let ran = skew(&plane, &config, &[context], &["--fields", "-o=json"]).await;
                ran.code == Some(2)
            },
        )
        .await;
        let ran = skew(&plane, &config, &[context], &["--fields", "-o=json"]).await;
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["complete"], true, "{ran:?}");
        assert_eq!(paths(&report), paths(&direct));
    }
    skew(&plane, &config, &["old-bridge"], &["--fields"]).await;
}

#[tokio::test]
async fn one_old_server_has_no_skew_of_fields() {
    let plane = ControlPlane::start(&[ServerSpec::of("1.28.15")]).await;
    let address = plane.servers[0].address;
    let config = plane.kubeconfig_of(&[("one", address), ("same", address)]);
    let ran = skew(&plane, &config, &["one", "same"], &["--fields"]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[tokio::test]
async fn unrelated_clusters_are_compared() {
    let old = ControlPlane::start(&[ServerSpec::of("1.28.15")]).await;
    let new = ControlPlane::start(&[ServerSpec::of(NEW)]).await;
    let config = [
        old.kubeconfig_of(&[("old", old.servers[0].address)]),
        new.kubeconfig_of(&[("new", new.servers[0].address)]),
    ];
    let config = config.join(":");
    let ran = skew(&old, &config, &["old", "new"], &["-o=json"]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let flows = affected_servers(&report, "flowcontrol.apiserver.k8s.io", "v1", "flowschemas");
    assert_eq!(flows, &json!(["new"]));
    // The current context of the first file. The server does not support the format of a
    // bridge's response.
    let ran = skew(&old, &config, &[], &[]).await;
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("old: the server "), "{ran:?}");
    assert!(ran.stderr.contains("has no bridge"), "{ran:?}");
}

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

#[tokio::test]
async fn a_bridge_lists_all_servers_of_its_cluster() {
    let servers = [OLD, NEW].map(|version| ServerSpec::of(version).peer());
    let plane = ControlPlane::start(&servers).await;
    let contexts = ["old", "new"].map(|name| (name, usize::from(name == "new")));
    let contexts = contexts.map(|(name, it)| (name, plane.servers[it].bridge));
    let config = plane.kubeconfig_of(&contexts);
    for context in ["old", "new"] {
        skewbridge_testkit::eventually(
            "both servers are known",
            PEER_DISCOVERY_TIMEOUT,
            async || skew(&plane, &config, &[context], &[]).await.code == Some(2),
        )
        .await;
        let ran = skew(&plane, &config, &[context], &["-o=json"]).await;
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["complete"], true, "{ran:?}");
        let servers = report["servers"].as_array().unwrap();
        assert_eq!(servers.len(), 2);
        let identity = |version: &str| {
            let mut servers = servers.iter();
            let found = servers.find(|it| it["version"] == version);
            found.unwrap_or_else(|| panic!("{version}: {report}"))["name"].clone()
        };
        let policies = affected_servers(
            &report,
            "admissionregistration.k8s.io",
            "v1",
            "mutatingadmissionpolicies",
        );
        assert_eq!(policies, &json!([identity("v1.36.4")]));
        let classes = affected_servers(
            &report,
            "storage.k8s.io",
            "v1alpha1",
            "volumeattributesclasses",
        );
        assert_eq!(classes, &json!([identity("v1.34.4")]));
    }
    // Each by itself: the servers differ, and clients of the bridges miss nothing.
    let ran = skew(&plane, &config, &["old", "new"], &[]).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stdout.contains("volumeattributesclasses"), "{ran:?}");
    let nothing = "would miss nothing: its bridge serves what any of 2 servers serves.";
    assert_eq!(ran.stdout.matches(nothing).count(), 2, "{ran:?}");
}
