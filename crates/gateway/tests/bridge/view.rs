//! What clients see of a cluster: discovery and OpenAPI of all servers, for whom the local
//! server lets read them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use skewbridge_discovery::{ServerDiscovery, ServerDiscoveryList, servers};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Feature;
use skewbridge_testkit::{PATIENCE, RecordedRequest, Reply, Response, TlsClient, eventually};
use tokio::sync::Notify;

use crate::bed::start;
use crate::cluster::{self, Cluster, NEW, PeerServer, ask, peer_view, refusal};
use crate::log;
use crate::plain;
use crate::standin::{CRDS, Form, crd};

const B: &str = "apiserver-b";
const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const LIST: &str = "application/json";
/// Both serve this version, and only the peer this resource of it.
const MORE: &str = "apps/v1 fleets";

/// A local server with `apps/v1`, and a peer with more of it and with `NEW`.
async fn mixed() -> (Cluster, PeerServer, Handle) {
    let local = ["v1 pods", "apps/v1 deployments"];
    let peer = ["v1 pods", "v1 podgroups", "apps/v1 deployments", MORE, NEW];
    let (cluster, [b], bridge) = Cluster::with_peers(&local, [(B, &peer)]).await;
    (cluster, b, bridge)
}

/// How often clients have asked the local server for `/apis`.
fn asked(cluster: &Cluster) -> usize {
    let seen = cluster.local.seen();
    seen.iter().filter(|seen| seen.path() == "/apis").count()
}

async fn discovery(client: &TlsClient, bridge: &Handle) -> Response {
    ask(client, bridge, "GET", "/apis", &[("accept", V2)], "").await
}

async fn get(cluster: &Cluster, bridge: &Handle, path: &str, accept: &str) -> Response {
    let headers = [("accept", accept)];
    ask(&cluster.alice(), bridge, "GET", path, &headers, "").await
}

fn json(response: &Response) -> Value {
    assert_eq!(response.status, 200, "{}", response.text());
    serde_json::from_slice(&response.body).unwrap()
}

async fn metrics(bridge: &Handle) -> String {
    plain::get(bridge.admin_address(), "/metrics").await.body
}

#[tokio::test]
async fn the_local_server_is_asked_once_in_ten_seconds_for_each_caller() {
    let (cluster, _b, bridge) = mixed().await;
    let alice = cluster.alice();
    let bob = cluster.bed.user("bob", &[]);
    let before = asked(&cluster);
    for _ in 0..5 {
        assert!(discovery(&alice, &bridge).await.text().contains("fleets"));
    }
    assert_eq!(asked(&cluster), before + 1);
    discovery(&bob, &bridge).await;
    assert_eq!(asked(&cluster), before + 2);
    // In somebody else's name it is somebody else.
    let headers = [("accept", V2), ("impersonate-user", "carol")];
    ask(&alice, &bridge, "GET", "/apis", &headers, "").await;
    assert_eq!(asked(&cluster), before + 3);
    let metrics = metrics(&bridge).await;
    assert!(metrics.contains("aggregator_discovery_peer_aggregated_cache_hits_total"));
    assert!(metrics.contains("skewbridge_discovery_document_bytes{path=\"/apis\"}"));
}

/// How many ask at once, on a connection that may have 100 streams.
const MANY: usize = 50;

/// How often the bridge has looked at what the local server serves: `/version` is what it
/// asks first.
fn looks(cluster: &Cluster) -> usize {
    cluster.local.questions("/version").len()
}

/// How often the document of the whole cluster was made.
async fn made(bridge: &Handle) -> usize {
    let name = "aggregator_discovery_peer_aggregated_cache_misses_total ";
    let metrics = metrics(bridge).await;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap().parse().unwrap()
}

/// Waits until the bridge no longer looks by itself, as it does every second after it has
/// heard of something that all servers share.
async fn is_settled(cluster: &Cluster) {
    let mut last = (looks(cluster), Instant::now());
    eventually("no look for longer than a second", PATIENCE, async || {
        let now = looks(cluster);
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(1_500)
    })
    .await;
}

