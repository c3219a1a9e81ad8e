//! A bridge in front of several kube-apiservers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use rustls_pki_types::ServerName;
use serde_json::Value;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, UpstreamServer};
use skewbridge_testkit::{
    BodySender, ClientAuth, H2Client, H2Stream, Options, RecordedRequest, Reply, Response,
    TEST_TIMEOUT, eventually,
};

use crate::support::admin_client;
use crate::support::cluster::{
    NEW, NEW_PATH, SHARED, SHARED_PATH, UNSERVED_PATH, peers, send_request, served_by,
    status_message,
};
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::pki::{PkiFixture, start};

const NAMES: [&str; 3] = ["a", "b", "c"];
const WATCH: &str = "/apis/apps/v1/namespaces/a/deployments?watch=true";

/// Three kube-apiservers, of which only `c` serves [`NEW`].
pub(crate) struct Fixture {
    pub(crate) pki: PkiFixture,
    pub(crate) servers: [FakeApiServer; 3],
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let pki = PkiFixture::new();
        let server = async |name: &'static str| {
            let names = ["localhost", "127.0.0.1", "kubernetes.default.svc"];
            let leaf = pki.upstream_ca.server(&names);
            let options = Options::new(leaf).clients(ClientAuth::Accept(&pki.front_proxy_ca));
            let serves: &[_] = if name == "c" {
                &[SHARED, NEW]
            } else {
                &[SHARED]
            };
            FakeApiServer::start(options, name, serves).await
        };
        let servers = [server("a").await, server("b").await, server("c").await];
        Self { pki, servers }
    }

    pub(crate) fn config(&self) -> Config {
        self.config_in_order([0, 1, 2])
    }

    /// With the servers in this order in the flags.
    pub(crate) fn config_in_order(&self, [first, second, third]: [usize; 3]) -> Config {
        let mut config = self.pki.config(self.address(first));
        config.upstream.others = [second, third]
            .map(|index| server_at(self.address(index)))
            .to_vec();
        config
    }

    pub(crate) fn address(&self, index: usize) -> SocketAddr {
        self.servers[index].server.addr()
    }

    pub(crate) async fn start(&self) -> Handle {
        self.start_with(&self.config()).await
    }

    /// A bridge that knows all servers as ready.
    pub(crate) async fn start_with(&self, config: &Config) -> Handle {
        let bridge = start(config);
        self.wait_for_readiness(&bridge, [true; 3]).await;
        bridge
    }

    pub(crate) async fn wait_for_readiness(&self, bridge: &Handle, expected: [bool; 3]) {
        eventually(
            "the readiness of all servers is known",
            TEST_TIMEOUT,
            async || {
                let answer = admin_client::get(bridge.admin_address(), "/readyz?verbose").await;
                let is_ready = |number: usize| {
                    let line = format!("]upstream-{number} ok: ");
                    let line = answer.body.lines().find(|it| it.contains(&line));
                    line.is_some_and(|it| !it.contains("is not ready"))
                };
                [is_ready(1), is_ready(2), is_ready(3)] == expected
            },
        )
        .await;
    }

    pub(crate) async fn send(&self, bridge: &Handle, method: &str, path: &str) -> Response {
        let alice = self.pki.user("alice", &["dev"]);
        send_request(&alice, bridge, method, path, &[], "").await
    }

    /// Which servers answer 30 reads.
    pub(crate) async fn answering_reads(&self, bridge: &Handle) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for _ in 0..30 {
            names.insert(served_by(&self.send(bridge, "GET", SHARED_PATH).await));
        }
        names
    }

    /// Which servers answer 30 requests.
    pub(crate) async fn answering(&self, bridge: &Handle) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for number in 0..30 {
            let method = if number % 2 == 0 { "GET" } else { "POST" };
            names.insert(served_by(&self.send(bridge, method, SHARED_PATH).await));
        }
        names
    }
}

fn server_at(address: SocketAddr) -> UpstreamServer {
    UpstreamServer {
        host: address.ip().to_string(),
        port: address.port(),
        server_name: ServerName::try_from("localhost").unwrap(),
    }
}

pub(crate) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|it| (*it).to_owned()).collect()
}

