//! kubectl has the same results through a bridge as directly.

use std::time::Duration;

use skewbridge_e2e::{ControlPlane, Output, RunningKubectl, ServerSpec, User, Via, control_planes};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// For a response that takes no time on an idle machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn every_control_plane_responds_the_same_through_its_bridges() {
    for versions in control_planes() {
        println!("plane {versions:?}");
        check_control_plane(&versions).await;
    }
}

async fn check_control_plane(versions: &[String]) {
    let servers = versions.iter().map(|version| ServerSpec::of(version));
    let servers: Vec<_> = servers.collect();
    let plane = ControlPlane::start(&servers).await;
    for server in 0..servers.len() {
        identities_are_the_same(&plane, server).await;
        objects_are_created_changed_and_deleted(&plane, server).await;
        responses_are_the_same(&plane, server).await;
        applied_objects_are_the_same(&plane, server).await;
        edited_objects_are_the_same(&plane, server).await;
        a_watch_receives_changes_made_through_the_other_endpoint(&plane, server).await;
        kubectl_proxy_responds_the_same(&plane, server).await;
        a_service_account_is_audited_the_same(&plane, server).await;
        a_forged_identity_is_ignored(&plane, server).await;
    }
}

async fn same_both_ways(plane: &ControlPlane, server: usize, user: User, words: &[&str]) -> Output {
    let direct = plane.kubectl(server, Via::Server, user, words).await;
    let bridged = plane.kubectl(server, Via::Bridge, user, words).await;
    assert_eq!(bridged, direct, "{words:?} as {user:?}");
    bridged
}

/// Certificates, tokens and impersonation yield the same users.
async fn identities_are_the_same(plane: &ControlPlane, server: usize) {
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
            // The rest is the time of the request.
            answer["status"]["userInfo"].clone()
        };
        let info = whoami(Via::Bridge).await;
        assert_eq!(info, whoami(Via::Server).await);
        assert_eq!(info["username"], name);
        let groups = info["groups"].as_array().unwrap();
        assert!(groups.iter().any(|it| it == group), "{groups:?}");
        same_both_ways(plane, server, user, &["auth", "can-i", "--list"]).await;
        let denied = same_both_ways(plane, server, user, &["get", "secrets", "-A"]).await;
        assert_eq!(denied.code == Some(0), user == User::Admin, "{denied:?}");
    }
}

/// Creates, applies, patches, watches and deletes objects, alternating between the server
/// and its bridge.
async fn objects_are_created_changed_and_deleted(plane: &ControlPlane, server: usize) {
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
    let missing = same_both_ways(plane, server, User::Admin, &get).await;
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("NotFound"), "{}", missing.stderr);
}

/// Requests without side effects.
async fn responses_are_the_same(plane: &ControlPlane, server: usize) {
    for user in [User::Admin, User::Bob] {
        for words in [
            &["auth", "can-i", "get", "secrets"][..],
            &["auth", "can-i", "create", "selfsubjectreviews"],
            &["get", "--raw", "/version"],
            &["get", "--raw", "/api/v1/namespaces/default"],
            &["get", "--raw", "/no/such/path"],
            &["api-versions"],
            &["explain", "configmaps.data"],
        ] {
            same_both_ways(plane, server, user, words).await;
        }
    }
    let may = ["auth", "can-i", "get", "secrets"];
    let yes = same_both_ways(plane, server, User::Admin, &may).await;
    assert_eq!((yes.code, yes.stdout.trim()), (Some(0), "yes"));
    let no = same_both_ways(plane, server, User::Bob, &may).await;
    assert_eq!((no.code, no.stdout.trim()), (Some(1), "no"));
}

/// Server-side apply: an object applied directly is unchanged through the bridge and vice
/// versa, and another manager's field is a conflict both ways.
async fn applied_objects_are_the_same(plane: &ControlPlane, server: usize) {
    let directory = skewbridge_testkit::ScratchDir::new();
    let namespace = format!("e2e-{server}");
    let n = namespace.as_str();
    let file = |value: &str| {
        let name = format!("{value}.yaml");
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: applied}}\ndata: {{a: {value}}}\n"
        );
        directory.write(&name, text).display().to_string()
    };
    let (one, two) = (file("one"), file("two"));
    let apply = async |via, file: &str, manager: &str| {
        let manager = format!("--field-manager={manager}");
        let words = ["-n", n, "apply", "--server-side", &manager, "-f", file];
        plane.kubectl(server, via, User::Admin, &words).await
    };
    let first = apply(Via::Bridge, &one, "tests").await;
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let get = [
        "-n",
        n,
        "get",
        "configmap",
        "applied",
        "-o",
        "yaml",
        "--show-managed-fields",
    ];
    let before = same_both_ways(plane, server, User::Admin, &get).await;
    assert!(
        before.stdout.contains("operation: Apply"),
        "{}",
        before.stdout
    );
    assert_eq!(apply(Via::Server, &one, "tests").await, first);
    assert_eq!(
        same_both_ways(plane, server, User::Admin, &get).await,
        before
    );
    let conflict = apply(Via::Bridge, &two, "others").await;
    assert_eq!(conflict.code, Some(1), "{}", conflict.stdout);
    assert!(
        conflict.stderr.contains("conflict with \"tests\""),
        "{}",
        conflict.stderr
    );
    assert_eq!(apply(Via::Server, &two, "others").await, conflict);
    assert_eq!(
        same_both_ways(plane, server, User::Admin, &get).await,
        before
    );
}

