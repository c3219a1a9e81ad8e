//! `skewbridge skew`, run as its users run it, against fake servers over loopback.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod fields;
#[path = "../support/skew_fixture.rs"]
mod skew_fixture;

use std::net::SocketAddr;

use serde_json::{Value, json};
use skewbridge_testkit::{ApiServer, Ca, Options, RecordedRequest, Reply, ScriptedServer};

use skew_fixture::{
    BRIDGE, SkewFixture, V2, bridge, bridge_before, group, new, old, plain, server_entry,
};

const OK: Option<i32> = Some(0);

const FAILED: Option<i32> = Some(1);

const SKEW: Option<i32> = Some(2);

const USAGE: Option<i32> = Some(64);

#[tokio::test]
async fn plain_servers_are_compared_by_their_contexts() {
    let fixture = SkewFixture::new();
    let first = fixture.serve(plain("v1.34.4", &old())).await;
    let second = fixture.serve(plain("v1.36.4", &new())).await;
    let third = fixture.serve(plain("v1.36.4", &new())).await;
    let config = fixture.kubeconfig(&[
        ("old", first.addr()),
        ("new", second.addr()),
        ("newer", third.addr()),
    ]);
    let config = format!("--kubeconfig={}", config.display());
    let ran = fixture
        .skew(&[&config, "--context=old", "--context=new"])
        .await;
    assert_eq!(ran.code, SKEW, "{ran:?}");
    assert_eq!(ran.stderr, "");
    let expected = "\
SERVER   VERSION   RESOURCES
old      v1.34.4   3
new      v1.36.4   3

RESOURCE                    SERVED BY
apps/v1
  policies                  only new
x.io/v1alpha1 (all of it)   only old
  things

A client pinned to old would miss 1 resource:
  apps/v1: policies

A client pinned to new would miss 1 resource:
  x.io/v1alpha1, all of it: things
";
    assert_eq!(ran.stdout, expected);

    let all = [
        &config,
        "--context=old",
        "--context=new",
        "--context=newer",
        "-o=json",
    ];
    let ran = fixture.skew(&all).await;
    assert_eq!(ran.code, SKEW);
    let json = ran.json();
    assert_eq!(json["skew"], true);
    assert_eq!(json["complete"], true);
    assert_eq!(
        json["servers"][0]["onlyHere"],
        json!(["x.io/v1alpha1 things"])
    );
    assert_eq!(json["differences"][0]["on"], json!(["new", "newer"]));

    let ran = fixture
        .skew(&[&config, "--context=new", "--context=newer", "-o=wide"])
        .await;
    assert_eq!(ran.code, OK, "{ran:?}");
    assert!(
        ran.stdout
            .ends_with("No skew: all 2 servers serve the same.\n")
    );
}

