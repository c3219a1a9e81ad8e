//! The identity of the command at the cluster.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};
use skewbridge_testkit::{PATIENCE, Reply, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::run_fixture::{BADGE, RunFixture, is_gone, output, stderr, token};

#[tokio::test]
async fn requests_go_through_the_proxy_of_the_plugin_and_nothing_is_left() {
    let fixture = RunFixture::new().await;
    let ran = output(fixture.asking(&fixture.plugin(), "get")).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(fixture.read("answer"), "/prefix/asked none 4711");
    assert!(fixture.read("server").starts_with("https://127.0.0.1:"));
    let plugin = fixture.read("execs");
    assert_eq!(plugin.lines().count(), 1);
    eventually("the end of all that was made", PATIENCE, async || {
        fixture.left() == 0 && is_gone(plugin.trim())
    })
    .await;
}

#[tokio::test]
async fn the_reference_plugin_needs_no_more_than_its_name() {
    let fixture = RunFixture::new().await;
    let headers = fixture
        .dir
        .write("headers", format!("{BADGE}: from-a-file\n"));
    std::fs::set_permissions(&headers, std::fs::Permissions::from_mode(0o600)).unwrap();
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": env!("CARGO_BIN_EXE_skewbridge"),
        "args": ["agent", "--signer=headers", "--headers-file", headers],
        "interactiveMode": "Never",
        "provideClusterInfo": true,
    }});
    let ran = output(fixture.asking(&user, "get")).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(fixture.read("answer"), "/prefix/asked none from-a-file");
    eventually("the end of all that was made", PATIENCE, async || {
        fixture.left() == 0
    })
    .await;
}

#[tokio::test]
async fn a_plugin_without_aws_credentials_is_explained_before_the_command_starts() {
    let fixture = RunFixture::new().await;
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": env!("CARGO_BIN_EXE_skewbridge"),
        "args": ["agent", "--signer=sigv4", "--sigv4-region=eu-west-1"],
        "env": [
            {"name": "AWS_ACCESS_KEY_ID", "value": ""},
            {"name": "AWS_PROFILE", "value": ""},
            {"name": "AWS_SHARED_CREDENTIALS_FILE", "value": "/nonexistent/credentials"},
            {"name": "AWS_CONFIG_FILE", "value": "/nonexistent/config"},
        ],
        "interactiveMode": "Never",
        "provideClusterInfo": true,
    }});
    let ran = output(fixture.script(&user, "echo ran")).await;
    let printed = stderr(&ran);
    assert_eq!(ran.status.code(), Some(125), "{printed}");
    assert!(printed.contains("no AWS credentials"), "{printed}");
    assert!(
        printed.contains("/nonexistent/credentials (no such file)"),
        "{printed}"
    );
    assert!(ran.stdout.is_empty(), "{printed}");
}

#[tokio::test]
async fn plain_credentials_are_sent_to_the_cluster_and_hidden_from_the_command() {
    let fixture = RunFixture::new().await;
    let ran = output(fixture.asking(&token(), "get")).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(
        fixture.read("answer"),
        "/prefix/asked Bearer secret-token none"
    );
    let script = "cat \"$KUBECONFIG\"; env; cat /proc/$PPID/cmdline";
    let ran = output(fixture.script(&token(), script)).await;
    let seen = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(seen.contains("\"namespace\":\"shop\"") && seen.contains("SKEWBRIDGE_CONTEXT=c"));
    assert!(!seen.contains("secret-token"), "{seen}");
}

/// A user whose plugin returns `token-1`, `token-2` and so on.
fn tokens(fixture: &RunFixture, status: &str) -> Value {
    let script = format!(
        "cd {}; echo x >> count; n=$(wc -l < count | tr -d ' '); \
         echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\
         \"status\":{{{status}\"token\":\"token-'$n'\"}}}}'",
        fixture.dir.path().display()
    );
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", script],
    }})
}

#[tokio::test]
async fn an_expired_credential_costs_one_exec_per_request() {
    let fixture = RunFixture::new().await;
    let user = tokens(
        &fixture,
        "\"expirationTimestamp\":\"2001-01-01T00:00:00Z\",",
    );
    let ran = output(fixture.asking(&user, "get")).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(fixture.read("answer"), "/prefix/asked Bearer token-1 none");
    assert_eq!(fixture.read("count").lines().count(), 1);
    let ran = output(fixture.asking(&user, "first ")).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(fixture.read("answer"), "/prefix/asked Bearer token-3 none");
    assert_eq!(fixture.read("count").lines().count(), 3);
}

#[tokio::test]
async fn after_401_the_plugin_runs_again_unless_the_command_sent_its_own_token() {
    const WORKLOAD: &str = "first /api/v1/namespaces/shop/services/web/proxy/login";
    let rows = [
        ("first ", "/prefix/asked Bearer token-2", 2),
        ("first Bearer its-own", "/prefix/asked Bearer token-1", 1),
        // Nor if a workload answered 401.
        (WORKLOAD, "/prefix/asked Bearer token-1", 1),
    ];
    for (asks, answer, execs) in rows {
        let fixture = RunFixture::with(move |seen| {
            let token = seen.header("authorization").unwrap_or("none");
            let is_refused = match asks {
                "first " => token == "Bearer token-1",
                WORKLOAD => seen.path().ends_with("/proxy/login"),
                _ => token == "Bearer its-own",
            };
            if is_refused {
                return Reply::new(401);
            }
            Reply::json(format!("{} {token}", seen.target))
        })
        .await;
        let user = tokens(&fixture, "");
        let ran = output(fixture.asking(&user, asks)).await;
        assert!(ran.status.success(), "{}", stderr(&ran));
        assert_eq!(
            (&*fixture.read("first"), &*fixture.read("answer")),
            ("401", answer)
        );
        assert_eq!(fixture.read("count").lines().count(), execs);
    }
}

#[tokio::test]
async fn streams_and_their_data_are_forwarded() {
    let (reply, stream) = Reply::upgrade("SPDY/3.1");
    let reply = std::sync::Mutex::new(Some(reply));
    let fixture = RunFixture::with(move |seen| match seen.path() {
        "/prefix/upgrade" => reply.lock().unwrap().take().unwrap(),
        _ => Reply::json("done"),
    })
    .await;
    let far = tokio::spawn(async move {
        let mut far = stream.connection().await;
        let mut heard = [0; 4];
        far.read_exact(&mut heard).await.unwrap();
        far.write_all(b"pong").await.unwrap();
        far.flush().await.unwrap();
        far
    });
    let ran = output(fixture.asking(&fixture.plugin(), "upgrade")).await;
    assert!(ran.status.success(), "{}", stderr(&ran));
    assert_eq!(fixture.read("answer"), "done");
    far.await.unwrap();
}
