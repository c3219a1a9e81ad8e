//! A bridge with the secure admin port, and a kube-apiserver that answers reviews.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Config;
use skewbridge_testkit::{
    ApiServer, H1Client, Options, RecordedRequest, Reply, Response, TEST_TIMEOUT, TlsClient,
    eventually,
};
use tokio::time::timeout;

use crate::support::admin_client;
use crate::support::pki::{self, PkiFixture};
use crate::support::self_test_responses;

pub(crate) const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

pub(crate) const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// Its user may read `/metrics`.
pub(crate) const SCRAPER: &str = "scraper";

/// Its user may read nothing.
pub(crate) const VISITOR: &str = "visitor";

/// How a kube-apiserver answers reviews. Tokens are known also where no user has a right.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reviews {
    Decide,
    /// No user has a right.
    Deny,
    Refuse,
}

pub(crate) struct SecureAdminFixture {
    pub(crate) pki: PkiFixture,
    pub(crate) bridge: Handle,
    pub(crate) server: ReviewServer,
}

pub(crate) struct ReviewServer {
    pub(crate) api: ApiServer,
    pub(crate) reviews: Arc<Mutex<Reviews>>,
    pub(crate) ready: Arc<AtomicBool>,
}

pub(crate) async fn fixture() -> SecureAdminFixture {
    fixture_with(|_| {}).await
}

pub(crate) async fn fixture_with(change: impl FnOnce(&mut Config)) -> SecureAdminFixture {
    let pki = PkiFixture::new();
    let server = server(&pki).await;
    let mut config = pki.config(server.api.addr());
    config.admin.secure_address = Some(([127, 0, 0, 1], 0).into());
    change(&mut config);
    let bridge = pki::start(&config);
    let ready = async || {
        admin_client::get(bridge.admin_address(), "/readyz")
            .await
            .status
            == 200
    };
    eventually("the bridge is ready", TEST_TIMEOUT, ready).await;
    SecureAdminFixture {
        pki,
        bridge,
        server,
    }
}

/// A kube-apiserver that answers reviews.
pub(crate) async fn server(pki: &PkiFixture) -> ReviewServer {
    let reviews = Arc::new(Mutex::new(Reviews::Decide));
    let ready = Arc::new(AtomicBool::new(true));
    let (decides, is_ready) = (reviews.clone(), ready.clone());
    let api = ApiServer::start(
        Options::new(pki.upstream.clone()),
        move |recorded| match recorded.path() {
            "/readyz" if !is_ready.load(Ordering::Relaxed) => Reply::new(500).body("no"),
            "/readyz" => Reply::new(200).body("ok"),
            "/version" => Reply::json("{}"),
            TOKEN_REVIEWS | ACCESS_REVIEWS if *decides.lock().unwrap() == Reviews::Refuse => {
                Reply::new(403).body("not for you")
            }
            TOKEN_REVIEWS => token_review(&recorded),
            ACCESS_REVIEWS if *decides.lock().unwrap() == Reviews::Deny => {
                let status = json!({"status": {"allowed": false}});
                Reply::json(status.to_string()).status(201)
            }
            ACCESS_REVIEWS => access_review(&recorded),
            _ => {
                self_test_responses::passing_response(&recorded).unwrap_or_else(|| Reply::new(404))
            }
        },
    )
    .await;
    ReviewServer {
        api,
        reviews,
        ready,
    }
}

pub(crate) fn body(recorded: &RecordedRequest) -> Value {
    serde_json::from_slice(&recorded.body).unwrap()
}

pub(crate) fn token_review(recorded: &RecordedRequest) -> Reply {
    let review = body(recorded);
    let name = match review["spec"]["token"].as_str() {
        Some("good") => SCRAPER,
        Some("poor") => VISITOR,
        _ => return Reply::json(json!({"status": {"error": "unknown"}}).to_string()).status(201),
    };
    let user = json!({"username": name, "groups": ["system:authenticated"]});
    let status = json!({"status": {"authenticated": true, "user": user}});
    Reply::json(status.to_string()).status(201)
}

pub(crate) fn access_review(recorded: &RecordedRequest) -> Reply {
    let spec = body(recorded)["spec"].clone();
    let attributes = json!({"path": "/metrics", "verb": "get"});
    let allowed = spec["user"] == SCRAPER && spec["nonResourceAttributes"] == attributes
        || spec["groups"].to_string().contains("system:masters");
    let status = json!({"status": {"allowed": allowed, "reason": "by the rules"}});
    Reply::json(status.to_string()).status(201)
}

impl ReviewServer {
    pub(crate) fn count(&self, path: &str) -> usize {
        let recorded = self.api.requests();
        recorded.iter().filter(|it| it.path() == path).count()
    }

    pub(crate) fn answer(&self, reviews: Reviews) {
        *self.reviews.lock().unwrap() = reviews;
    }
}

impl SecureAdminFixture {
    pub(crate) fn address(&self) -> SocketAddr {
        self.bridge.admin_secure_address().unwrap()
    }

    pub(crate) async fn open(&self, client: &TlsClient) -> H1Client {
        let opening = client.http1(self.address());
        timeout(TEST_TIMEOUT, opening).await.unwrap().unwrap()
    }

    /// A GET with a bearer token, on its own connection.
    pub(crate) async fn get(&self, path: &str, token: &str) -> Response {
        let mut client = self.open(&self.pki.client()).await;
        get(&mut client, path, &bearer(token)).await
    }

    pub(crate) async fn metric(&self, name: &str, label: (&str, &str)) -> Option<f64> {
        let scrape = admin_client::scrape(self.bridge.admin_address()).await;
        scrape.value(name, &[label])
    }

    pub(crate) async fn decisions(&self, decision: &str) -> Option<f64> {
        let name = "skewbridge_admin_authorizations_total";
        self.metric(name, ("decision", decision)).await
    }
}

pub(crate) async fn get(client: &mut H1Client, path: &str, headers: &str) -> Response {
    let request = format!("GET {path} HTTP/1.1\r\nHost: k\r\n{headers}\r\n");
    client.send(request).await.unwrap();
    client.read_response().await.unwrap()
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

pub(crate) fn message(response: &Response) -> String {
    let status: Value = serde_json::from_str(&response.text()).unwrap();
    assert_eq!(status["kind"], "Status");
    assert_eq!(status["code"], response.status);
    status["message"].as_str().unwrap().to_owned()
}
