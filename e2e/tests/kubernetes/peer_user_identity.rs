//! The server that responds authenticates the user, although the request came through two bridges.

use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, VersionSpecificApi, Via,
    old_and_new_versions,
};
use skewbridge_testkit::{TlsClient, eventually};

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, wait_until_served};

/// For the audit log to be written.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(20);

/// A client identity.
struct TestUser {
    name: &'static str,
    client: TlsClient,
    headers: Vec<(&'static str, String)>,
    /// The user and the impersonated user that the server writes to its audit log.
    user: Value,
    role: Value,
    /// The status of the response: only the admin is authorized.
    expected_error: &'static str,
}

#[tokio::test]
async fn the_server_that_responds_authenticates_the_user() {
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
    for user in test_users(&plane).await {
        for protocol in [Protocol::H1, Protocol::H2] {
            send_and_check_audit(&plane, &user, protocol).await;
        }
    }
}

async fn test_users(plane: &ControlPlane) -> Vec<TestUser> {
    let robot = "system:serviceaccount:default:robot";
    let bearer = |token: &str| ("Authorization", format!("Bearer {token}"));
    let by_certificate = json!({"username": "alice",
        "groups": ["dev", "ops", "system:authenticated"]});
    let admin = json!({"username": "admin",
        "groups": ["system:masters", "system:authenticated"]});
    let impersonate = |user: &str| ("Impersonate-User", user.to_owned());
    vec![
        TestUser {
            name: "alice",
            client: plane.client("alice"),
            headers: vec![],
            user: by_certificate.clone(),
            role: Value::Null,
            expected_error: r#"User "alice" cannot get resource"#,
        },
        TestUser {
            name: "a-forger",
            client: plane.client("alice"),
            headers: vec![
                ("X-Remote-User", "admin".to_owned()),
                ("X-Remote-Group", "system:masters".to_owned()),
            ],
            user: by_certificate.clone(),
            role: Value::Null,
            expected_error: r#"User "alice" cannot get resource"#,
        },
        TestUser {
            name: "bob",
            client: plane.anonymous_client(),
            headers: vec![bearer("bob-token")],
            user: json!({"username": "bob", "uid": "1001",
                "groups": ["qa", "readers", "system:authenticated"]}),
            role: Value::Null,
            expected_error: r#"User "bob" cannot get resource"#,
        },
        TestUser {
            name: "robot",
            client: plane.anonymous_client(),
            headers: vec![bearer(&token(plane).await)],
            user: json!({"username": robot, "groups": ["system:serviceaccounts",
                "system:serviceaccounts:default", "system:authenticated"]}),
            role: Value::Null,
            expected_error: r#"User "system:serviceaccount:default:robot" cannot get resource"#,
        },
        TestUser {
            name: "anonymous",
            client: plane.anonymous_client(),
            headers: vec![],
            user: json!({"username": "system:anonymous", "groups": ["system:unauthenticated"]}),
            role: Value::Null,
            expected_error: r#"User "system:anonymous" cannot get resource"#,
        },
        TestUser {
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
            expected_error: r#"User "carol" cannot get resource"#,
        },
        TestUser {
            name: "a-pretender",
            client: plane.client("alice"),
            headers: vec![impersonate("admin")],
            user: by_certificate,
            role: Value::Null,
            // From 1.36 on more precisely than "impersonate".
            expected_error: r#"User "alice" cannot impersonate"#,
        },
    ]
}

/// The token of a service account that is created for it.
async fn token(plane: &ControlPlane) -> String {
    let path = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "robot"}});
    let token_request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": []}});
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H2);
    let mut response = Value::Null;
    for (path, object) in [
        (path.to_owned(), account),
        (format!("{path}/robot/token"), token_request),
    ] {
        let request = Request::new("POST", &path).body("application/json", &object.to_string());
        let created = client.send(&request).await.unwrap();
        assert_eq!(created.status, 201, "{}", created.text());
        response = serde_json::from_slice(&created.body).unwrap();
    }
    response["status"]["token"].as_str().unwrap().to_owned()
}

async fn send_and_check_audit(plane: &ControlPlane, user: &TestUser, protocol: Protocol) {
    let name = user.name;
    let path = format!(
        "{}/requested-by-{name}-{protocol:?}",
        VersionSpecificApi::POLICIES.path
    );
    let path = path.to_lowercase();
    let mut request = Request::get(&path);
    for (name, value) in &user.headers {
        request = request.header(name, value);
    }
    let address = plane.servers[OLD].bridge;
    let mut client = HttpClient::new(user.client.clone(), address, protocol);
    let response = client.send(&request).await.unwrap();
    assert_eq!(response.status, 403, "{name}: {}", response.text());
    let status: Value = serde_json::from_slice(&response.body).unwrap();
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(user.expected_error), "{name}: {message}");

    let mut entry = None;
    eventually(&format!("{path} in the log"), AUDIT_TIMEOUT, async || {
        entry = audit_event(plane, NEW, &path);
        entry.is_some()
    })
    .await;
    let entry = entry.unwrap();
    assert_eq!(
        expected_fields(&entry["user"], &user.user),
        user.user,
        "{entry}"
    );
    let role = &entry["impersonatedUser"];
    assert_eq!(expected_fields(role, &user.role), user.role, "{entry}");
    // The request to the local server only shows whether it accepts anonymous requests.
    if name != "anonymous" {
        assert_eq!(audit_event(plane, OLD, &path), None, "{name}");
    }
}

/// The expected fields of an audited user: a server adds how it authenticated the user.
fn expected_fields(user: &Value, expected: &Value) -> Value {
    let Some(expected) = expected.as_object() else {
        return user.clone();
    };
    let mut expected_fields = user.clone();
    if let Some(expected_fields) = expected_fields.as_object_mut() {
        expected_fields.retain(|field, _| expected.contains_key(field));
    }
    expected_fields
}

/// The audit event of a response.
fn audit_event(plane: &ControlPlane, server: usize, path: &str) -> Option<Value> {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
    let mut entries = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    entries.find(|entry| entry["requestURI"] == path && entry["stage"] == "ResponseComplete")
}
