//! Who may read discovery: through a bridge everybody gets what the server beside it
//! gives him, also right after somebody else was given everything.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use skewbridge_e2e::{
    AGGREGATED, ControlPlane, HttpClient, Protocol, Request, ResponseSnapshot, ServerSpec, Via,
};
use skewbridge_testkit::{TlsClient, Validity, eventually};

/// From the last readiness to when everybody knows everybody.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a bridge goes by what its server has said (10 s), and a server by what
/// it has read of roles.
const REMEMBERED: Duration = Duration::from_secs(20);

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:discovery";

/// kube-apiserver takes a minute for a difference between clocks.
const LONG_AGO: u64 = 3_600;

/// Somebody who asks.
struct Reader {
    name: &'static str,
    tls: TlsClient,
    headers: Vec<(&'static str, String)>,
    expected: u16,
}

#[tokio::test]
async fn everybody_gets_what_the_server_gives_him() {
    let servers = ["1.34.4", "1.36.4"].map(|version| ServerSpec::of(version).peer());
    let plane = ControlPlane::start(&servers).await;
    eventually("both show the same", PEER_DISCOVERY_TIMEOUT, async || {
        let kinds = plane.kinds(0, Via::Bridge).await;
        kinds == plane.kinds(1, Via::Bridge).await && kinds != plane.kinds(0, Via::Server).await
    })
    .await;
    let readers = readers(&plane).await;
    allow(
        &plane,
        json!([group("dev"), group("system:serviceaccounts")]),
    )
    .await;
    for server in 0..servers.len() {
        for path in ["/apis", "/api"] {
            each_is_told_the_same(&plane, server, path, &readers).await;
        }
    }

    // A right that is taken away is forgotten.
    allow(&plane, json!([])).await;
    let alice = &readers[1];
    for server in 0..servers.len() {
        let mut client = alice.client(&plane, server, Via::Bridge);
        let request = alice.request("/apis");
        eventually("alice may not read any more", REMEMBERED, async || {
            client.send(&request).await.unwrap().status == 403
        })
        .await;
    }
}

async fn readers(plane: &ControlPlane) -> Vec<Reader> {
    let bearer = |token: &str| vec![("Authorization", format!("Bearer {token}"))];
    let uid = account(plane).await;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap().as_secs();
    let token = |until: u64| plane.service_account_token("reader", &uid, until - LONG_AGO, until);
    let expired = plane
        .ca()
        .client_valid("alice", &["dev"], Validity::Expired);
    let impersonated = vec![("Impersonate-User", "bob".to_owned())];
    let reader = |name, tls, headers, expected| Reader {
        name,
        tls,
        headers,
        expected,
    };
    vec![
        reader("admin", plane.client("admin"), vec![], 200),
        reader("alice", plane.client("alice"), vec![], 200),
        reader(
            "an account",
            plane.anonymous_client(),
            bearer(&token(now + LONG_AGO)),
            200,
        ),
        reader("anonymous", plane.anonymous_client(), vec![], 403),
        reader("bob", plane.anonymous_client(), bearer("bob-token"), 403),
        reader("admin as bob", plane.client("admin"), impersonated, 403),
        reader(
            "an unknown token",
            plane.anonymous_client(),
            bearer("nobody's"),
            401,
        ),
        reader(
            "an expired token",
            plane.anonymous_client(),
            bearer(&token(now - LONG_AGO)),
            401,
        ),
        reader(
            "an expired certificate",
            TlsClient::new(plane.ca()).identity(&expired),
            vec![],
            401,
        ),
    ]
}

impl Reader {
    fn client(&self, plane: &ControlPlane, server: usize, via: Via) -> HttpClient {
        let address = plane.servers[server].at(via);
        HttpClient::new(self.tls.clone(), address, Protocol::H2)
    }