#[tokio::test]
async fn however_many_ask_the_local_server_is_looked_at_and_the_document_made_once() {
    let (cluster, _b, bridge) = mixed().await;
    is_settled(&cluster).await;
    let alice = cluster.alice();
    // From now on it is known that she may read.
    assert_eq!(discovery(&alice, &bridge).await.status, 200);
    let (asked_before, looks_before) = (asked(&cluster), looks(&cluster));
    let made_before = made(&bridge).await;

    let goes_on = Arc::new(Notify::new());
    let held = goes_on.clone();
    cluster.local.hook(move |seen: &RecordedRequest| {
        let is_look = seen.is_probe() && seen.path() == "/version";
        is_look.then(|| Reply::json(r#"{"gitVersion": "v1.36.4"}"#).after(&held))
    });
    let looked = async |times: usize| {
        eventually("a look", PATIENCE, async || {
            looks(&cluster) == looks_before + times
        })
        .await;
    };
    let connection = alice.http2(bridge.address()).await.unwrap();
    let ask = async || {
        let request = http::Request::get("https://k/apis").header("accept", V2);
        let answer = connection.request(request.body(()).unwrap(), "").await;
        answer.unwrap().text()
    };
    let many = async {
        looked(1).await;
        // After that look has begun: another one has to be theirs.
        futures_of((0..MANY).map(|_| ask())).await
    };
    let conduct = async {
        eventually("everybody asks", PATIENCE, async || {
            connection.open_streams() == 1 + MANY
        })
        .await;
        let serves = [
            cluster::SHARED,
            "v1 pods",
            "apps/v1 deployments",
            "apps/v1 daemons",
        ];
        cluster.local.serve(&serves);
        // What came before this on the same connection has begun to wait.
        let other = connection.get(cluster::SHARED_PATH).await.unwrap();
        assert_eq!(other.status, 200);
        goes_on.notify_one();
        looked(2).await;
        goes_on.notify_one();
    };
    let (first, many, ()) = tokio::join!(ask(), many, conduct);
    for shown in many.iter().chain([&first]) {
        assert!(
            shown.contains("daemons") && shown.contains("fleets"),
            "{shown}"
        );
    }
    // One for the first, and one for all the others; what they saw is the same.
    assert_eq!(looks(&cluster), looks_before + 2);
    assert_eq!(asked(&cluster), asked_before);
    assert_eq!(made(&bridge).await, made_before + 1);
}

#[tokio::test]
async fn who_may_not_read_is_told_so_also_after_others_have_read() {
    let (cluster, _b, bridge) = mixed().await;
    let alice = cluster.alice();
    let bob = cluster.bed.user("bob", &[]);
    cluster.local.hook(|seen: &RecordedRequest| {
        let bob = seen.all("x-remote-user") == ["bob"] && seen.path() == "/apis";
        bob.then(|| Reply::new(403).body("bob may not"))
    });
    for _ in 0..3 {
        assert_eq!(discovery(&alice, &bridge).await.status, 200);
        let refused = discovery(&bob, &bridge).await;
        assert_eq!(
            (refused.status, refused.text()),
            (403, "bob may not".into())
        );
    }
}

#[tokio::test]
async fn what_has_just_been_made_is_there_at_once() {
    let (cluster, _b, bridge) = mixed().await;
    let alice = cluster.alice();
    assert!(
        !discovery(&alice, &bridge)
            .await
            .text()
            .contains("example.com")
    );
    cluster.local.put(CRDS, crd("example.com", "widgets"));
    cluster.local.serve(&[
        cluster::SHARED,
        "v1 pods",
        "apps/v1 deployments",
        "example.com/v1 widgets",
    ]);
    // Whether or not its event has arrived.
    let shown = discovery(&alice, &bridge).await.text();
    assert!(
        shown.contains("widgets") && shown.contains("fleets"),
        "{shown}"
    );
    // Without an event, for who has not asked yet.
    let mut serves = vec![cluster::SHARED, "v1 pods", "apps/v1 deployments"];
    serves.push("example.com/v1 contraptions");
    cluster.local.serve(&serves);
    let shown = discovery(&cluster.bed.user("dora", &[]), &bridge)
        .await
        .text();
    assert!(
        shown.contains("contraptions") && shown.contains("fleets"),
        "{shown}"
    );
}

#[tokio::test]
async fn each_server_is_told_of_by_itself() {
    let (cluster, b, bridge) = mixed().await;
    let answer = get(&cluster, &bridge, "/apis", servers::ACCEPT).await;
    assert_eq!(answer.header("content-type"), Some(servers::MEDIA_TYPE));
    let list = ServerDiscoveryList::parse(&answer.body).unwrap();
    let [peer, own] = list.servers.as_slice() else {
        panic!("{list:#?}");
    };
    assert_eq!((&*own.identity, own.local), (cluster::OWN, true));
    assert_eq!((&*peer.identity, peer.local), (B, false));
    assert!(own.reachable && peer.reachable && peer.last_sync.is_some());
    let serves = |server: &ServerDiscovery, resource: &str| {
        let groups = server.groups.as_ref().unwrap();
        serde_json::to_string(groups).unwrap().contains(resource)
    };
    assert!(!serves(own, "fleets") && serves(own, "deployments") && serves(own, "pods"));
    assert!(serves(peer, "fleets") && serves(peer, "pods"));

    cluster.local.hook(|seen: &RecordedRequest| {
        let alice = seen.all("x-remote-user") == ["alice"];
        alice.then(|| Reply::new(403).body("no"))
    });
    let refused = get(&cluster, &bridge, "/apis", servers::ACCEPT).await;
    assert_eq!(refused.status, 403);
    cluster.local.behave();

    b.die().await;
    cluster.local.lease(B, "two");
    eventually("it is known to be away", PATIENCE, async || {
        let answer = get(&cluster, &bridge, "/apis", servers::ACCEPT).await;
        let list = ServerDiscoveryList::parse(&answer.body).unwrap();
        !list.servers[0].reachable && list.servers[0].problem.is_some()
    })
    .await;
}

#[tokio::test]
async fn lists_and_the_core_group_are_whole_unless_the_gate_is_off() {
    let (cluster, _b, bridge) = mixed().await;
    let alice = cluster.alice();
    let (group_version, resource) = NEW.split_once(' ').unwrap();
    let (group, _) = group_version.split_once('/').unwrap();
    let paths = [
        ("/apis".to_owned(), LIST, group),
        (format!("/apis/{group}"), LIST, group_version),
        (format!("/apis/{group_version}"), LIST, resource),
        ("/apis/apps/v1".to_owned(), LIST, "fleets"),
        ("/api/v1".to_owned(), LIST, "podgroups"),
        ("/api".to_owned(), V2, "podgroups"),
    ];
    for (path, accept, expected) in &paths {
        let answer = get(&cluster, &bridge, path, accept).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(
            answer.text().contains(expected),
            "{path}: {}",
            answer.text()
        );
    }

    let mut config = cluster.config();
    config.features.0.remove(&Feature::CompleteDiscovery);
    let plain = start(&config);
    eventually("the peer is known", PATIENCE, async || {
        !peer_view(&plain, B).await["secondsSinceSync"].is_null()
    })
    .await;
    for (path, accept, expected) in &paths {
        let answer = get(&cluster, &plain, path, accept).await;
        assert!(
            !answer.text().contains(expected),
            "{path}: {}",
            answer.text()
        );
    }
    eventually("what KEP-4020 has is still there", PATIENCE, async || {
        discovery(&alice, &plain).await.text().contains("fleets")
    })
    .await;
}

#[tokio::test]
async fn without_certificates_for_peers_discovery_is_local_and_counted() {
    let (cluster, _b, _bridge) = mixed().await;
    let mut config = cluster.config();
    config.peers.ca = None;
    let alice = cluster.alice();
    let alone = start(&config);
    eventually("it is ready", PATIENCE, async || {
        get(&cluster, &alone, "/readyz", "*/*").await.status == 200
    })
    .await;
    let shown = discovery(&alice, &alone).await;
    assert_eq!(shown.status, 200);
    assert!(!shown.text().contains("fleets"));
    let nopeer = format!("{V2};profile=nopeer");
    get(&cluster, &alone, "/apis", &nopeer).await;
    let metrics = metrics(&alone).await;
    for line in [
        "skewbridge_discovery_fallbacks_total{reason=\"no_peering\"} 1",
        "aggregator_discovery_nopeer_requests_total 1",
        "aggregator_discovery_local_requests_total 1",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn openapi_is_completed_and_a_peer_asked_once() {
    let (cluster, b, bridge) = mixed().await;
    let index = json(&get(&cluster, &bridge, "/openapi/v3", "*/*").await);
    let (group_version, _) = NEW.split_once(' ').unwrap();
    for key in ["api/v1", "apis/apps/v1", &format!("apis/{group_version}")] {
        let url = index["paths"][key]["serverRelativeURL"].as_str().unwrap();
        let document = get(&cluster, &bridge, url, LIST).await;
        assert!(json(&document)["paths"].is_object(), "{key}");
    }
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let document = get(&cluster, &bridge, url, LIST).await;
    let immutable = document.header("cache-control").unwrap();
    assert_eq!(immutable, "public, immutable");
    let paths = &json(&document)["paths"];
    // What the local server serves is described by it.
    let local = &paths["/apis/apps/v1/deployments"]["get"]["description"];
    assert_ne!(local, B);
    assert_eq!(paths["/apis/apps/v1/fleets"]["get"]["description"], B);

    let path = "/openapi/v3/apis/apps/v1";
    let questions = b.standin.questions(path);
    assert_eq!(questions.len(), 1, "{questions:#?}");
    // So that a bridge there does not ask others in turn.
    assert_eq!(questions[0].all("x-kubernetes-peer-proxied"), ["true"]);

    let many = (0..20).map(|_| get(&cluster, &bridge, "/openapi/v2", LIST));
    for answer in futures_of(many).await {
        assert!(json(&answer)["paths"]["/apis/apps/v1/fleets"].is_object());
    }
    assert_eq!(b.standin.questions("/openapi/v2").len(), 1);
}

/// All at once.
async fn futures_of<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
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

#[tokio::test]
async fn openapi_goes_on_without_a_peer() {
    let (cluster, b, bridge) = mixed().await;
    let path = "/openapi/v3/apis/apps/v1";
    let before = json(&get(&cluster, &bridge, path, LIST).await);
    assert!(before["paths"]["/apis/apps/v1/fleets"].is_object());
    b.die().await;
    // What is known stays known, also when the local server changes.
    let after = json(&get(&cluster, &bridge, path, LIST).await);
    assert_eq!(after, before);
    let serves = [
        cluster::SHARED,
        "v1 pods",
        "apps/v1 deployments",
        "apps/v1 daemons",
    ];
    cluster.local.serve(&serves);
    let changed = json(&get(&cluster, &bridge, path, LIST).await);
    for resource in ["fleets", "daemons"] {
        let path = format!("/apis/apps/v1/{resource}");
        assert!(changed["paths"][&path].is_object(), "{changed}");
    }
    // What was never asked for is the local server's, and what it does not have is there,
    // only not now.
    let everything = json(&get(&cluster, &bridge, "/openapi/v2", LIST).await);
    assert!(everything["paths"]["/apis/apps/v1/deployments"].is_object());
    let index = json(&get(&cluster, &bridge, "/openapi/v3", "*/*").await);
    assert!(index["paths"]["apis/apps/v1"].is_object());
    let (group_version, _) = NEW.split_once(' ').unwrap();
    let url = &index["paths"][format!("apis/{group_version}")]["serverRelativeURL"];
    let url = url.as_str().unwrap();
    let absent = get(&cluster, &bridge, url, LIST).await;
    assert!(
        refusal(&absent, 503).contains("cannot be reached"),
        "{}",
        absent.text()
    );
    let metrics = metrics(&bridge).await;
    let counted = "skewbridge_discovery_fallbacks_total{reason=\"merge_error\"}";
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn openapi_log_lines_name_a_peer_by_its_host() {
    const NAMED: &str = "apiserver-of-the-log";
    log::keep();
    let local = ["apps/v1 deployments"];
    let peer = ["apps/v1 deployments", MORE, NEW];
    let (cluster, [b], bridge) = Cluster::with_peers(&local, [(NAMED, &peer)]).await;
    let name = format!("host-of-{NAMED} ({NAMED})");
    let path = "/openapi/v3/apis/apps/v1";
    for (reply, line) in [
        (500, "the OpenAPI document of a peer cannot be fetched"),
        (200, "the OpenAPI document of a peer cannot be parsed"),
    ] {
        b.standin.hook(move |seen| {
            let is_asked = seen.path() == path;
            is_asked.then(|| {
                Reply::new(reply)
                    .header("ETag", "\"new\"")
                    .body("no document")
            })
        });
        eventually(line, PATIENCE, async || {
            assert_eq!(get(&cluster, &bridge, path, LIST).await.status, 200);
            let lines = log::lines_with(line);
            let mut lines = lines.iter().filter(|line| line.contains(NAMED));
            lines.any(|it| it.contains(&name))
        })
        .await;
    }
}

/// Servers that do not aggregate are asked for lists, and must not be told of each other.
#[tokio::test]
async fn old_servers_tell_peers_of_themselves_alone() {
    let local = ["apps/v1 deployments"];
    let (cluster, [b], bridge) = Cluster::with_peers(&local, [(B, &[MORE, NEW])]).await;
    b.standin.is_version("v1.25.16", Form::Legacy);
    cluster.local.is_version("v1.25.16", Form::Legacy);
    cluster.local.lease(B, "two");
    eventually("it is asked for lists", PATIENCE, async || {
        !b.standin.questions("/apis/apps/v1").is_empty()
    })
    .await;
    for question in b.standin.questions("/apis/apps/v1") {
        assert_eq!(question.all("x-kubernetes-peer-proxied"), ["true"]);
    }
    let proxy = cluster.bed.peer();
    let headers = [
        ("x-remote-user", "system:apiserver"),
        ("x-kubernetes-peer-proxied", "true"),
        ("accept", LIST),
    ];
    for path in ["/apis", "/apis/apps/v1", "/openapi/v2"] {
        let told = ask(&proxy, &bridge, "GET", path, &headers, "").await;
        assert_eq!(told.status, 200, "{path}");
        assert!(!told.text().contains("fleets"), "{path}: {}", told.text());
    }
    // And whoever asks so by what it accepts.
    let nopeer = "application/json;profile=nopeer";
    let told = get(&cluster, &bridge, "/apis/apps/v1", nopeer).await;
    assert!(!told.text().contains("fleets"), "{}", told.text());
}

#[tokio::test]
async fn what_is_deleted_is_gone_at_once_from_lists_too() {
    let (cluster, _b, bridge) = mixed().await;
    cluster.local.put(CRDS, crd("example.com", "widgets"));
    let with = [
        cluster::SHARED,
        "v1 pods",
        "apps/v1 deployments",
        "example.com/v1 widgets",
    ];
    cluster.local.serve(&with);
    eventually("it is there", PATIENCE, async || {
        get(&cluster, &bridge, "/apis", V2)
            .await
            .text()
            .contains("widgets")
    })
    .await;
    // The server does not show it any more, and its event is still on the way.
    cluster.local.serve(&with[..3]);
    let list = get(&cluster, &bridge, "/apis", LIST).await;
    assert!(!list.text().contains("example.com"), "{}", list.text());
    assert_eq!(
        get(&cluster, &bridge, "/apis/example.com", LIST)
            .await
            .status,
        404
    );
    assert!(
        !get(&cluster, &bridge, "/apis", V2)
            .await
            .text()
            .contains("widgets")
    );
}

/// Each with the rights that it has itself.
#[tokio::test]
async fn a_permission_is_for_one_token_and_one_method() {
    let (cluster, _b, bridge) = mixed().await;
    cluster.local.hook(|seen: &RecordedRequest| {
        let good = seen.header("sec-websocket-protocol") == Some("good") && seen.method != "HEAD";
        (seen.path() == "/apis" && !seen.is_probe() && !good).then(|| Reply::new(403).body("no"))
    });
    let nobody = cluster.bed.client();
    let asked = async |method: &str, token: &str| {
        let headers = [("accept", V2), ("sec-websocket-protocol", token)];
        ask(&nobody, &bridge, method, "/apis", &headers, "")
            .await
            .status
    };
    for _ in 0..2 {
        assert_eq!(asked("GET", "good").await, 200);
        assert_eq!(asked("GET", "bad").await, 403);
        assert_eq!(asked("HEAD", "good").await, 403);
    }
}

#[tokio::test]
async fn who_may_not_read_openapi_is_told_so() {
    let (cluster, b, bridge) = mixed().await;
    cluster.local.hook(|seen: &RecordedRequest| {
        let alice = seen.all("x-remote-user") == ["alice"];
        alice.then(|| Reply::new(403).body("no"))
    });
    for path in ["/openapi/v2", "/openapi/v3", "/openapi/v3/apis/apps/v1"] {
        assert_eq!(
            get(&cluster, &bridge, path, LIST).await.status,
            403,
            "{path}"
        );
    }
    assert!(b.standin.questions("/openapi/v2").is_empty());
}
