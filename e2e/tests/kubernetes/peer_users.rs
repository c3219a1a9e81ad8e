//! Who asks is known to the server that answers, though the request came by way
//! of two bridges.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, VersionSpecificApi, Via,
    old_and_new_versions,
};
use skewbridge_testkit::{TlsClient, eventually};

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, wait_until_served};

/// For an audit log to be written.
const WRITTEN: Duration = Duration::from_secs(20);

/// Somebody who asks.
struct Asker {
    name: &'static str,
    client: TlsClient,
    headers: Vec<(&'static str, String)>,
    /// What the server says of them in its audit log: who they are, and in
    /// whose role.
    user: Value,
    role: Value,
    /// What they are told: nobody but the admin may do anything.
    told: &'static str,
}

#[tokio::test]
async fn the_server_that_answers_knows_who_asks() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let servers = versions.map(|version| ServerSpec::of(&version).peer());
    let plane = ControlPlane::start(&servers).await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    for asker in askers(&plane).await {
        for protocol in [Protocol::H1, Protocol::H2] {
            asks(&plane, &asker, protocol).await;
        }
    }
}

async fn askers(plane: &ControlPlane) -> Vec<Asker> {
    let robot = "system:serviceaccount:default:robot";
    let bearer = |token: &str| ("Authorization", format!("Bearer {token}"));
    let by_certificate = json!({"username": "alice",
        "groups": ["dev", "ops", "system:authenticated"]});
    let admin = json!({"username": "admin",
        "groups": ["system:masters", "system:authenticated"]});
    let impersonate = |user: &str| ("Impersonate-User", user.to_owned());
    vec![
        Asker {
            name: "alice",
            client: plane.client("alice"),
            headers: vec![],
            user: by_certificate.clone(),
            role: Value::Null,
            told: r#"User "alice" cannot get resource"#,
        },
        Asker {
            name: "a-forger",
            client: plane.client("alice"),
            headers: vec![
                ("X-Remote-User", "admin".to_owned()),
                ("X-Remote-Group", "system:masters".to_owned()),
            ],
            user: by_certificate.clone(),
            role: Value::Null,
            told: r#"User "alice" cannot get resource"#,
        },
        Asker {
            name: "bob",
            client: plane.anonymous_client(),
            headers: vec![bearer("bob-token")],
            user: json!({"username": "bob", "uid": "1001",
                "groups": ["qa", "readers", "system:authenticated"]}),
            role: Value::Null,
            told: r#"User "bob" cannot get resource"#,
        },
        Asker {
            name: "robot",
            client: plane.anonymous_client(),
            headers: vec![bearer(&token(plane).await)],
            user: json!({"username": robot, "groups": ["system:serviceaccounts",
                "system:serviceaccounts:default", "system:authenticated"]}),
            role: Value::Null,
            told: r#"User "system:serviceaccount:default:robot" cannot get resource"#,
        },
        Asker {
            name: "nobody",
            client: plane.anonymous_client(),
            headers: vec![],
            user: json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]}),
            role: Value::Null,
            told: r#"User "system:anonymous" cannot get resource"#,
        },
        Asker {
            name: "carol",
            client: plane.client("admin"),
            headers: vec![
                impersonate("carol"),
                ("Impersonate-Group", "auditors".to_owned()),
                ("Impersonate-Extra-Reason", "audit".to_owned()),
            ],
            user: admin,
            role: json!({"username": "carol", "groups": ["auditors", "system:authenticated"],
                "extra": {"reason": ["audit"]}}),
            told: r#"User "carol" cannot get resource"#,
        },
        Asker {
            name: "a-pretender",
            client: plane.client("alice"),
            headers: vec![impersonate("admin")],
            user: by_certificate,
            role: Value::Null,
            // From 1.36 on more precisely than "impersonate".
            told: r#"User "alice" cannot impersonate"#,
        },
    ]
}

/// Of a service account that is made for it.
async fn token(plane: &ControlPlane) -> String {
    let path = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "robot"}});
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": []}});
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H2);
    let mut given = Value::Null;
    for (path, object) in [
        (path.to_owned(), account),
        (format!("{path}/robot/token"), asked),
    ] {
        let request = Request::new("POST", &path).body("application/json", &object.to_string());
        let created = client.send(&request).await.unwrap();
        assert_eq!(created.status, 201, "{}", created.text());
        given = serde_json::from_slice(&created.body).unwrap();
    }
    given["status"]["token"].as_str().unwrap().to_owned()
}

async fn asks(plane: &ControlPlane, asker: &Asker, protocol: Protocol) {
    let name = asker.name;
    let path = format!(
        "{}/asked-for-by-{name}-{protocol:?}",
        VersionSpecificApi::POLICIES.path
    );
    let path = path.to_lowercase();
    let mut request = Request::get(&path);
    for (name, value) in &asker.headers {
        request = request.header(name, value);
    }
    let address = plane.servers[OLD].bridge;
    let mut client = HttpClient::new(asker.client.clone(), address, protocol);
    let response = client.send(&request).await.unwrap();
    assert_eq!(response.status, 403, "{name}: {}", response.text());
    let status: Value = serde_json::from_slice(&response.body).unwrap();
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(asker.told), "{name}: {message}");

    let mut entry = None;
    eventually(&format!("{path} in the log"), WRITTEN, async || {
        entry = audited(plane, NEW, &path);
        entry.is_some()
    })
    .await;
    let entry = entry.unwrap();
    assert_eq!(said(&entry["user"], &asker.user), asker.user, "{entry}");
    let role = &entry["impersonatedUser"];
    assert_eq!(said(role, &asker.role), asker.role, "{entry}");
    // Only whether it lets in anybody without a name is asked of the other.
    if name != "nobody" {
        assert_eq!(audited(plane, OLD, &path), None, "{name}");
    }
}

/// Of what a log says of somebody, what is expected: a server adds how it
/// recognised them.
fn said(user: &Value, expected: &Value) -> Value {
    let Some(expected) = expected.as_object() else {
        return user.clone();
    };
    let mut said = user.clone();
    if let Some(said) = said.as_object_mut() {
        said.retain(|field, _| expected.contains_key(field));
    }
    said
}

/// What a server has noted of an answer.
fn audited(plane: &ControlPlane, server: usize, path: &str) -> Option<Value> {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
    let mut entries = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    entries.find(|entry| entry["requestURI"] == path && entry["stage"] == "ResponseComplete")
}