fn is_client_request(recorded: &RecordedRequest) -> bool {
    !recorded.is_probe() && recorded.path() == SHARED_PATH
}

/// How kube-apiserver rejects requests while it shuts down.
fn shutting_down() -> Reply {
    Reply::new(503)
        .header("Retry-After", "1")
        .header("X-Content-Type-Options", "nosniff")
        .body("apiserver is shutting down.\n")
}

#[tokio::test]
async fn requests_are_spread_over_all_ready_servers() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    assert_eq!(fixture.answering(&bridge).await, set(&NAMES));
    fixture.servers[1].set_hook(|recorded| {
        (recorded.path() == "/readyz").then(|| Reply::new(500).body("shutdown"))
    });
    fixture
        .wait_for_readiness(&bridge, [true, false, true])
        .await;
    assert_eq!(fixture.answering(&bridge).await, set(&["a", "c"]));
    assert_eq!(fixture.send(&bridge, "GET", "/readyz").await.status, 200);
    let ready = admin_client::get(bridge.admin_address(), "/readyz").await;
    assert_eq!(ready.status, 200, "one ready server is enough");
    fixture.servers[1].remove_hook();
    fixture.wait_for_readiness(&bridge, [true; 3]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&NAMES));
}

#[tokio::test]
async fn no_request_fails_when_a_server_ends_and_returns() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    assert_eq!(fixture.answering(&bridge).await, set(&NAMES));
    fixture.servers[0].server.stop_listening().await;
    fixture.servers[0].server.kill_connections().await;
    assert_eq!(fixture.answering(&bridge).await, set(&["b", "c"]));
    fixture
        .wait_for_readiness(&bridge, [false, true, true])
        .await;
    fixture.servers[0].server.listen_again().await;
    fixture.wait_for_readiness(&bridge, [true; 3]).await;
    assert_eq!(fixture.answering(&bridge).await, set(&NAMES));
}

#[tokio::test]
async fn a_request_that_a_server_rejects_during_its_shutdown_goes_to_another_one() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    for index in [0, 1] {
        fixture.servers[index].set_hook(|recorded| is_client_request(recorded).then(shutting_down));
    }
    assert_eq!(fixture.answering(&bridge).await, set(&["c"]));
    // Without another server the client gets the response.
    fixture.servers[2].set_hook(|recorded| is_client_request(recorded).then(shutting_down));
    let answer = fixture.send(&bridge, "POST", SHARED_PATH).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_write_that_a_server_may_have_processed_is_sent_once_and_a_read_again() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    let broken = Arc::new(Mutex::new(0));
    for server in &fixture.servers[..2] {
        let broken = broken.clone();
        server.set_hook(move |recorded| {
            is_client_request(recorded).then(|| {
                *broken.lock().unwrap() += 1;
                Reply::reset(h2::Reason::INTERNAL_ERROR)
            })
        });
    }
    let mut failed = 0;
    for _ in 0..20 {
        let answer = fixture.send(&bridge, "POST", SHARED_PATH).await;
        failed += usize::from(answer.status == 502);
        let is_expected = answer.status == 502 || answer.status == 200;
        assert!(is_expected, "{} {}", answer.status, answer.text());
    }
    assert_eq!(failed, *broken.lock().unwrap(), "no write is sent twice");
    for _ in 0..20 {
        let answer = fixture.send(&bridge, "GET", SHARED_PATH).await;
        assert_eq!(served_by(&answer), "c");
    }
}

