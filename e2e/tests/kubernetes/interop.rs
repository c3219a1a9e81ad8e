//! A bridge in front of a server that has the feature off, and a real server
//! that has it on, are peers of each other: neither knows what the other is.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{Plane, Protocol, Request, Server, Special, User, Via, told_apart};
use skewbridge_etcd::Client;
use skewbridge_peer_directory::{AddressRecord, Identity};
use skewbridge_testkit::eventually;

/// From the last readiness to when everybody knows everybody.
const FOUND: Duration = Duration::from_secs(30);

/// For an audit log to be written.
const WRITTEN: Duration = Duration::from_secs(10);

/// In the order in which they are started.
const OURS: usize = 0;
const REAL: usize = 1;

#[tokio::test]
async fn a_bridge_and_a_real_peer_are_peers_of_each_other() {
    let Some([old, new]) = told_apart() else {
        return;
    };
    let servers = [Server::of(&old).peer(), Server::of(&new).native_peer()];
    let mut plane = Plane::start(&servers).await;

    // Neither server serves what is asked of it here.
    let there = [
        (OURS, Special::POLICIES),
        (OURS, Special::TAINT_RULES),
        (REAL, Special::ATTRIBUTES_CLASSES),
    ];
    for (server, special) in there {
        let path = special.path;
        let what = format!("{path} through {server}");
        eventually(&what, FOUND, async || {
            plane.status(server, Via::Bridge, path).await == 200
        })
        .await;
    }
    for special in [Special::POLICIES, Special::TAINT_RULES] {
        assert_eq!(plane.status(OURS, Via::Server, special.path).await, 404);
    }
    the_record_is_ours(&mut plane).await;

    for (server, special) in there {
        objects_live_and_die(&plane, server, &special).await;
    }
    for (from, to, special) in [
        (OURS, REAL, Special::POLICIES),
        (REAL, OURS, Special::ATTRIBUTES_CLASSES),
    ] {
        the_destination_knows_who_asks(&plane, from, to, &special).await;
    }
}

/// The real server goes by this record, and has just been shown to.
async fn the_record_is_ours(plane: &mut Plane) {
    let endpoint = format!("http://{}", plane.etcd().address).parse().unwrap();
    let etcd = Client::new(vec![endpoint], None).unwrap();
    for (server, address) in [
        (OURS, plane.servers[OURS].bridge),
        (REAL, plane.servers[REAL].address),
    ] {
        let identity = Identity::of_hostname(&plane.servers[server].host);
        let key = AddressRecord::key("/registry", &identity);
        let value = etcd.get(key.as_bytes()).await.unwrap().expect(&key);
        let record = AddressRecord::decode(&key, &value.value).unwrap();
        assert_eq!((record.identity, record.address), (identity, address));
    }
}

async fn objects_live_and_die(plane: &Plane, server: usize, special: &Special) {
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

/// kube-apiserver lets nobody through to a peer who may not do there what he
/// asks for.
async fn allow_reading(plane: &Plane, special: &Special) {
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
        let mut client = plane.raw(OURS, Via::Bridge, Protocol::H2);
        let created = client.send(&request).await.unwrap();
        assert_eq!(created.status, 201, "{}", created.text());
    }
}

/// They may ask, and there is nothing to be had.
async fn the_destination_knows_who_asks(plane: &Plane, from: usize, to: usize, special: &Special) {
    allow_reading(plane, special).await;
    for (user, name) in [(User::Alice, "alice"), (User::AdminAs("carol"), "carol")] {
        let path = format!("{}/asked-for-by-{name}", special.path);
        let mut entry = None;
        eventually(&format!("{path} in the log"), WRITTEN, async || {
            let words = ["get", "--raw", &path];
            let output = plane.kubectl(from, Via::Bridge, user, &words).await;
            assert_ne!(output.code, Some(0), "{output:?}");
            entry = audited(plane, to, &path);
            entry.is_some()
        })
        .await;
        let entry = entry.unwrap();
        // kube-apiserver changes roles before it passes a request on, a bridge
        // lets the destination do that.
        let asks = &entry["user"];
        let counts = entry.get("impersonatedUser").unwrap_or(asks);
        println!("{from} to {to}: {asks} {counts}");
        assert_eq!(counts["username"], name, "{entry}");
        if entry.get("impersonatedUser").is_some() {
            assert_eq!(asks["username"], "admin", "{entry}");
        }
        let groups: Vec<_> = counts["groups"].as_array().unwrap().iter().collect();
        assert!(groups.contains(&&"system:authenticated".into()), "{entry}");
        assert_eq!(groups.contains(&&"dev".into()), name == "alice", "{entry}");
    }
}

/// What a server has noted of a request for something that is not there.
fn audited(plane: &Plane, server: usize, path: &str) -> Option<Value> {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
    let mut entries = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    entries.find(|entry| entry["requestURI"] == path && entry["responseStatus"]["code"] == 404)
}
