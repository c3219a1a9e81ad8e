//! A bridge in front of a server with the feature off and a real server with the feature on are
//! peers: neither detects which kind of peer the other is.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, Protocol, Request, ServerSpec, User, VersionSpecificApi, Via,
    old_and_new_versions,
};
use skewbridge_etcd::Client;
use skewbridge_peer_directory::{AddressRecord, Identity};
use skewbridge_testkit::eventually;

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// For the audit log to be written.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(10);

/// In start order.
const BRIDGED: usize = 0;
const NATIVE: usize = 1;

#[tokio::test]
async fn a_bridge_and_a_real_peer_are_peers_of_each_other() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let servers = [
        ServerSpec::of(&old).peer(),
        ServerSpec::of(&new).native_peer(),
    ];
    let mut plane = ControlPlane::start(&servers).await;

    // Neither server serves the API that is requested from it here.
    let missing_apis = [
        (BRIDGED, VersionSpecificApi::POLICIES),
        (BRIDGED, VersionSpecificApi::TAINT_RULES),
        (NATIVE, VersionSpecificApi::ATTRIBUTES_CLASSES),
    ];
    for (server, special) in missing_apis {
        let path = special.path;
        let what = format!("{path} through {server}");
        eventually(&what, PEER_DISCOVERY_TIMEOUT, async || {
            plane.status(server, Via::Bridge, path).await == 200
        })
        .await;
    }
    for special in [
        VersionSpecificApi::POLICIES,
        VersionSpecificApi::TAINT_RULES,
    ] {
        assert_eq!(plane.status(BRIDGED, Via::Server, special.path).await, 404);
    }
    the_record_points_to_the_bridge(&mut plane).await;

    for (server, special) in missing_apis {
        objects_are_created_read_and_deleted(&plane, server, &special).await;
    }
    for (from, to, special) in [
        (BRIDGED, NATIVE, VersionSpecificApi::POLICIES),
        (NATIVE, BRIDGED, VersionSpecificApi::ATTRIBUTES_CLASSES),
    ] {
        the_destination_authorizes_the_user(&plane, from, to, &special).await;
    }
}

/// The real server uses this record, and has just used it.
async fn the_record_points_to_the_bridge(plane: &mut ControlPlane) {
    let endpoint = format!("http://{}", plane.etcd().address).parse().unwrap();
    let etcd = Client::new(vec![endpoint], None).unwrap();
    for (server, address) in [
        (BRIDGED, plane.servers[BRIDGED].bridge),
        (NATIVE, plane.servers[NATIVE].address),
    ] {
        let identity = Identity::of_hostname(&plane.servers[server].host);
        let key = AddressRecord::key("/registry", &identity);
        let value = etcd.get(key.as_bytes()).await.unwrap().expect(&key);
        let record = AddressRecord::decode(&key, &value.value).unwrap();
        assert_eq!((record.identity, record.address), (identity, address));
    }
}

async fn objects_are_created_read_and_deleted(
    plane: &ControlPlane,
    server: usize,
    special: &VersionSpecificApi,
) {
    let kubectl = async |words: &[&str]| {
        let output = plane.kubectl(server, Via::Bridge, User::Admin, words).await;
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
    };
    let name = format!("by-way-of-{server}");
    let file = plane.file(&format!("{name}.json"), &special.object(&name));
    let path = format!("{}/{name}", special.path);
    kubectl(&["create", "--raw", special.path, "-f", &file]).await;
    kubectl(&["get", "--raw", &path]).await;
    kubectl(&["delete", "--raw", &path]).await;
}

/// kube-apiserver reroutes a request only if the user is allowed to make it locally.
async fn allow_reading(plane: &ControlPlane, special: &VersionSpecificApi) {
    let mut parts = special.path.rsplit('/');
    let resource = parts.next().unwrap();
    let group = parts.nth(1).unwrap();
    let name = format!("read-{resource}");
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": [group], "resources": [resource], "verbs": ["get"]}]});
    let users = ["alice", "carol"]
        .map(|user| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}));
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": users,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": name}});
    for (kind, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{kind}");
        let request = Request::new("POST", &path).body("application/json", &object.to_string());
        let mut client = plane.http_client(BRIDGED, Via::Bridge, Protocol::H2);
        let created = client.send(&request).await.unwrap();
        assert_eq!(created.status, 201, "{}", created.text());
    }
}

/// The users are authorized, and the object does not exist.
async fn the_destination_authorizes_the_user(
    plane: &ControlPlane,
    from: usize,
    to: usize,
    special: &VersionSpecificApi,
) {
    allow_reading(plane, special).await;
    for (user, name) in [(User::Alice, "alice"), (User::AdminAs("carol"), "carol")] {
        let path = format!("{}/requested-by-{name}", special.path);
        let mut entry = None;
        eventually(&format!("{path} in the log"), AUDIT_TIMEOUT, async || {
            let words = ["get", "--raw", &path];
            let output = plane.kubectl(from, Via::Bridge, user, &words).await;
            assert_ne!(output.code, Some(0), "{output:?}");
            entry = audit_event(plane, to, &path);
            entry.is_some()
        })
        .await;
        let entry = entry.unwrap();
        // kube-apiserver applies impersonation before it reroutes a request; a bridge
        // leaves it to the destination.
        let authenticated = &entry["user"];
        let effective = entry.get("impersonatedUser").unwrap_or(authenticated);
        println!("{from} to {to}: {authenticated} {effective}");
        assert_eq!(effective["username"], name, "{entry}");
        if entry.get("impersonatedUser").is_some() {
            assert_eq!(authenticated["username"], "admin", "{entry}");
        }
        let groups: Vec<_> = effective["groups"].as_array().unwrap().iter().collect();
        assert!(groups.contains(&&"system:authenticated".into()), "{entry}");
        assert_eq!(groups.contains(&&"dev".into()), name == "alice", "{entry}");
    }
}

/// The audit event of a server for a request of a missing object.
fn audit_event(plane: &ControlPlane, server: usize, path: &str) -> Option<Value> {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
    let mut entries = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    entries.find(|entry| entry["requestURI"] == path && entry["responseStatus"]["code"] == 404)
}
