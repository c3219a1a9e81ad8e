//! Authorization of discovery: through a bridge every user gets the status that the local server
//! would answer, even right after another user received the merged document.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use skewbridge_e2e::{
    AGGREGATED, ControlPlane, HttpClient, Protocol, Request, ResponseSnapshot, ServerSpec, Via,
};
use skewbridge_testkit::{TlsClient, Validity, eventually};

/// From the last readiness to the time when all servers know each other.
const PEER_DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a bridge caches authorization (10 s), and a server its roles.
const CACHE_TIMEOUT: Duration = Duration::from_secs(20);

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:discovery";

/// kube-apiserver allows a clock difference of a minute.
const EXPIRED_SECONDS: u64 = 3_600;

/// A client identity.
struct Reader {
    name: &'static str,
    tls: TlsClient,
    headers: Vec<(&'static str, String)>,
    expected: u16,
}

#[tokio::test]
async fn every_user_gets_what_the_server_responds() {
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
            responses_are_equal(&plane, server, path, &readers).await;
        }
    }

    // A revoked right is no longer cached.
    allow(&plane, json!([])).await;
    let alice = &readers[1];
    for server in 0..servers.len() {
        let mut client = alice.client(&plane, server, Via::Bridge);
        let request = alice.request("/apis");
        eventually("alice is no longer authorized", CACHE_TIMEOUT, async || {
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
    let token =
        |until: u64| plane.service_account_token("reader", &uid, until - EXPIRED_SECONDS, until);
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
            bearer(&token(now + EXPIRED_SECONDS)),
            200,
        ),
        reader("anonymous", plane.anonymous_client(), vec![], 403),
        reader("bob", plane.anonymous_client(), bearer("bob-token"), 403),
        reader("admin as bob", plane.client("admin"), impersonated, 403),
        reader(
            "an unknown token",
            plane.anonymous_client(),
            bearer("invalid"),
            401,
        ),
        reader(
            "an expired token",
            plane.anonymous_client(),
            bearer(&token(now - EXPIRED_SECONDS)),
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
        // With this ID all responses of the server have the same audit ID.
        let request = Request::get(path).header("Audit-Id", "one");
        let request = request.header("Accept", AGGREGATED);
        let headers = self.headers.iter();
        headers.fold(request, |request, (name, value)| {
            request.header(name, value)
        })
    }
}

/// An authorized user precedes each unauthorized one.
async fn responses_are_equal(plane: &ControlPlane, server: usize, path: &str, readers: &[Reader]) {
    let mut allowed = readers[1].client(plane, server, Via::Bridge);
    // The bridge itself responds to this user: servers add an audit ID to their own responses.
    eventually(
        "the permission of alice is cached",
        CACHE_TIMEOUT,
        async || {
            let answer = allowed.send(&readers[1].request(path)).await.unwrap();
            answer.status == 200 && answer.header("audit-id").is_none()
        },
    )
    .await;
    for reader in readers {
        let request = reader.request(path);
        let mut direct = reader.client(plane, server, Via::Server);
        let direct = direct.send(&request).await.unwrap();
        let name = reader.name;
        assert_eq!(direct.status, reader.expected, "{name}: {}", direct.text());
        let before = allowed.send(&readers[1].request(path)).await.unwrap();
        assert_eq!(before.status, 200);
        let mut bridged = reader.client(plane, server, Via::Bridge);
        for round in 0..2 {
            if round > 0 && reader.expected != 200 {
                // GOAWAY follows the response to an anonymous or rejected client.
                bridged = reader.client(plane, server, Via::Bridge);
            }
            let bridged = bridged.send(&request).await.unwrap();
            if reader.expected == 200 {
                assert_eq!(bridged.status, 200, "{name}");
                assert!(bridged.body == before.body, "{name}: another document");
                continue;
            }
            if bridged.header("audit-id").is_none() {
                // The bridge itself verifies certificates.
                assert_eq!(bridged.status, direct.status, "{name}");
                let read = |body| serde_json::from_slice::<Value>(body).unwrap();
                assert_eq!(read(&bridged.body), read(&direct.body), "{name}");
                continue;
            }
            let (direct, bridged) = (
                ResponseSnapshot::of(Ok(direct.clone())),
                ResponseSnapshot::of(Ok(bridged)),
            );
            let difference = direct.difference(&bridged);
            assert_eq!(difference, None, "{server} {path} {name}");
        }
    }
}

fn group(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name})
}

/// Allows only these users to read discovery; waits until all servers apply that.
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
            eventually(
                "the server applies the new rights",
                CACHE_TIMEOUT,
                async || client.send(&Request::get("/apis")).await.unwrap().status == expected,
            )
            .await;
        }
    }
}

/// The UID of a service account.
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