/// An edit with an editor is sent as a patch.
async fn edited_objects_are_the_same(plane: &ControlPlane, server: usize) {
    let namespace = format!("e2e-{server}");
    let n = namespace.as_str();
    let direct = async |words: &[&str]| {
        let words = [&["-n", n], words].concat();
        let output = plane.kubectl(server, Via::Server, User::Admin, &words);
        let output = output.await;
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        output.stdout
    };
    let mut results = Vec::new();
    for via in [Via::Server, Via::Bridge] {
        direct(&["create", "configmap", "edited", "--from-literal=a=one"]).await;
        let mut command = plane.kubectl_command(server, via, User::Admin);
        let command = command.args(["-n", n, "edit", "configmap", "edited"]);
        let edited = command.env("KUBE_EDITOR", "sed -i s/one/two/").output();
        let edited = edited.await.expect("kubectl starts");
        let data = direct(&["get", "configmap", "edited", "-o", "jsonpath={.data}"]).await;
        assert_eq!(data, r#"{"a":"two"}"#, "{via:?}: {edited:?}");
        direct(&["delete", "configmap", "edited"]).await;
        results.push(edited);
    }
    assert_eq!(results[1], results[0]);
}

async fn a_watch_receives_changes_made_through_the_other_endpoint(
    plane: &ControlPlane,
    server: usize,
) {
    let namespace = format!("e2e-{server}");
    let n = namespace.as_str();
    for (watching, other) in [(Via::Bridge, Via::Server), (Via::Server, Via::Bridge)] {
        // The existing object shows that the watch is about to start.
        let words = ["-n", n, "get", "configmaps", "-w", "-o", "name"];
        let mut command = plane.kubectl_command(server, watching, User::Admin);
        let mut watch = RunningKubectl::start(command.args(words));
        assert_eq!(watch.line().await, "configmap/applied");
        let change = async |words: &[&str]| {
            let words = [&["-n", n], words].concat();
            let output = plane.kubectl(server, other, User::Admin, &words).await;
            assert_eq!(output.code, Some(0), "{}", output.stderr);
        };
        change(&["create", "configmap", "watched"]).await;
        assert_eq!(watch.line().await, "configmap/watched");
        change(&["delete", "configmap", "watched"]).await;
        assert_eq!(watch.line().await, "configmap/watched");
        watch.end().await;
    }
}

async fn kubectl_proxy_responds_the_same(plane: &ControlPlane, server: usize) {
    let mut answers = Vec::new();
    for via in [Via::Server, Via::Bridge] {
        let mut command = plane.kubectl_command(server, via, User::Admin);
        let mut proxy = RunningKubectl::start(command.args(["proxy", "--port=0"]));
        let line = proxy.line().await;
        let address = line.strip_prefix("Starting to serve on ").expect(&line);
        let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = "GET /api/v1/namespaces/default HTTP/1.1\r\n\
                       Host: localhost\r\nConnection: close\r\n\r\n";
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read =
            tokio::time::timeout(COMMAND_TIMEOUT, connection.read_to_string(&mut answer)).await;
        read.expect("an answer in time").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        // Without the time and the audit ID of the request.
        let lines = answer.lines();
        let lines = lines.filter(|it| !it.starts_with("Date: ") && !it.starts_with("Audit-Id: "));
        answers.push(lines.map(str::to_owned).collect::<Vec<_>>());
        proxy.end().await;
    }
    assert_eq!(answers[1], answers[0]);
}

/// The server itself authenticates the token, directly and through the bridge.
async fn a_service_account_is_audited_the_same(plane: &ControlPlane, server: usize) {
    let namespace = format!("e2e-{server}");
    let n = namespace.as_str();
    let admin = async |words: &[&str]| {
        let output = plane.kubectl(server, Via::Bridge, User::Admin, words).await;
        assert_eq!(output.code, Some(0), "{words:?}: {}", output.stderr);
        output.stdout
    };
    admin(&["-n", n, "create", "serviceaccount", "robot"]).await;
    let token = admin(&["-n", n, "create", "token", "robot"]).await;
    let token = format!("--token={}", token.trim());
    let audited = async |via| {
        // With a unique query, to find it in the audit log.
        let target = format!("/api/v1/secrets?labelSelector=by%3D{via:?}");
        // Instead of Bob's token: a certificate would take precedence.
        let words = [&token, "get", "--raw", &target];
        let output = plane.kubectl(server, via, User::Bob, &words).await;
        assert_eq!(output.code, Some(1), "{}", output.stdout);
        assert!(output.stderr.contains("Forbidden"), "{}", output.stderr);
        let audit = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
        let line = audit.lines().rfind(|line| line.contains(&target));
        let line = line.expect("the request in the audit log");
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(event["impersonatedUser"], serde_json::Value::Null);
        event["user"].clone()
    };
    let user = audited(Via::Bridge).await;
    assert_eq!(user, audited(Via::Server).await);
    assert_eq!(user["username"], format!("system:serviceaccount:{n}:robot"));
    let groups = serde_json::json!([
        "system:serviceaccounts",
        format!("system:serviceaccounts:{n}"),
        "system:authenticated",
    ]);
    assert_eq!(user["groups"], groups);
}

/// A client without front-proxy rights sends identity headers.
async fn a_forged_identity_is_ignored(plane: &ControlPlane, server: usize) {
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
