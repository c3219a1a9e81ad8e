//! Many clients at once, at several servers over one store.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cluster_fixture::{Client, Cluster, Watch};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const CLIENTS: usize = 20;
const OBJECTS_PER_CLIENT: usize = 50;
/// A limit for a failed test, on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_mins(4);

/// All events of a watcher: in order, one ADDED and one DELETED per object.
async fn collect_events(watch: &mut Watch) -> BTreeMap<String, Vec<&'static str>> {
    let mut events: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    let mut last = 0;
    let mut deleted_count = 0;
    while deleted_count < CLIENTS * OBJECTS_PER_CLIENT {
        let event = watch.next().await.expect("the watch is open");
        let metadata = &event["object"]["metadata"];
        let version: u64 = metadata["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!(version > last, "{version} after {last}");
        last = version;
        let name = metadata["name"].as_str().unwrap().to_owned();
        let kind = match event["type"].as_str().unwrap() {
            "ADDED" => "ADDED",
            "DELETED" => {
                deleted_count += 1;
                "DELETED"
            }
            other => panic!("{other}"),
        };
        events.entry(name).or_default().push(kind);
    }
    events
}

async fn make_and_delete(client: Client, number: usize) {
    for object in 0..OBJECTS_PER_CLIENT {
        let name = format!("c{number}-{object}");
        let made = client
            .post(MAPS, &json!({"metadata": {"name": name}}))
            .await;
        assert_eq!(made.code, 201, "{made:?}");
    }
    for object in 0..OBJECTS_PER_CLIENT {
        let response = client.delete(&format!("{MAPS}/c{number}-{object}")).await;
        assert_eq!(response.code, 200, "{response:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_watcher_receives_every_event_once_and_in_order() {
    let cluster = Cluster::start().await;
    let mut watchers = JoinSet::new();
    let mut writers = JoinSet::new();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let server = cluster.servers()[number % 3];
        let watcher = cluster.admin(server).await;
        let mut watch = watcher.watch(&format!("{MAPS}?watch=true")).await;
        assert_eq!(watch.code, 200);
        watchers.spawn(async move {
            let events = collect_events(&mut watch).await;
            drop(watcher);
            events
        });
        clients.push(cluster.admin(cluster.servers()[(number + 1) % 3]).await);
    }
    for (number, client) in clients.into_iter().enumerate() {
        writers.spawn(make_and_delete(client, number));
    }
    let all = async {
        while let Some(wrote) = writers.join_next().await {
            wrote.unwrap();
        }
        let mut stories = 0;
        while let Some(events) = watchers.join_next().await {
            let events = events.unwrap();
            assert_eq!(events.len(), CLIENTS * OBJECTS_PER_CLIENT);
            assert!(events.values().all(|it| it == &["ADDED", "DELETED"]));
            stories += 1;
        }
        stories
    };
    assert_eq!(
        timeout(TEST_TIMEOUT, all)
            .await
            .expect("before the timeout"),
        CLIENTS
    );
    let left = cluster.admin(&cluster.new).await.get(MAPS).await.body;
    assert_eq!(left["items"], json!([]));
}