#[tokio::test]
async fn an_api_of_one_server_is_served_whichever_server_is_chosen() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    for method in ["GET", "POST"] {
        for _ in 0..10 {
            let answer = fixture.send(&bridge, method, NEW_PATH).await;
            assert_eq!(served_by(&answer), "c");
        }
    }
    for _ in 0..10 {
        assert_eq!(
            fixture.send(&bridge, "GET", UNSERVED_PATH).await.status,
            404
        );
    }
    let alice = fixture.pki.user("alice", &["dev"]);
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    for _ in 0..10 {
        let headers = [("accept", accept)];
        let groups = send_request(&alice, &bridge, "GET", "/apis", &headers, "").await;
        assert!(
            groups.text().contains("volumeattributesclasses"),
            "{}",
            groups.text()
        );
    }
    let view = peers(&bridge).await;
    let backends = view["backends"].as_array().unwrap();
    assert_eq!(backends.len(), 3);
    for (backend, index) in backends.iter().zip(0..) {
        assert_eq!(backend["upstream"], fixture.address(index).to_string());
        assert_eq!(backend["peers"].as_array().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_new_api_of_a_server_is_served_before_its_discovery_is_read() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    let path = "/apis/batch/v2/namespaces/a/jobs";
    assert_eq!(fixture.send(&bridge, "GET", path).await.status, 404);
    fixture.servers[1].serve(&[SHARED, "batch/v2 jobs"]);
    for method in ["GET", "POST"] {
        for _ in 0..10 {
            let answer = fixture.send(&bridge, method, path).await;
            assert_eq!(served_by(&answer), "b", "{method}");
        }
    }
}

#[tokio::test]
async fn an_api_of_a_server_that_has_ended_is_503_and_not_404() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    assert_eq!(
        served_by(&fixture.send(&bridge, "GET", NEW_PATH).await),
        "c"
    );
    fixture.servers[2].server.stop_listening().await;
    fixture.servers[2].server.kill_connections().await;
    fixture
        .wait_for_readiness(&bridge, [true, true, false])
        .await;
    for _ in 0..10 {
        let answer = fixture.send(&bridge, "GET", NEW_PATH).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(fixture.answering(&bridge).await, set(&["a", "b"]));
}

#[tokio::test]
async fn a_path_that_no_server_serves_is_404_while_a_server_is_down() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    fixture.servers[2].server.stop_listening().await;
    fixture.servers[2].server.kill_connections().await;
    fixture
        .wait_for_readiness(&bridge, [true, true, false])
        .await;
    for _ in 0..10 {
        let answer = fixture
            .send(&bridge, "GET", "/apis/none.example.com/v1/things")
            .await;
        assert_eq!(answer.status, 404, "{}", answer.text());
    }
}

#[tokio::test]
async fn without_any_server_a_request_is_503_and_the_bridge_not_ready() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    for server in &fixture.servers {
        server.server.stop_listening().await;
        server.server.kill_connections().await;
    }
    let answer = fixture.send(&bridge, "POST", SHARED_PATH).await;
    status_message(&answer, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    eventually("the bridge is not ready", TEST_TIMEOUT, async || {
        let ready = admin_client::get(bridge.admin_address(), "/readyz").await;
        ready.status == 500 && ready.body.contains("[-]upstream-3 failed")
    })
    .await;
}

#[tokio::test]
async fn without_a_front_proxy_certificate_requests_are_only_balanced() {
    let fixture = Fixture::new().await;
    let mut config = fixture.config();
    config.upstream.front_proxy = None;
    config.callers.client_ca = None;
    config.callers.request_header = None;
    let bridge = fixture.start_with(&config).await;
    let client = fixture.pki.client();
    let token = [("authorization", "Bearer t0ken")];
    let mut names = BTreeSet::new();
    let mut statuses = BTreeSet::new();
    for _ in 0..30 {
        let answer = send_request(&client, &bridge, "GET", SHARED_PATH, &token, "").await;
        names.insert(served_by(&answer));
        let answer = send_request(&client, &bridge, "GET", NEW_PATH, &token, "").await;
        statuses.insert(answer.status);
    }
    assert_eq!(names, set(&NAMES));
    // A server that does not serve a path is no reason for a 404.
    assert_eq!(statuses, [200].into());
    let unserved = send_request(&client, &bridge, "GET", UNSERVED_PATH, &token, "").await;
    assert_eq!(unserved.status, 404);
}

