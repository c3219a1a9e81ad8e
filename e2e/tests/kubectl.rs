//! Through a bridge everything is as it is straight from the server.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use skewbridge_e2e::{Output, Plane, Server, User, Via};

#[tokio::test]
async fn a_mixed_plane_answers_the_same_through_its_bridges() {
    judge(&[Server::of("1.34.4"), Server::of("1.36.4")]).await;
}

#[tokio::test]
async fn an_old_server_answers_the_same_through_its_bridge() {
    judge(&[Server::of("1.28.15")]).await;
}

async fn judge(servers: &[Server]) {
    let plane = Plane::start(servers).await;
    for server in 0..servers.len() {
        identities_are_the_same(&plane, server).await;
        objects_live_and_die(&plane, server).await;
        a_forged_identity_is_nobodys(&plane, server).await;
    }
}

async fn both(plane: &Plane, server: usize, user: User, words: &[&str]) -> Output {
    let straight = plane.kubectl(server, Via::Server, user, words).await;
    let bridged = plane.kubectl(server, Via::Bridge, user, words).await;
    assert_eq!(bridged, straight, "{words:?} as {user:?}");
    bridged
}

/// Certificates, tokens and impersonation are who they were.
async fn identities_are_the_same(plane: &Plane, server: usize) {
    for (user, name, group) in [
        (User::Admin, "admin", "system:masters"),
        (User::Alice, "alice", "ops"),
        (User::Bob, "bob", "readers"),
        (User::AdminAs("carol"), "carol", "system:authenticated"),
    ] {
        let whoami = async |via| {
            let words = ["auth", "whoami", "-o", "json"];
            let output = plane.kubectl(server, via, user, &words).await;
            assert_eq!(output.code, Some(0), "{}", output.stderr);
            let answer: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
            // The rest is the time of asking.
            answer["status"]["userInfo"].clone()
        };
        let info = whoami(Via::Bridge).await;
        assert_eq!(info, whoami(Via::Server).await);
        assert_eq!(info["username"], name);
        let groups = info["groups"].as_array().unwrap();
        assert!(groups.iter().any(|it| it == group), "{groups:?}");
        both(plane, server, user, &["auth", "can-i", "--list"]).await;
        let denied = both(plane, server, user, &["get", "secrets", "-A"]).await;
        assert_eq!(denied.code == Some(0), user == User::Admin, "{denied:?}");
    }
}

/// Create, apply, patch, watch and delete, each by one way and seen by the
/// other.
async fn objects_live_and_die(plane: &Plane, server: usize) {
    let admin = async |via, words: &[&str]| {
        let output = plane.kubectl(server, via, User::Admin, words).await;
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        output.stdout
    };
    let namespace = format!("e2e-{server}");
    let n = namespace.as_str();
    admin(Via::Bridge, &["create", "namespace", n]).await;
    let create = ["-n", n, "create", "configmap", "c", "--from-literal=a=1"];
    admin(Via::Bridge, &create).await;
    let get = ["-n", n, "get", "configmap", "c", "-o", "yaml"];
    assert_eq!(
        admin(Via::Bridge, &get).await,
        admin(Via::Server, &get).await
    );
    let patch = r#"{"data":{"b":"2"}}"#;
    admin(
        Via::Bridge,
        &["-n", n, "patch", "configmap", "c", "-p", patch],
    )
    .await;
    let data = ["-n", n, "get", "configmap", "c", "-o", "jsonpath={.data.b}"];
    assert_eq!(admin(Via::Server, &data).await, "2");
    let table = ["get", "namespaces", "-o", "name"];
    assert_eq!(
        admin(Via::Bridge, &table).await,
        admin(Via::Server, &table).await
    );
    admin(Via::Bridge, &["-n", n, "delete", "configmap", "c"]).await;
    let gone = both(plane, server, User::Admin, &get).await;
    assert_eq!(gone.code, Some(1));
    assert!(gone.stderr.contains("NotFound"), "{}", gone.stderr);
}

/// An ordinary client says that it is somebody else.
async fn a_forged_identity_is_nobodys(plane: &Plane, server: usize) {
    let running = &plane.servers[server];
    let mut client = plane.client("alice").http1(running.bridge).await.unwrap();
    client
        .send(
            "GET /api/v1/secrets HTTP/1.1\r\nHost: localhost\r\n\
             X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n\r\n",
        )
        .await
        .unwrap();
    let response = client.read_response().await.unwrap();
    assert_eq!(response.status, 403, "{}", response.text());
    assert!(
        response.text().contains(r#"User \"alice\""#),
        "{}",
        response.text()
    );
    let audit = std::fs::read_to_string(&running.audit_log).unwrap();
    let line = audit
        .lines()
        .rfind(|line| line.contains(r#""requestURI":"/api/v1/secrets""#))
        .expect("the request in the audit log");
    assert!(line.contains(r#""username":"alice""#), "{line}");
    assert!(
        line.contains(r#"["dev","ops","system:authenticated"]"#),
        "{line}"
    );
}