#[tokio::test]
async fn the_servers_of_one_context_are_compared_by_their_urls() {
    let fixture = SkewFixture::new();
    let first = fixture.serve(plain("v1.34.4", &old())).await;
    let second = fixture.serve(plain("v1.36.4", &new())).await;
    // The kubeconfig in the home directory, and a context at neither of them.
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let config = fixture.kubeconfig(&[("balancer", nowhere)]);
    std::fs::create_dir(fixture.dir.path().join(".kube")).unwrap();
    let text = std::fs::read_to_string(config).unwrap();
    fixture
        .dir
        .write(".kube/config", text.replace("ca.crt", "../ca.crt"));
    let servers = [first.addr(), second.addr()].map(|it| format!("--server=https://{it}"));
    let ran = fixture
        .skew(&[&servers[0], &servers[1], "-o", "json"])
        .await;
    assert_eq!(ran.code, SKEW, "{ran:?}");
    let json = ran.json();
    assert_eq!(json["servers"][0]["name"], first.addr().to_string());
    assert_eq!(json["servers"][1]["version"], "v1.36.4");

    // A password in a URL is refused, and not printed.
    let secret = servers[0].replace("https://", "https://me:secret-token@");
    let ran = fixture.skew(&[&secret, &servers[1], "-o=wide"]).await;
    assert_eq!(ran.code, FAILED, "{ran:?}");
    assert!(
        ran.stderr.contains("must not contain a user or a password"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn a_bridge_reports_all_servers_of_its_cluster() {
    let fixture = SkewFixture::new();
    let servers = json!([
        server_entry("apiserver-a", &old()),
        server_entry("apiserver-b", &new())
    ]);
    let server = fixture.serve(bridge(servers)).await;
    let config = fixture.kubeconfig(&[("prod", server.addr())]);
    let config = format!("--kubeconfig={}", config.display());
    let ran = fixture.skew(&[&config]).await;
    assert_eq!(ran.code, SKEW, "{ran:?}");
    assert!(ran.stdout.contains("things\n"), "{}", ran.stdout);
    assert!(
        ran.stdout
            .contains("pinned to apiserver-b would miss 1 resource")
    );
    let ran = fixture.skew(&[&config, "-o=json"]).await;
    assert_eq!(ran.json()["servers"][1]["lastSync"], "2026-11-15T12:00:00Z");

    let servers = json!([
        server_entry("apiserver-a", &new()),
        server_entry("apiserver-b", &new())
    ]);
    let server = fixture.serve(bridge(servers)).await;
    let config = fixture.kubeconfig(&[("prod", server.addr())]);
    let config = format!("--kubeconfig={}", config.display());
    let ran = fixture.skew(&[&config]).await;
    assert_eq!(ran.code, OK, "{ran:?}");
}

#[tokio::test]
async fn clients_of_the_bridges_of_one_cluster_miss_nothing() {
    let fixture = SkewFixture::new();
    let list = json!({"servers": [server_entry("apiserver-a", &old()), server_entry("apiserver-b", &new())]});
    let first = bridge_before("v1.34.4", &old(), list.clone());
    let first = fixture.serve(first).await;
    let second = fixture.serve(bridge_before("v1.36.4", &new(), list)).await;
    let direct = fixture.serve(plain("v1.36.4", &new())).await;
    let config = fixture.kubeconfig(&[
        ("old", first.addr()),
        ("new", second.addr()),
        ("direct", direct.addr()),
    ]);
    let config = format!("--kubeconfig={}", config.display());
    let both = [&config, "--context=old", "--context=new"];
    let ran = fixture.skew(&both).await;
    assert_eq!(ran.code, SKEW, "{ran:?}");
    let expected = "\
SERVER   VERSION   RESOURCES
old      v1.34.4   3
new      v1.36.4   3

RESOURCE                    SERVED BY
apps/v1
  policies                  only new
x.io/v1alpha1 (all of it)   only old
  things

A client pinned to old would miss nothing: its bridge serves what any of 2 servers serves.

A client pinned to new would miss nothing: its bridge serves what any of 2 servers serves.
";
    assert_eq!(ran.stdout, expected);
    let json = fixture
        .skew(&[&both[..], &["-o=json"]].concat())
        .await
        .json();
    assert_eq!(json["skew"], true);
    for server in [0, 1] {
        let server = &json["servers"][server];
        assert_eq!(server["misses"], json!([]));
        let expected = json!({"mode": "peering", "servers": 2, "unreachable": 0});
        assert_eq!(server["bridge"], expected);
        assert!(!server["onlyHere"].as_array().unwrap().is_empty());
    }

    // Without the bridge, nothing changes.
    let ran = fixture
        .skew(&[&config, "--context=old", "--context=direct"])
        .await;
    let missed = "pinned to direct would miss 1 resource:\n  x.io/v1alpha1, all of it: things\n";
    assert!(ran.stdout.ends_with(missed), "{}", ran.stdout);
    assert!(
        ran.stdout
            .contains("pinned to old would miss nothing: its bridge")
    );
}

#[tokio::test]
async fn apis_that_bridges_of_two_clusters_cannot_reach_are_reported_as_missing() {
    let fixture = SkewFixture::new();
    let mut away = server_entry("apiserver-c", &json!([group("y.io", "v1", &["gone"])]));
    away["reachable"] = json!(false);
    let one = json!({"servers": [server_entry("apiserver-a", &old()), away]});
    let other = json!({"servers": [server_entry("apiserver-b", &new())]});
    let first = fixture.serve(bridge_before("v1.34.4", &old(), one)).await;
    let second = fixture.serve(bridge_before("v1.36.4", &new(), other)).await;
    let config = fixture.kubeconfig(&[("blue", first.addr()), ("green", second.addr())]);
    let config = format!("--kubeconfig={}", config.display());
    let ran = fixture
        .skew(&[&config, "--context=blue", "--context=green"])
        .await;
    for expected in [
        "pinned to blue would miss 1 resource:\n  apps/v1: policies\n",
        "pinned to green would miss 2 resources:\n",
        "\nThe bridge blue cannot reach 1 of 2 servers.\n",
    ] {
        assert!(ran.stdout.contains(expected), "{expected}: {}", ran.stdout);
    }
}

#[tokio::test]
async fn a_bridge_that_runs_local_only_is_recognised() {
    let fixture = SkewFixture::new();
    let list = json!({"servers": [], "localOnly": "the gate is off"});
    let first = bridge_before("v1.34.4", &old(), list);
    let first = fixture.serve(first).await;
    let second = fixture.serve(plain("v1.36.4", &new())).await;
    let config = fixture.kubeconfig(&[("lone", first.addr()), ("new", second.addr())]);
    let config = format!("--kubeconfig={}", config.display());
    let ran = fixture.skew(&[&config]).await;
    assert_eq!(ran.code, FAILED, "{ran:?}");
    let expected = format!(
        "skewbridge: lone: the bridge {} runs local-only (the gate is off), so there is no",
        first.addr()
    );
    assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);

    let both = [&config, "--context=lone", "--context=new"];
    let ran = fixture.skew(&both).await;
    assert_eq!(ran.code, SKEW, "{ran:?}");
    assert!(ran.stdout.contains("pinned to lone would miss 1 resource:"));
    let note = "\nThe bridge lone runs local-only (the gate is off).\n\
                Its clients reach its local server only.\n";
    assert!(ran.stdout.ends_with(note), "{}", ran.stdout);
    let json = fixture
        .skew(&[&both[..], &["-o=json"]].concat())
        .await
        .json();
    let expected = json!({"mode": "local-only", "reason": "the gate is off"});
    assert_eq!(json["servers"][0]["bridge"], expected);
    assert!(json["servers"][1].get("bridge").is_none());
}

#[tokio::test]
async fn a_server_that_the_bridge_cannot_reach_makes_the_result_unknown() {
    let fixture = SkewFixture::new();
    let mut unreachable = server_entry("apiserver-b", &old());
    unreachable["reachable"] = json!(false);
    unreachable["problem"] = json!("connection refused");
    let silent = json!({"identity": "apiserver-c", "local": false, "reachable": true});
    for (other, expected, verdict) in [
        (
            unreachable,
            "apiserver-b: connection refused",
            "\nNo skew, as far as is known.\n",
        ),
        (
            silent,
            "apiserver-c: the bridge has not fetched its discovery yet",
            "\nNothing to compare: 1 of 2 is known.\n",
        ),
    ] {
        let server = fixture
            .serve(bridge(json!([server_entry("apiserver-a", &old()), other])))
            .await;
        let config = fixture.kubeconfig(&[("prod", server.addr())]);
        let config = format!("--kubeconfig={}", config.display());
        let ran = fixture.skew(&[&config]).await;
        assert_eq!(ran.code, FAILED, "{ran:?}");
        assert_eq!(ran.stderr, format!("skewbridge: {expected}\n"));
        assert!(ran.stdout.ends_with(verdict), "{}", ran.stdout);
    }
}

#[tokio::test]
async fn a_server_without_a_bridge_is_reported_with_advice() {
    let fixture = SkewFixture::new();
    let server = fixture.serve(plain("v1.34.4", &old())).await;
    let config = fixture.kubeconfig(&[("prod", server.addr())]);
    let config = format!("--kubeconfig={}", config.display());
    let ran = fixture.skew(&[&config]).await;
    assert_eq!(ran.code, FAILED, "{ran:?}");
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("has no bridge"), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("use several --context"),
        "{}",
        ran.stderr
    );
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named_and_the_others_are_compared() {
    let fixture = SkewFixture::new();
    let first = fixture.serve(plain("v1.34.4", &old())).await;
    let second = fixture.serve(plain("v1.36.4", &new())).await;
    let dead = SocketAddr::from(([127, 0, 0, 1], 1));
    let config = fixture.kubeconfig(&[
        ("old", first.addr()),
        ("dead", dead),
        ("new", second.addr()),
    ]);
    let config = format!("--kubeconfig={}", config.display());
    let all = [&config, "--context=old", "--context=dead", "--context=new"];
    let ran = fixture.skew(&all).await;
    assert_eq!(ran.code, FAILED, "{ran:?}");
    assert_eq!(
        ran.stderr,
        "skewbridge: dead: the connection to the server 127.0.0.1:1 was refused - did you specify \
         the right host or port?\n"
    );
    assert!(
        ran.stdout.contains("dead     -         ?\n"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("only new"), "{}", ran.stdout);
    let ran = fixture.skew(&[&all[..], &["-o=json"]].concat()).await;
    assert_eq!(ran.code, FAILED);
    let json = ran.json();
    assert_eq!(json["complete"], false);
    assert!(
        json["servers"][1]["problem"]
            .as_str()
            .unwrap()
            .contains("refused")
    );
}

#[tokio::test]
async fn an_old_server_is_queried_list_by_list() {
    let fixture = SkewFixture::new();
    let legacy = |seen: RecordedRequest| {
        let list = |resources: Value| {
            Reply::json(json!({"kind": "APIResourceList", "resources": resources}).to_string())
        };
        let resource = |name: &str| json!({"name": name, "namespaced": true, "kind": "X", "verbs": ["get", "list"]});
        match seen.path() {
            "/version" => Reply::json(r#"{"gitVersion":"v1.24.17"}"#),
            "/api" => Reply::json(r#"{"kind":"APIVersions","versions":["v1"]}"#),
            "/apis" => Reply::json(
                json!({"kind": "APIGroupList", "groups": [
                    {"name": "apps", "versions": [{"version": "v1"}]},
                    {"name": "elsewhere.io", "versions": [{"version": "v1"}]}]})
                .to_string(),
            ),
            "/api/v1" => list(json!([resource("pods")])),
            "/apis/apps/v1" => list(json!([resource("sets"), resource("policies")])),
            _ => Reply::new(404),
        }
    };
    let first = fixture.serve(legacy).await;
    let second = fixture.serve(plain("v1.36.4", &new())).await;
    let config = fixture.kubeconfig(&[("old", first.addr()), ("new", second.addr())]);
    let config = format!("--kubeconfig={}", config.display());
    let ran = fixture
        .skew(&[&config, "--context=old", "--context=new"])
        .await;
    assert_eq!(ran.code, OK, "{ran:?}");
    assert!(
        ran.stdout.contains("old      v1.24.17   3\n"),
        "{}",
        ran.stdout
    );
}

#[tokio::test]
async fn failures_have_kubectls_messages() {
    let fixture = SkewFixture::new();
    let refusing = |code: u16, message: &'static str| {
        move |_: RecordedRequest| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "message": message});
            Reply::json(status.to_string()).status(code)
        }
    };
    let expired = fixture.serve(refusing(401, "Unauthorized")).await;
    let forbidden = fixture
        .serve(refusing(403, "users \"me\" cannot get path\u{1b}[2J"))
        .await;
    let broken = fixture.serve(refusing(500, "it hurts")).await;
    let noise = fixture.serve(|_| Reply::new(200).body("hello")).await;
    let nonsense = fixture
        .serve(|_| Reply::new(200).header("Content-Type", BRIDGE).body("{}"))
        .await;
    let stranger = Ca::new("stranger");
    let stranger = Options::new(stranger.server(&["127.0.0.1"]));
    let stranger = ApiServer::start(stranger, |_| Reply::json("{}")).await;
    let config = fixture.kubeconfig(&[
        ("expired", expired.addr()),
        ("forbidden", forbidden.addr()),
        ("broken", broken.addr()),
        ("noise", noise.addr()),
        ("nonsense", nonsense.addr()),
        ("stranger", stranger.addr()),
    ]);
    let config = format!("--kubeconfig={}", config.display());
    let rows = [
        (
            "expired",
            "expired: you must be logged in to the server (Unauthorized)",
        ),
        (
            "forbidden",
            "forbidden: you are not allowed to read /apis: users \"me\"",
        ),
        (
            "broken",
            "broken: the server answered 500 Internal Server Error to /apis: it hurts",
        ),
        ("noise", "has no bridge"),
        ("nonsense", "nonsense: /apis: expected ServerDiscoveryList"),
        ("stranger", "x509: certificate signed by unknown authority"),
        ("absent", "context \"absent\" does not exist in "),
    ];
    for (context, expected) in rows {
        let ran = fixture.skew(&[&config, "--context", context]).await;
        assert_eq!(ran.code, FAILED, "{ran:?}");
        assert!(ran.stderr.contains(expected), "{context}: {}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
    let ran = fixture.skew(&["--kubeconfig=/nonexistent/config"]).await;
    assert_eq!(ran.code, FAILED);
    assert!(ran.stderr.contains("/nonexistent/config: no such file"));
    let ran = fixture.skew(&[]).await;
    assert_eq!(ran.code, FAILED);
    assert!(ran.stderr.contains("no configuration has been provided"));
    assert!(ran.stderr.contains(".kube/config"), "{}", ran.stderr);
}

#[tokio::test]
async fn a_connection_that_ends_between_requests_is_reopened() {
    let fixture = SkewFixture::new();
    let leaf = fixture.ca.server(&["127.0.0.1"]);
    let server = ScriptedServer::start(&leaf, None, &["http/1.1"], |mut conn| async move {
        let head = conn.read_head().await;
        let (kind, body) = match head.split(' ').nth(1).unwrap() {
            "/version" => ("application/json", json!({"gitVersion": "v1.36.4"})),
            path => {
                let groups = if path == "/apis" { new() } else { json!([]) };
                let list = json!({"kind": "APIGroupDiscoveryList",
                    "apiVersion": "apidiscovery.k8s.io/v2", "items": groups});
                (V2, list)
            }
        };
        let body = body.to_string();
        // It does not announce that it will close.
        conn.write(&format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
    })
    .await;
    let config = fixture.kubeconfig(&[("a", server.addr()), ("b", server.addr())]);
    let config = format!("--kubeconfig={}", config.display());
    let ran = fixture.skew(&[&config, "--context=a", "--context=b"]).await;
    assert_eq!(ran.code, OK, "{ran:?}");
    assert!(
        ran.stdout.contains("a        v1.36.4   2\n"),
        "{}",
        ran.stdout
    );
}

#[tokio::test]
async fn an_invalid_command_line_has_its_own_exit_code() {
    let fixture = SkewFixture::new();
    let rows: [(&[&str], &str); 5] = [
        (
            &["-o=xml"],
            "--output: \"xml\" is not one of table, wide, json",
        ),
        (&["--colour"], "unexpected argument '--colour'"),
        (&["--context"], "a value is required"),
        (
            &["--context=a", "--context=a"],
            "--context: \"a\" is given twice",
        ),
        (
            &["--request-timeout=soon"],
            "--request-timeout: \"soon\" is not a duration",
        ),
    ];
    for (words, expected) in rows {
        let ran = fixture.skew(words).await;
        assert_eq!(ran.code, USAGE, "{ran:?}");
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
    let ran = fixture.skew(&["--help"]).await;
    assert_eq!(ran.code, OK);
    assert!(ran.stdout.contains("Exit code: 0 no skew, 2 skew, 1 "));
}