    fn request(&self, path: &str) -> Request {
        // With this the server gives every answer the same name.
        let request = Request::get(path).header("Audit-Id", "one");
        let request = request.header("Accept", AGGREGATED);
        let headers = self.headers.iter();
        headers.fold(request, |request, (name, value)| {
            request.header(name, value)
        })
    }
}

/// Whoever may read goes before each who may not.
async fn each_is_told_the_same(
    plane: &ControlPlane,
    server: usize,
    path: &str,
    readers: &[Reader],
) {
    let mut allowed = readers[1].client(plane, server, Via::Bridge);
    // The bridge answers her by itself: servers give their own answers an id.
    eventually("alice is remembered", REMEMBERED, async || {
        let answer = allowed.send(&readers[1].request(path)).await.unwrap();
        answer.status == 200 && answer.header("audit-id").is_none()
    })
    .await;
    for reader in readers {
        let request = reader.request(path);
        let mut straight = reader.client(plane, server, Via::Server);
        let straight = straight.send(&request).await.unwrap();
        let name = reader.name;
        assert_eq!(
            straight.status,
            reader.expected,
            "{name}: {}",
            straight.text()
        );
        let before = allowed.send(&readers[1].request(path)).await.unwrap();
        assert_eq!(before.status, 200);
        let mut bridged = reader.client(plane, server, Via::Bridge);
        for round in 0..2 {
            if round > 0 && reader.expected != 200 {
                // Behind an answer to an anonymous or refused caller comes GOAWAY.
                bridged = reader.client(plane, server, Via::Bridge);
            }
            let bridged = bridged.send(&request).await.unwrap();
            if reader.expected == 200 {
                assert_eq!(bridged.status, 200, "{name}");
                assert!(bridged.body == before.body, "{name}: another document");
                continue;
            }
            if bridged.header("audit-id").is_none() {
                // The bridge itself judges certificates.
                assert_eq!(bridged.status, straight.status, "{name}");
                let read = |body| serde_json::from_slice::<Value>(body).unwrap();
                assert_eq!(read(&bridged.body), read(&straight.body), "{name}");
                continue;
            }
            let (straight, bridged) = (
                ResponseSnapshot::of(Ok(straight.clone())),
                ResponseSnapshot::of(Ok(bridged)),
            );
            let difference = straight.difference(&bridged);
            assert_eq!(difference, None, "{server} {path} {name}");
        }
    }
}

fn group(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name})
}

/// Only these may read discovery; waits until all servers know.
async fn allow(plane: &ControlPlane, subjects: Value) {
    let patch = json!({"subjects": subjects}).to_string();
    let request = Request::new("PATCH", BINDING).body("application/merge-patch+json", &patch);
    let mut client = plane.http_client(0, Via::Server, Protocol::H2);
    let changed = client.send(&request).await.unwrap();
    assert_eq!(changed.status, 200, "{}", changed.text());
    let alice = if subjects.as_array().unwrap().is_empty() {
        403
    } else {
        200
    };
    for server in 0..plane.servers.len() {
        for (user, expected) in [("alice", alice), ("carol", 403)] {
            let leaf = plane
                .ca()
                .client(user, if user == "alice" { &["dev"] } else { &[] });
            let tls = TlsClient::new(plane.ca()).identity(&leaf);
            let address = plane.servers[server].at(Via::Server);
            let mut client = HttpClient::new(tls, address, Protocol::H2);
            eventually("the server knows the new rights", REMEMBERED, async || {
                client.send(&Request::get("/apis")).await.unwrap().status == expected
            })
            .await;
        }
    }
}

/// The uid of a service account.
async fn account(plane: &ControlPlane) -> String {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "reader"}});
    let path = "/api/v1/namespaces/default/serviceaccounts";
    let request = Request::new("POST", path).body("application/json", &account.to_string());
    let mut client = plane.http_client(0, Via::Server, Protocol::H2);
    let made = client.send(&request).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text());
    let made: Value = serde_json::from_slice(&made.body).unwrap();
    made["metadata"]["uid"].as_str().unwrap().to_owned()
}