#[tokio::test]
async fn metrics_show_each_server() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    assert_eq!(fixture.answering(&bridge).await, set(&NAMES));
    fixture.servers[0].server.stop_listening().await;
    fixture.servers[0].server.kill_connections().await;
    fixture
        .wait_for_readiness(&bridge, [false, true, true])
        .await;
    eventually(
        "the metric of readiness is current",
        TEST_TIMEOUT,
        async || {
            let metrics = admin_client::get(bridge.admin_address(), "/metrics")
                .await
                .body;
            let sample = |name: &str, index: usize| {
                let labels = format!("{name}{{upstream=\"{}\"}} ", fixture.address(index));
                let line = metrics.lines().find_map(|it| it.strip_prefix(&labels));
                line.map(|it| it.parse::<f64>().unwrap())
            };
            assert!(sample("skewbridge_backend_requests_total", 1) > Some(0.0));
            let ready = [0, 1, 2].map(|index| sample("skewbridge_backend_ready", index));
            ready == [Some(0.0), Some(1.0), Some(1.0)]
        },
    )
    .await;
}

/// Watches through a bridge, with the server that serves each.
pub(crate) struct Watches {
    senders: Arc<Mutex<BTreeMap<&'static str, Vec<BodySender>>>>,
    streams: Vec<H2Stream>,
    clients: Vec<H2Client>,
}

impl Watches {
    pub(crate) fn new(fixture: &Fixture) -> Self {
        let senders = Arc::<Mutex<BTreeMap<_, Vec<_>>>>::default();
        for (server, name) in fixture.servers.iter().zip(NAMES) {
            let senders = senders.clone();
            server.set_hook(move |recorded| {
                let is_watch = is_client_request(recorded) && recorded.query().is_some();
                is_watch.then(|| {
                    let (reply, sender) = Reply::stream();
                    senders
                        .lock()
                        .unwrap()
                        .entry(name)
                        .or_default()
                        .push(sender);
                    reply.header("Content-Type", "application/json")
                })
            });
        }
        Self {
            senders,
            streams: Vec::new(),
            clients: Vec::new(),
        }
    }

    pub(crate) async fn open(&mut self, fixture: &Fixture, bridge: &Handle) {
        let client = fixture.pki.user("alice", &["dev"]);
        let h2 = client.http2(bridge.address()).await.unwrap();
        let request = Request::get(format!("https://k{WATCH}")).body(()).unwrap();
        let mut stream = h2.stream(request).await.unwrap();
        stream.finish().unwrap();
        assert_eq!(stream.head().await.unwrap().status, 200);
        self.streams.push(stream);
        self.clients.push(h2);
    }

    /// Open watches of each server.
    pub(crate) fn open_at(&self, name: &str) -> usize {
        let senders = self.senders.lock().unwrap();
        let all = senders.get(name).into_iter().flatten();
        all.filter(|it| !it.is_cancelled()).count()
    }
}

#[tokio::test]
async fn watches_are_spread_and_move_evenly_to_a_server_that_returns() {
    let fixture = Fixture::new().await;
    let mut config = fixture.config();
    config.limits.watch_rebalance_period = Duration::from_secs(1);
    fixture.servers[2].server.stop_listening().await;
    let bridge = start(&config);
    fixture
        .wait_for_readiness(&bridge, [true, true, false])
        .await;
    let mut watches = Watches::new(&fixture);
    // With this many, one of each server ends almost certainly.
    for _ in 0..60 {
        watches.open(&fixture, &bridge).await;
    }
    assert_eq!(["a", "b", "c"].map(|it| watches.open_at(it)), [30, 30, 0]);
    fixture.servers[2].server.listen_again().await;
    fixture.wait_for_readiness(&bridge, [true; 3]).await;
    // About a third of them: each watch ends with this probability.
    eventually(
        "watches at both servers are ended",
        TEST_TIMEOUT,
        async || watches.open_at("a") < 30 && watches.open_at("b") < 30,
    )
    .await;
    eventually(
        "a client receives the end of its watch",
        TEST_TIMEOUT,
        async || {
            for stream in &mut watches.streams {
                let end = tokio::time::timeout(Duration::ZERO, stream.chunk()).await;
                if let Ok(end) = end {
                    // As if the server had ended it.
                    let is_clean = end.is_none_or(|it| it.is_ok_and(|it| it.is_empty()));
                    assert!(is_clean, "a watch ends between two events");
                    return true;
                }
            }
            false
        },
    )
    .await;
    for _ in 0..12 {
        watches.open(&fixture, &bridge).await;
    }
    assert!(
        watches.open_at("c") > 0,
        "new watches go to the server with the fewest"
    );
}

