//! The ledger of calls to APIs that the next minor version does not serve, or that are deprecated.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Config;
use skewbridge_testkit::{
    ApiServer, ClientAuth, Options, RecordedRequest, Reply, Response, TEST_TIMEOUT, TlsClient,
    eventually,
};

use crate::support::admin_client;
use crate::support::cluster::send_request;
use crate::support::pki::{self, PkiFixture};
use crate::support::self_test_responses;

/// 1.37 does not serve it.
const CLASSES: &str = "/apis/storage.k8s.io/v1beta1/volumeattributesclasses";
/// Deprecated, and served by every release.
const ENDPOINTS: &str = "/api/v1/namespaces/a/endpoints";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/a/deployments";
const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// Tokens that the server accepts. It refuses to review the second one.
const ROBOT_TOKEN: &str = "robot-t0ken";
const UNREVIEWED_TOKEN: &str = "unreviewed-t0ken";
const ROBOT: &str = "system:serviceaccount:default:robot";

struct Fixture {
    pki: PkiFixture,
    bridge: Handle,
    version: Arc<Mutex<String>>,
    server: ApiServer,
}

async fn fixture() -> Fixture {
    fixture_with(|_| {}).await
}

async fn fixture_with(change: impl FnOnce(&mut Config)) -> Fixture {
    let pki = PkiFixture::new();
    let version = Arc::new(Mutex::new("v1.36.4".to_owned()));
    let reported = version.clone();
    let options =
        Options::new(pki.upstream.clone()).clients(ClientAuth::Accept(&pki.front_proxy_ca));
    let server = ApiServer::start(options, move |recorded| answer(&reported, &recorded)).await;
    let mut config = pki.config(server.addr());
    change(&mut config);
    let bridge = pki::start(&config);
    let fixture = Fixture {
        pki,
        bridge,
        version,
        server,
    };
    fixture
        .wait_for(|report| report["newestServer"] == "1.36")
        .await;
    fixture
}

