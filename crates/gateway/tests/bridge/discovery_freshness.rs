//! How soon merged discovery shows changes of the local server, and when it is answered from memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_gateway::Handle;
use skewbridge_testkit::{RecordedRequest, Reply, TEST_TIMEOUT, eventually};
use tokio::sync::Notify;

use crate::merged_discovery::{V2, discovery, discovery_request_count, metrics, mixed_cluster};
use crate::support::cluster::{self, ClusterFixture, send_request};
use crate::support::fake_apiserver::{API_SERVICES, CRDS, api_service, crd};

/// What the local server serves after a custom resource was created.
const WITH_CUSTOM_RESOURCE: [&str; 4] = [
    cluster::SHARED,
    "v1 pods",
    "apps/v1 deployments",
    "example.com/v1 widgets",
];

/// Concurrent requests, on a connection with at most 100 streams.
const CONCURRENT_REQUESTS: usize = 50;

/// How many refreshes of local discovery the bridge has made: each begins with `/version`.
fn refresh_count(cluster: &ClusterFixture) -> usize {
    cluster.local.gateway_requests("/version").len()
}

/// How many times the merged document was built.
async fn merge_count(bridge: &Handle) -> usize {
    metric(
        bridge,
        "aggregator_discovery_peer_aggregated_cache_misses_total ",
    )
    .await
}

async fn metric(bridge: &Handle, name: &str) -> usize {
    let metrics = metrics(bridge).await;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().parse().unwrap()
}

/// Waits until the bridge no longer refreshes periodically, as it does every second after a change
/// of something that all servers share.
async fn wait_until_settled(cluster: &ClusterFixture) {
    let mut last = (refresh_count(cluster), Instant::now());
    eventually(
        "no refresh for longer than a second",
        TEST_TIMEOUT,
        async || {
            let now = refresh_count(cluster);
            if now != last.0 {
                last = (now, Instant::now());
            }
            last.1.elapsed() > Duration::from_millis(1_500)
        },
    )
    .await;
}

#[tokio::test]
async fn concurrent_requests_share_one_refresh_and_one_merge() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    // Where there are aggregated APIs, every request waits for discovery of this moment.
    let service = serde_json::json!({"name": "readings", "namespace": "a"});
    cluster
        .local
        .put(API_SERVICES, api_service("readings.example.com", &service));
    wait_until_settled(&cluster).await;
    let alice = cluster.alice();
    // From now on alice's permission is cached.
    assert_eq!(discovery(&alice, &bridge).await.status, 200);
    let (requests_before, refreshes_before) =
        (discovery_request_count(&cluster), refresh_count(&cluster));
    let merges_before = merge_count(&bridge).await;

    let release = Arc::new(Notify::new());
    let released = release.clone();
    cluster.local.set_hook(move |recorded: &RecordedRequest| {
        let is_refresh = recorded.is_probe() && recorded.path() == "/version";
        is_refresh.then(|| Reply::json(r#"{"gitVersion": "v1.36.4"}"#).after(&released))
    });
    let wait_for_refreshes = async |times: usize| {
        eventually("a refresh", TEST_TIMEOUT, async || {
            refresh_count(&cluster) == refreshes_before + times
        })
        .await;
    };
    let connection = alice.http2(bridge.address()).await.unwrap();
    let get_discovery = async || {
        let request = http::Request::get("https://k/apis").header("accept", V2);
        let answer = connection.request(request.body(()).unwrap(), "").await;
        answer.unwrap().text()
    };
    let many = async {
        wait_for_refreshes(1).await;
        // That refresh has already begun, so these requests need another one.
        join_all((0..CONCURRENT_REQUESTS).map(|_| get_discovery())).await
    };
    let coordinator = async {
        eventually("all requests have arrived", TEST_TIMEOUT, async || {
            connection.open_streams() == 1 + CONCURRENT_REQUESTS
        })
        .await;
        let serves = [
            cluster::SHARED,
            "v1 pods",
            "apps/v1 deployments",
            "apps/v1 daemons",
        ];
        cluster.local.serve(&serves);
        // The requests before this one on the same connection are waiting now.
        let other = connection.get(cluster::SHARED_PATH).await.unwrap();
        assert_eq!(other.status, 200);
        release.notify_one();
        wait_for_refreshes(2).await;
        release.notify_one();
    };
    let (first, many, ()) = tokio::join!(get_discovery(), many, coordinator);
    for document in many.iter().chain([&first]) {
        assert!(
            document.contains("daemons") && document.contains("fleets"),
            "{document}"
        );
    }
    // One refresh for the first request, and one for all others; all get the same document.
    assert_eq!(refresh_count(&cluster), refreshes_before + 2);
    assert_eq!(discovery_request_count(&cluster), requests_before);
    assert_eq!(merge_count(&bridge).await, merges_before + 1);
}

#[tokio::test]
async fn discovery_is_answered_from_memory_while_nothing_can_have_changed() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    wait_until_settled(&cluster).await;
    let alice = cluster.alice();
    assert_eq!(discovery(&alice, &bridge).await.status, 200);
    let before = discovery_request_count(&cluster);
    eventually("an answer from memory", TEST_TIMEOUT, async || {
        let (answers, polls) = (memory_answers(&bridge).await, refresh_count(&cluster));
        let answer = discovery(&alice, &bridge).await;
        assert!(answer.text().contains("fleets"), "{}", answer.text());
        memory_answers(&bridge).await == answers + 1 && refresh_count(&cluster) == polls
    })
    .await;
    assert!(discovery_request_count(&cluster) <= before + 1);
}

async fn memory_answers(bridge: &Handle) -> usize {
    metric(bridge, "skewbridge_discovery_memory_answers_total ").await
}

#[tokio::test]
async fn a_client_sees_the_custom_resource_that_it_has_created_through_the_bridge() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    wait_until_settled(&cluster).await;
    let alice = cluster.alice();
    let before = discovery(&alice, &bridge).await.text();
    assert!(!before.contains("widgets"), "{before}");
    // Its watch event never arrives.
    cluster.local.serve(&WITH_CUSTOM_RESOURCE);
    cluster.local.set_hook(|recorded: &RecordedRequest| {
        let creates = recorded.method == "POST" && recorded.path() == CRDS;
        creates.then(|| Reply::new(201))
    });
    let answer = send_request(&alice, &bridge, "POST", CRDS, &[], "{}").await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let after = discovery(&alice, &bridge).await.text();
    assert!(
        after.contains("widgets") && after.contains("fleets"),
        "{after}"
    );
}

#[tokio::test]
async fn the_event_of_a_custom_resource_ends_answers_from_memory() {
    let (cluster, _b, bridge) = mixed_cluster().await;
    wait_until_settled(&cluster).await;
    let alice = cluster.alice();
    assert_eq!(discovery(&alice, &bridge).await.status, 200);
    let before = discovery_request_count(&cluster);
    cluster.local.serve(&WITH_CUSTOM_RESOURCE);
    cluster.local.put(CRDS, crd("example.com", "widgets"));
    eventually("the resource is in discovery", TEST_TIMEOUT, async || {
        discovery(&alice, &bridge).await.text().contains("widgets")
    })
    .await;
    let asked = discovery_request_count(&cluster) - before;
    assert!(
        asked <= 1,
        "{asked} requests of a caller whose permission is cached"
    );
}

/// Polls all futures concurrently.
pub(super) async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|cx| {
        futures.retain_mut(|future| match future.as_mut().poll(cx) {
            std::task::Poll::Ready(response) => {
                done.push(response);
                false
            }
            std::task::Poll::Pending => true,
        });
        if futures.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done
}
