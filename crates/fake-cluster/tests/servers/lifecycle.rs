//! Starting, stopping and killing servers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_fake_cluster::catalogue::Release;
use skewbridge_peer_directory::Identity;
use tokio::time::timeout;

use crate::cluster_fixture::{Client, Cluster, NoNode};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn each_server_has_a_lease_under_its_name() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    for server in cluster.servers() {
        let identity = Identity::of_hostname(&format!("playground-{}", server.release()));
        assert_eq!(server.identity(), identity.as_str());
        let lease = client.get(&format!("{LEASES}/{identity}")).await.body;
        let labels = &lease["metadata"]["labels"];
        assert_eq!(labels["apiserver.kubernetes.io/identity"], "kube-apiserver");
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
        assert!(holder.starts_with(&format!("{identity}_")), "{holder}");
    }
}

#[tokio::test]
async fn only_later_releases_delete_their_lease() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.middle).await;
    let lease_status =
        async |identity: &str| client.get(&format!("{LEASES}/{identity}")).await.code;
    let (old, new) = (
        cluster.old.identity().to_owned(),
        cluster.new.identity().to_owned(),
    );
    cluster.old.stop().await;
    cluster.new.stop().await;
    assert_eq!(
        (lease_status(&old).await, lease_status(&new).await),
        (200, 404)
    );
    // A killed server deletes nothing.
    let again = cluster
        .pki
        .start(Release::V1_36, &cluster.store, Arc::new(NoNode))
        .await;
    again.kill().await;
    assert_eq!(lease_status(&new).await, 200);
}

#[tokio::test]
async fn watches_end_cleanly_with_a_server_that_is_stopped() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    let mut watch = client.watch(&format!("{MAPS}?watch=1")).await;
    client.post(MAPS, &json!({"metadata": {"name": "a"}})).await;
    let address = cluster.new.address();
    cluster.new.stop().await;
    assert_eq!(watch.next_event_name().await.0, "ADDED");
    assert_eq!(watch.next().await, None);
    assert!(cluster.pki.admin().http2(address).await.is_err());
}

#[tokio::test]
async fn a_killed_server_drops_its_connections_and_others_continue() {
    let cluster = Cluster::start().await;
    let mut watcher = cluster
        .pki
        .admin()
        .http1(cluster.old.address())
        .await
        .unwrap();
    let request = format!("GET {MAPS}?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    watcher.send(request).await.unwrap();
    assert_eq!(watcher.read_head().await.unwrap().status, 200);
    let address = cluster.old.address();
    let others = cluster.admin(&cluster.middle).await;
    cluster.old.kill().await;
    // The body is truncated, not complete.
    let cut = timeout(TEST_TIMEOUT, watcher.read_chunk()).await.unwrap();
    assert!(cut.is_err(), "{cut:?}");
    assert!(cluster.pki.admin().http2(address).await.is_err());
    assert_eq!(others.get(MAPS).await.code, 200);
    // Controllers of another server take over.
    let namespace = json!({"metadata": {"name": "shop"}});
    others.post("/api/v1/namespaces", &namespace).await;
    others.delete("/api/v1/namespaces/shop").await;
    skewbridge_testkit::eventually("the namespace is gone", TEST_TIMEOUT, async || {
        others.get("/api/v1/namespaces/shop").await.code == 404
    })
    .await;
}

#[tokio::test]
async fn a_cluster_starts_with_initial_objects() {
    let cluster = Cluster::start().await;
    let client: Client = cluster.admin(&cluster.old).await;
    let namespaces = client.get("/api/v1/namespaces").await.body;
    let names: Vec<&str> = (namespaces["items"].as_array().unwrap().iter())
        .filter_map(|it: &Value| it["metadata"]["name"].as_str())
        .collect();
    assert_eq!(
        names,
        ["default", "kube-node-lease", "kube-public", "kube-system"]
    );
    let service = client
        .get("/api/v1/namespaces/default/services/kubernetes")
        .await;
    assert_eq!(service.body["spec"]["clusterIP"], "10.96.0.1");
}

#[tokio::test]
async fn a_stopped_server_answers_requests_in_flight() {
    let cluster = Cluster::start().await;
    let address = cluster.new.address();
    let new = cluster.new;
    let mut client = cluster.pki.admin().http1(address).await.unwrap();
    let body = json!({"metadata": {"name": "late"}}).to_string();
    let (first, rest) = body.split_at(5);
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len()
    );
    client.send(head).await.unwrap();
    // The request is in flight.
    assert_eq!(client.read_head().await.unwrap().status, 100);
    client.send(first).await.unwrap();
    let stopping = tokio::spawn(new.stop());
    skewbridge_testkit::eventually("new connections are refused", TEST_TIMEOUT, async || {
        cluster.pki.admin().http1(address).await.is_err()
    })
    .await;
    client.send(rest).await.unwrap();
    let answered = timeout(TEST_TIMEOUT, client.read_head()).await.unwrap();
    assert_eq!(answered.unwrap().status, 201);
    timeout(TEST_TIMEOUT, stopping).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_killed_server_answers_no_request() {
    let cluster = Cluster::start().await;
    let address = cluster.new.address();
    let mut client = cluster.pki.admin().http1(address).await.unwrap();
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: 31\r\nExpect: 100-continue\r\n\r\n"
    );
    client.send(head).await.unwrap();
    assert_eq!(client.read_head().await.unwrap().status, 100);
    let others = cluster.admin(&cluster.old).await;
    cluster.new.kill().await;
    let _ = client.send(r#"{"metadata": {"name": "killed"}}"#).await;
    let cut = timeout(TEST_TIMEOUT, client.read_head()).await.unwrap();
    assert!(cut.is_err(), "{cut:?}");
    assert_eq!(others.get(&format!("{MAPS}/killed")).await.code, 404);
}