fn answer(version: &Mutex<String>, recorded: &RecordedRequest) -> Reply {
    let token = recorded.header("authorization");
    let token = token.and_then(|it| it.strip_prefix("Bearer "));
    if token.is_some_and(|it| ![ROBOT_TOKEN, UNREVIEWED_TOKEN].contains(&it)) {
        return Reply::new(401);
    }
    let warning = |text: &str| Reply::json("{}").header("Warning", &format!("299 - \"{text}\""));
    match recorded.path() {
        "/readyz" => Reply::new(200).body("ok"),
        "/version" => Reply::json(json!({"gitVersion": *version.lock().unwrap()}).to_string()),
        TOKEN_REVIEWS => token_review(recorded),
        ENDPOINTS => {
            warning("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
                .header("Warning", "299 - \"of a webhook\"")
        }
        "/apis/example.com/v1alpha1/widgets" => {
            warning("example.com/v1alpha1 Widget is deprecated")
        }
        "/apis/example.com/v1/widgets" => warning("of a webhook"),
        // Deprecated, and gone in the next minor version.
        "/apis/networking.k8s.io/v1beta1/ipaddresses" => warning(
            "networking.k8s.io/v1beta1 IPAddress is deprecated in v1.34+, unavailable in v1.37+",
        ),
        // Only a server beside this one would serve it.
        "/apis/flowcontrol.apiserver.k8s.io/v1beta2/flowschemas" => Reply::new(404)
            .header("Content-Type", "text/plain; charset=utf-8")
            .body("404 page not found\n"),
        path if path.ends_with("/missing") => {
            Reply::json(json!({"kind": "Status", "code": 404}).to_string()).status(404)
        }
        CLASSES if recorded.header("x-forbidden").is_some() => Reply::new(403),
        path if path.starts_with(CLASSES) || path == DEPLOYMENTS => Reply::json("{}"),
        _ => self_test_responses::passing_response(recorded).unwrap_or_else(|| Reply::new(404)),
    }
}

fn token_review(recorded: &RecordedRequest) -> Reply {
    let review: Value = serde_json::from_slice(&recorded.body).unwrap();
    if review["spec"]["token"] == UNREVIEWED_TOKEN {
        return Reply::new(403).body("not for you");
    }
    let status = json!({"status": {"authenticated": true, "user": {"username": ROBOT}}});
    Reply::json(status.to_string()).status(201)
}

impl Fixture {
    fn user(&self, name: &str) -> TlsClient {
        self.pki.user(name, &["dev"])
    }

    async fn get(&self, client: &TlsClient, path: &str, headers: &[(&str, &str)]) -> Response {
        send_request(client, &self.bridge, "GET", path, headers, "").await
    }

    async fn report(&self) -> Value {
        let answer = admin_client::get(self.bridge.admin_address(), "/debug/vanishing").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        serde_json::from_str(&answer.body).unwrap()
    }

    async fn wait_for(&self, expected: impl Fn(&Value) -> bool) {
        eventually("the report is as expected", TEST_TIMEOUT, async || {
            expected(&self.report().await)
        })
        .await;
    }

    /// `USER[ as USER] AGENT VERB RESOURCE REASON COUNT` of each entry.
    async fn calls(&self) -> Vec<String> {
        let report = self.report().await;
        let calls = report["calls"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut calls: Vec<_> = calls
            .map(|call| {
                let user = match &call["impersonatedUser"] {
                    Value::Null => text(&call["user"]),
                    user => format!("{} as {}", text(&call["user"]), text(user)),
                };
                format!(
                    "{user} {} {} {} {} {}",
                    text(&call["userAgent"]),
                    text(&call["verb"]),
                    text(&call["resource"]),
                    text(&call["reason"]),
                    call["count"]
                )
            })
            .collect();
        calls.sort();
        calls
    }

    async fn metric(&self, resource: &str, reason: &str) -> Option<f64> {
        let scrape = admin_client::scrape(self.bridge.admin_address()).await;
        let api = [
            ("group", "storage.k8s.io"),
            ("version", "v1beta1"),
            ("resource", resource),
            ("reason", reason),
        ];
        scrape.value("skewbridge_vanishing_requests_total", &api)
    }
}

#[tokio::test]
async fn calls_to_an_api_that_the_next_version_lacks_are_counted_by_caller_and_verb() {
    let fixture = fixture().await;
    let (alice, bob) = (fixture.user("alice"), fixture.user("bob"));
    for number in 0..10_usize {
        let agent = format!("agent-{number}/v1");
        for _ in 0..=number {
            let response = fixture
                .get(&alice, CLASSES, &[("user-agent", &agent)])
                .await;
            assert_eq!(response.status, 200);
        }
    }
    let watch = format!("{CLASSES}?watch=true");
    let object = format!("{CLASSES}/a-secret-name");
    let missing = format!("{CLASSES}/missing");
    for path in [&watch, &object, &missing] {
        fixture.get(&bob, path, &[("user-agent", "x")]).await;
    }
    fixture.get(&bob, DEPLOYMENTS, &[("user-agent", "x")]).await;
    fixture.get(&bob, "/version", &[("user-agent", "x")]).await;
    let body = r#"{"metadata":{"name":"a-secret-name"}}"#;
    send_request(&bob, &fixture.bridge, "POST", CLASSES, &[], body).await;

    let mut expected: Vec<_> = (0..10)
        .map(|number| {
            let count = number + 1;
            format!("alice agent-{number}/v1 list volumeattributesclasses removed {count}")
        })
        .collect();
    expected.extend(
        [
            "bob  create volumeattributesclasses removed 1",
            "bob x get volumeattributesclasses removed 2",
            "bob x watch volumeattributesclasses removed 1",
        ]
        .map(str::to_owned),
    );
    assert_eq!(fixture.calls().await, expected);
    let report = fixture.report().await;
    assert!(!report.to_string().contains("a-secret-name"), "{report}");
    assert_eq!(
        (&report["target"], &report["targetKnown"]),
        (&json!("1.37"), &json!(true))
    );
    let call = &report["calls"][0];
    assert_eq!(call["unavailableIn"], "1.37");
    assert!(call["firstSeen"].as_str() <= call["lastSeen"].as_str());
    let count = fixture.metric("volumeattributesclasses", "removed").await;
    assert_eq!(count, Some(59.0));
}

#[tokio::test]
async fn the_status_page_names_the_worst_callers() {
    const MAX_ROWS: usize = 25;
    let fixture = fixture().await;
    let alice = fixture.user("alice");
    for number in 0..=MAX_ROWS {
        let agent = format!("agent-{number}<b>");
        fixture
            .get(&alice, ENDPOINTS, &[("user-agent", &agent)])
            .await;
    }
    let bob = fixture.user("bob");
    for _ in 0..2 {
        fixture.get(&bob, CLASSES, &[("user-agent", "x")]).await;
    }
    let admin = fixture.bridge.admin_address();
    let table = async || -> Value {
        let status = admin_client::get(admin, "/status.json").await.body;
        let mut status: Value = serde_json::from_str(&status).unwrap();
        status["tables"][0].take()
    };
    eventually("the table is full", TEST_TIMEOUT, async || {
        let rows = table().await["rows"].take();
        rows.as_array().is_some_and(|it| it.len() == MAX_ROWS)
    })
    .await;
    let table = table().await;
    assert_eq!(table["id"], "vanishing");
    let caption = table["caption"].as_str().unwrap();
    assert!(
        caption.contains("25 of 27 entries are listed, the most severe first."),
        "{caption}"
    );
    let worst = json!([
        "storage.k8s.io/v1beta1 volumeattributesclasses",
        "not served by 1.37",
        "bob",
        "x",
        "list",
        "2"
    ]);
    let rows = table["rows"].as_array().unwrap();
    assert_eq!(
        rows[0].as_array().unwrap()[..6],
        worst.as_array().unwrap()[..]
    );
    assert_eq!(
        rows[1][1],
        "deprecated; use discovery.k8s.io/v1 EndpointSlice"
    );
    let page = admin_client::get(admin, "/status").await.body;
    let section = page.split_once("<section id=\"vanishing\"").unwrap().1;
    assert!(section.contains("agent-0&lt;b&gt;"), "{section}");
}

#[tokio::test]
async fn deprecated_apis_are_counted_by_the_warning_of_the_server() {
    let fixture = fixture().await;
    let alice = fixture.user("alice");
    for path in [
        ENDPOINTS,
        "/apis/example.com/v1alpha1/widgets",
        "/apis/example.com/v1/widgets",
        "/apis/networking.k8s.io/v1beta1/ipaddresses",
    ] {
        let response = fixture.get(&alice, path, &[("user-agent", "x")]).await;
        assert!(response.header("warning").is_some(), "{path}");
    }
    let expected = [
        "alice x list endpoints deprecated 1",
        "alice x list ipaddresses removed 1",
        "alice x list widgets deprecated 1",
    ];
    assert_eq!(fixture.calls().await, expected);
    let report = fixture.report().await;
    let endpoints = report["calls"].as_array().unwrap().iter();
    let endpoints = endpoints
        .clone()
        .find(|it| it["resource"] == "endpoints")
        .unwrap();
    assert_eq!(
        endpoints["replacement"],
        "discovery.k8s.io/v1 EndpointSlice"
    );
    assert_eq!(endpoints["unavailableIn"], Value::Null);
}

#[tokio::test]
async fn a_call_that_another_bridge_has_counted_is_not_counted_again() {
    let fixture = fixture().await;
    let peer = fixture.pki.peer();
    let bridge = ("via", "1.1 proxy, 2 skewbridge-00000000000000aa");
    let user = ("x-remote-user", "alice");
    let hop = ("x-kubernetes-peer-proxied", "true");
    // (agent, client, headers)
    let from_bridge = [user, hop, bridge];
    let from_server = [user, hop];
    let from_balancer = [user, bridge];
    for (agent, headers) in [
        ("from-a-bridge", &from_bridge[..]),
        ("from-a-kube-apiserver", &from_server),
        ("from-a-bridge-in-front", &from_balancer),
        ("from-a-proxy", &[user]),
    ] {
        let headers = [headers, &[("user-agent", agent)]].concat();
        let response = fixture.get(&peer, CLASSES, &headers).await;
        assert_eq!(response.status, 200, "{agent}");
    }
    // Other clients cannot avoid being counted.
    let forged = [hop, bridge, ("user-agent", "a-forger")];
    fixture.get(&fixture.user("bob"), CLASSES, &forged).await;
    let expected = [
        "alice from-a-kube-apiserver list volumeattributesclasses removed 1",
        "alice from-a-proxy list volumeattributesclasses removed 1",
        "bob a-forger list volumeattributesclasses removed 1",
    ];
    assert_eq!(fixture.calls().await, expected);
}

#[tokio::test]
async fn the_user_of_a_token_is_the_one_that_kube_apiserver_reports() {
    let fixture = fixture().await;
    let client = fixture.pki.client();
    for (token, agent) in [
        (ROBOT_TOKEN, "a"),
        (ROBOT_TOKEN, "a"),
        (ROBOT_TOKEN, "b"),
        (UNREVIEWED_TOKEN, "c"),
        ("wrong", "d"),
    ] {
        let header = format!("Bearer {token}");
        let headers = [("authorization", &*header), ("user-agent", agent)];
        fixture.get(&client, CLASSES, &headers).await;
    }
    let expected = [
        "(bearer token) c list volumeattributesclasses removed 1".to_owned(),
        format!("{ROBOT} a list volumeattributesclasses removed 2"),
        format!("{ROBOT} b list volumeattributesclasses removed 1"),
    ];
    eventually("the tokens are reviewed", TEST_TIMEOUT, async || {
        fixture.calls().await == expected
    })
    .await;
    let reviews = fixture.server.requests();
    let reviews = reviews.iter().filter(|it| it.path() == TOKEN_REVIEWS);
    assert_eq!(reviews.count(), 2, "one review for each token");
    let report = fixture.report().await.to_string();
    assert!(!report.contains("t0ken"), "{report}");
}

#[tokio::test]
async fn anonymous_callers_are_counted_together_and_rejected_credentials_are_not_counted() {
    let fixture = fixture().await;
    let client = fixture.pki.client();
    for agent in ["a", "b", "c"] {
        fixture
            .get(&client, CLASSES, &[("user-agent", agent)])
            .await;
        let wrong = [("user-agent", agent), ("authorization", "Bearer wrong")];
        let response = fixture.get(&client, CLASSES, &wrong).await;
        assert_eq!(response.status, 401);
    }
    let expected = ["system:anonymous (any) list volumeattributesclasses removed 3"];
    assert_eq!(fixture.calls().await, expected);
}

#[tokio::test]
async fn an_impersonated_user_is_named_unless_the_request_is_forbidden() {
    let fixture = fixture().await;
    let alice = fixture.user("alice");
    let carol = ("impersonate-user", "carol");
    let agent = ("user-agent", "x");
    fixture.get(&alice, CLASSES, &[agent, carol]).await;
    fixture
        .get(&alice, CLASSES, &[agent, carol, ("x-forbidden", "yes")])
        .await;
    let expected = [
        "alice as carol x list volumeattributesclasses removed 1",
        "alice x list volumeattributesclasses removed 1",
    ];
    assert_eq!(fixture.calls().await, expected);
}

#[tokio::test]
async fn a_path_that_no_server_serves_is_not_counted() {
    let fixture = fixture().await;
    let path = "/apis/flowcontrol.apiserver.k8s.io/v1beta2/flowschemas";
    let response = fixture.get(&fixture.user("alice"), path, &[]).await;
    assert_eq!(response.status, 404);
    assert_eq!(fixture.calls().await, Vec::<String>::new());
}

#[tokio::test]
async fn text_of_clients_is_clipped_and_printable() {
    let fixture = fixture().await;
    let agent = "é".repeat(400);
    let headers = [("user-agent", agent.as_str())];
    fixture.get(&fixture.user("alice"), CLASSES, &headers).await;
    let expected = format!(
        "alice {}… list volumeattributesclasses removed 1",
        "é".repeat(256)
    );
    assert_eq!(fixture.calls().await, [expected]);
}

#[tokio::test]
async fn the_watched_apis_follow_the_version_and_the_flag() {
    let fixture = fixture_with(|config| {
        config.admin.watch_target = Some("1.99".parse().unwrap());
    })
    .await;
    let alice = fixture.user("alice");
    fixture.get(&alice, CLASSES, &[]).await;
    let report = fixture.report().await;
    assert_eq!(
        (&report["target"], &report["targetKnown"]),
        (&json!("1.99"), &json!(false))
    );
    assert_eq!(fixture.calls().await, Vec::<String>::new());

    let fixture = self::fixture().await;
    "v1.34.4".clone_into(&mut fixture.version.lock().unwrap());
    fixture.wait_for(|report| report["target"] == "1.35").await;
    let alice = fixture.user("alice");
    fixture.get(&alice, CLASSES, &[]).await;
    assert_eq!(fixture.calls().await, Vec::<String>::new());
    "v1.36.0".clone_into(&mut fixture.version.lock().unwrap());
    fixture.wait_for(|report| report["target"] == "1.37").await;
    fixture.get(&alice, CLASSES, &[]).await;
    assert_eq!(fixture.calls().await.len(), 1);
}
