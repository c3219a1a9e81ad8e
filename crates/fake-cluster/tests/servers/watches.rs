//! Watches: every event once, in order, and their end.

use serde_json::{Value, json};
use skewbridge_fake_cluster::catalogue::Release;
use skewbridge_fake_cluster::server::SharedStore;
use skewbridge_fake_cluster::store::{History, Store};
use std::sync::Arc;

use crate::cluster_fixture::{Client, Cluster, NoNode, Pki};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str, label: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": label}}, "data": {}})
}

fn pair(kind: &str, name: &str) -> (String, String) {
    (kind.to_owned(), name.to_owned())
}

#[tokio::test]
async fn a_change_at_one_server_is_watched_at_all() {
    let cluster = Cluster::start().await;
    let mut watches = Vec::new();
    for server in cluster.servers() {
        let client = cluster.admin(server).await;
        let watch = client.watch(&format!("{MAPS}?watch=true")).await;
        assert_eq!(watch.code, 200);
        watches.push((client, watch));
    }
    let client = cluster.admin(&cluster.middle).await;
    client.post(MAPS, &config_map("a", "x")).await;
    let set_release = json!({"data": {"k": "v"}});
    let path = format!("{MAPS}/a");
    client
        .patch(&path, "application/merge-patch+json", &set_release)
        .await;
    client.delete(&path).await;
    for (_, watch) in &mut watches {
        assert_eq!(watch.next_event_name().await, pair("ADDED", "a"));
        assert_eq!(watch.next_event_name().await, pair("MODIFIED", "a"));
        assert_eq!(watch.next_event_name().await, pair("DELETED", "a"));
    }
}

#[tokio::test]
async fn a_watch_continues_from_a_list() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.old).await;
    client.post(MAPS, &config_map("before", "x")).await;
    let listed = client.get(MAPS).await.body;
    let version = listed["metadata"]["resourceVersion"].as_str().unwrap();
    client.post(MAPS, &config_map("after", "x")).await;
    let path = format!("{MAPS}?watch=1&resourceVersion={version}&labelSelector=app%3Dx");
    let mut watch = client.watch(&path).await;
    assert_eq!(watch.next_event_name().await, pair("ADDED", "after"));
    // An object that is no longer selected is deleted.
    let set_release = json!({"metadata": {"labels": {"app": "y"}}});
    let form = "application/merge-patch+json";
    client
        .patch(&format!("{MAPS}/after"), form, &set_release)
        .await;
    assert_eq!(watch.next_event_name().await, pair("DELETED", "after"));
    let named = format!("{MAPS}?watch=1&fieldSelector=metadata.name%3Dbefore");
    let mut named = client.watch(&named).await;
    assert_eq!(named.next_event_name().await, pair("ADDED", "before"));
}

#[tokio::test]
async fn a_watch_ends_at_its_timeout_with_a_bookmark() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    client.post(MAPS, &config_map("a", "x")).await;
    let path = format!("{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true");
    let mut watch = client.watch(&path).await;
    assert_eq!(watch.next_event_name().await, pair("ADDED", "a"));
    let last = watch.next().await.unwrap();
    assert_eq!(last["type"], "BOOKMARK");
    assert_eq!(last["object"]["kind"], "ConfigMap");
    assert!(last["object"]["metadata"]["resourceVersion"].is_string());
    assert_eq!(watch.next().await, None);
}

#[tokio::test]
async fn lists_are_streamed_where_the_release_can() {
    let cluster = Cluster::start().await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                 &allowWatchBookmarks=true";
    let path = format!("{MAPS}?{query}");
    let new = cluster.admin(&cluster.new).await;
    new.post(MAPS, &config_map("a", "x")).await;
    let mut watch = new.watch(&path).await;
    assert_eq!(watch.next_event_name().await, pair("ADDED", "a"));
    let end = watch.next().await.unwrap();
    let annotations = &end["object"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    new.post(MAPS, &config_map("b", "x")).await;
    assert_eq!(watch.next_event_name().await, pair("ADDED", "b"));
    let old = cluster.admin(&cluster.old).await;
    assert_eq!(old.get(&path).await.code, 422);
    let alone = new
        .get(&format!("{MAPS}?watch=1&sendInitialEvents=true"))
        .await;
    assert_eq!(alone.code, 422);
}

#[tokio::test]
async fn tables_are_watched_too() {
    let cluster = Cluster::start().await;
    let client = cluster.admin(&cluster.new).await;
    client.post(MAPS, &config_map("a", "x")).await;
    client.post(MAPS, &config_map("b", "x")).await;
    let accept = [(
        "accept",
        "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    )];
    let mut watch = client.watch_as(&format!("{MAPS}?watch=1"), &accept).await;
    let first = watch.next().await.unwrap();
    assert_eq!(first["object"]["kind"], "Table");
    assert_eq!(first["object"]["rows"][0]["cells"][0], "a");
    assert!(first["object"]["columnDefinitions"].is_array());
    let second = watch.next().await.unwrap();
    assert_eq!(second["object"]["rows"][0]["cells"][0], "b");
    assert!(second["object"]["columnDefinitions"].is_null());
}

#[tokio::test]
async fn a_watch_from_an_expired_version_gets_410() {
    let pki = Pki::new();
    let store = SharedStore::with_store(Store::new(History::of(20))).unwrap();
    let server = pki.start(Release::V1_36, &store, Arc::new(NoNode)).await;
    let client = Client(pki.admin().http2(server.address()).await.unwrap());
    for number in 0..30 {
        let response = client
            .post(MAPS, &config_map(&format!("m{number}"), "x"))
            .await;
        assert_eq!(response.code, 201);
    }
    let mut expired = client
        .watch(&format!("{MAPS}?watch=1&resourceVersion=5"))
        .await;
    let event = expired.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["kind"], "Status");
    assert_eq!(event["object"]["code"], 410);
    assert_eq!(event["object"]["reason"], "Expired");
    assert_eq!(expired.next().await, None);
    let old = client
        .get(&format!(
            "{MAPS}?resourceVersion=5&resourceVersionMatch=Exact"
        ))
        .await;
    assert_eq!(old.code, 410);
    let future = client.get(&format!("{MAPS}?resourceVersion=99999")).await;
    assert_eq!(future.code, 504);
}

#[tokio::test]
async fn a_watcher_that_does_not_read_gets_410() {
    let pki = Pki::new();
    let store = SharedStore::with_store(Store::new(History::of(10))).unwrap();
    let server = pki.start(Release::V1_36, &store, Arc::new(NoNode)).await;
    let client = Client(pki.admin().http2(server.address()).await.unwrap());
    let watcher = Client(pki.admin().http2(server.address()).await.unwrap());
    let mut watch = watcher.watch(&format!("{MAPS}?watch=1")).await;
    // More than all windows and buffers hold, while the client does not read.
    let padding = "x".repeat(64 * 1024);
    for number in 0..40 {
        let object = json!({"metadata": {"name": format!("m{number}")}, "data": {"p": padding}});
        assert_eq!(client.post(MAPS, &object).await.code, 201);
    }
    let mut added = 0;
    let end = loop {
        let event = watch
            .next()
            .await
            .expect("the watch ends with an error event");
        if event["type"] == "ERROR" {
            break event;
        }
        assert_eq!(event["object"]["metadata"]["name"], format!("m{added}"));
        added += 1;
    };
    assert!(added < 40);
    assert_eq!(end["object"]["code"], 410);
    assert_eq!(watch.next().await, None);
}