#[tokio::test]
async fn watches_are_ended_at_a_server_that_is_about_to_end() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    let mut watches = Watches::new(&fixture);
    for _ in 0..9 {
        watches.open(&fixture, &bridge).await;
    }
    assert!(watches.open_at("b") > 0);
    fixture.servers[1].set_hook(|recorded| (recorded.path() == "/readyz").then(|| Reply::new(500)));
    eventually("its watches are ended", TEST_TIMEOUT, async || {
        watches.open_at("b") == 0
    })
    .await;
    assert!(watches.open_at("a") > 0 && watches.open_at("c") > 0);
}

#[tokio::test]
async fn the_view_of_one_server_has_the_fields_of_a_sole_one() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    let view: Value = peers(&bridge).await;
    let first = &view["backends"][0];
    assert_eq!(first["local"]["identity"], "upstream-1");
    assert_eq!(first["peers"][0]["identity"], "upstream-2");
    assert_eq!(first["peers"][0]["address"], fixture.address(1).to_string());
}

#[tokio::test]
async fn the_gauges_of_the_cluster_cover_the_views_of_all_backends() {
    let fixture = Fixture::new().await;
    let bridge = fixture.start().await;
    let up = async |number: usize| {
        let peer = format!("upstream-{number}");
        let scrape = admin_client::scrape(bridge.admin_address()).await;
        scrape.value("skewbridge_peer_up", &[("peer", &peer), ("host", "")])
    };
    let all_up = async || [up(1).await, up(2).await, up(3).await] == [Some(1.0); 3];
    eventually("every server is a peer", TEST_TIMEOUT, all_up).await;
    let polls = async |number: usize| {
        let peer = format!("upstream-{number}");
        let labels = [("peer", &*peer), ("host", ""), ("result", "ok")];
        let scrape = admin_client::scrape(bridge.admin_address()).await;
        scrape.value("skewbridge_peer_discovery_polls_total", &labels)
    };
    for number in 1..=3 {
        let before = polls(number).await;
        assert!(before >= Some(1.0), "upstream-{number}: {before:?}");
        let after = polls(number).await;
        assert!(after >= before, "a scrape removes the series of a peer");
    }
    let scrape = admin_client::scrape(bridge.admin_address()).await;
    let document = scrape.value("skewbridge_discovery_document_bytes", &[("path", "/apis")]);
    assert!(document > Some(0.0), "{document:?}");
}

/// Two balancers, which do not know each other.
#[tokio::test]
async fn two_balancers_share_the_same_servers() {
    let fixture = Fixture::new().await;
    let bridges = [fixture.start().await, fixture.start().await];
    let mut watches = Watches::new(&fixture);
    for bridge in &bridges {
        for _ in 0..9 {
            watches.open(&fixture, bridge).await;
        }
    }
    // Each watch goes to the less loaded of two random servers: 18 watches, about 6 at each.
    let open = NAMES.map(|it| watches.open_at(it));
    assert_eq!(open.iter().sum::<usize>(), 18);
    assert!(open.iter().all(|it| (4..=8).contains(it)), "{open:?}");
    let count = |index: usize| {
        let requests = fixture.servers[index].client_requests();
        requests.iter().filter(|it| it.method == "POST").count()
    };
    let before: usize = (0..3).map(count).sum();
    for number in 0..20 {
        let answer = fixture
            .send(&bridges[number % 2], "POST", SHARED_PATH)
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let after: usize = (0..3).map(count).sum();
    assert_eq!(after - before, 20, "each write is sent once");
    for bridge in &bridges {
        for _ in 0..6 {
            assert_eq!(served_by(&fixture.send(bridge, "GET", NEW_PATH).await), "c");
        }
        let alice = fixture.pki.user("alice", &["dev"]);
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let groups = send_request(&alice, bridge, "GET", "/apis", &[("accept", accept)], "").await;
        assert!(groups.text().contains("volumeattributesclasses"));
    }
    // Both find out on their own that a server ends.
    fixture.servers[0].server.stop_listening().await;
    fixture.servers[0].server.kill_connections().await;
    for bridge in &bridges {
        assert_eq!(fixture.answering(bridge).await, set(&["b", "c"]));
    }
}
