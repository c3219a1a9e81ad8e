//! Changed files are loaded at run time without disturbing open connections.

use skewbridge_gateway::config::KeyPairFiles;
use skewbridge_testkit::{Ca, TEST_TIMEOUT, Validity, eventually};
use tokio::task::{JoinSet, LocalSet};

use crate::support::admin_client::scrape;
use crate::support::reloaded_files::{ReloadFixture, get};

const SERVING_FLAG: &str = "--tls-cert-file";
const SERVER_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

#[tokio::test]
async fn a_new_serving_certificate_is_used_and_open_connections_continue() {
    let mut fixture = ReloadFixture::new().await;
    let client = fixture.pki.client();
    let mut h1 = client.http1(fixture.bridge.address()).await.unwrap();
    assert_eq!(get(&mut h1, "").await, 200);
    let mut watch = fixture.watch(&client).await;

    let new = fixture.pki.serving_ca.server(&SERVER_NAMES);
    fixture.write_pair("serving", &new);
    fixture.wait_until_served(&new).await;

    watch.assert_continues("second").await;
    assert_eq!(watch.h2.get("/api").await.unwrap().status, 200);
    assert_eq!(get(&mut h1, "").await, 200);
    watch.assert_ends().await;
}

#[tokio::test]
async fn a_volume_swapped_by_the_kubelet_is_reloaded_as_a_whole() {
    let mut volume = None;
    let fixture = ReloadFixture::with(|pki, config| {
        let leaf = pki.serving_ca.server(&SERVER_NAMES);
        let files = [("tls.crt", &*leaf.cert_pem), ("tls.key", &*leaf.key_pem)];
        let mounted = volume.insert(pki.dir.volume("certs", &files));
        config.serving.key_pair = KeyPairFiles {
            cert: mounted.file("tls.crt"),
            key: mounted.file("tls.key"),
        };
    })
    .await;
    let mut volume = volume.unwrap();
    for _ in 0..2 {
        let leaf = fixture.pki.serving_ca.server(&SERVER_NAMES);
        volume.swap(&[("tls.crt", &*leaf.cert_pem), ("tls.key", &*leaf.key_pem)]);
        fixture.wait_until_served(&leaf).await;
    }
    assert_eq!(fixture.reloads(SERVING_FLAG, "ok").await, Some(2.0));
    // Never an old file together with a new one.
    assert_eq!(fixture.reloads(SERVING_FLAG, "failed").await, Some(0.0));
}

/// One of the two files of a key pair and its new contents; `None` deletes the file.
type FileChange = (&'static str, Option<String>);

/// Makes a file invalid, then valid again.
async fn break_and_repair((name, contents): FileChange) {
    let fixture = ReloadFixture::new().await;
    let before = fixture.served_certificate().await;
    match &contents {
        Some(contents) => drop(fixture.pki.dir.write(name, contents)),
        None => std::fs::remove_file(fixture.pki.path().join(name)).unwrap(),
    }
    fixture.wait_until_failed(SERVING_FLAG).await;
    assert_eq!(
        fixture.served_certificate().await,
        before,
        "{name} {contents:?}"
    );
    assert_eq!(fixture.code(&fixture.pki.client(), "").await, 200);
    assert_eq!(fixture.reloads(SERVING_FLAG, "ok").await, Some(0.0));

    let good = fixture.pki.serving_ca.server(&SERVER_NAMES);
    fixture.write_pair("serving", &good);
    fixture.wait_until_served(&good).await;
    assert_eq!(fixture.code(&fixture.pki.client(), "").await, 200);
}

#[tokio::test]
async fn an_invalid_serving_file_keeps_the_old_certificate_until_a_valid_one_is_written() {
    let other = Ca::new("other").server(&SERVER_NAMES);
    let (local, mut rounds) = (LocalSet::new(), JoinSet::new());
    for spoiled in [
        ("serving.crt", Some("garbage".to_owned())),
        ("serving.crt", Some(other.cert_pem[..200].to_owned())),
        ("serving.crt", Some(other.key_pem.clone())),
        ("serving.crt", None),
        ("serving.key", Some(String::new())),
        ("serving.key", Some(other.key_pem)),
        ("serving.key", None),
    ] {
        rounds.spawn_local_on(break_and_repair(spoiled), &local);
    }
    // Propagates the first panic.
    local.run_until(rounds.join_all()).await;
}

#[tokio::test]
async fn an_invalid_file_of_any_flag_keeps_the_old_one() {
    let fixture = ReloadFixture::new().await;
    let alice = fixture.pki.user("alice", &[]);
    let (peer, asserted) = (fixture.pki.peer(), "X-Remote-User: bob\r\n");
    let files = [
        ("--client-ca-file", "client-ca.crt"),
        ("--requestheader-client-ca-file", "front-proxy-ca.crt"),
        ("--upstream-ca-file", "upstream-ca.crt"),
        ("--proxy-client-cert-file", "front-proxy.crt"),
    ];
    for (_, file) in files {
        fixture.pki.dir.write(file, "garbage");
    }
    for (flag, _) in files {
        fixture.wait_until_failed(flag).await;
    }
    assert_eq!(fixture.code(&alice, "").await, 200);
    assert_eq!(fixture.code(&peer, asserted).await, 200);
}

#[tokio::test]
async fn a_replaced_client_ca_no_longer_authenticates_even_on_open_connections() {
    let mut fixture = ReloadFixture::new().await;
    let alice = fixture.pki.user("alice", &[]);
    let address = fixture.bridge.address();
    let mut h1 = alice.http1(address).await.unwrap();
    let h2 = alice.http2(address).await.unwrap();
    assert_eq!(get(&mut h1, "").await, 200);
    assert_eq!(h2.get("/api").await.unwrap().status, 200);
    let mut watch = fixture.watch(&alice).await;

    let new_ca = Ca::new("client-ca");
    let bob = fixture.pki.client().identity(&new_ca.client("bob", &[]));
    assert_eq!(fixture.code(&bob, "").await, 401);
    let both = fixture.pki.client_ca.pem() + &new_ca.pem();
    fixture.pki.dir.write("client-ca.crt", both);
    fixture.wait_for_code(&bob, "", 200).await;
    assert_eq!(get(&mut h1, "").await, 200);

    fixture.pki.dir.write("client-ca.crt", new_ca.pem());
    fixture.wait_for_code(&alice, "", 401).await;
    assert_eq!(get(&mut h1, "").await, 401);
    assert_eq!(h2.get("/api").await.unwrap().status, 401);
    assert_eq!(get(&mut h1, "Authorization: Bearer t\r\n").await, 200);
    assert_eq!(fixture.code(&bob, "").await, 200);
    watch
        .assert_continues("a watch that was authorized before")
        .await;
}

#[tokio::test]
async fn a_replaced_requestheader_ca_no_longer_authenticates_even_on_open_connections() {
    let fixture = ReloadFixture::new().await;
    let asserted = "X-Remote-User: bob\r\n";
    let peer = fixture.pki.peer();
    let mut h1 = peer.http1(fixture.bridge.address()).await.unwrap();
    assert_eq!(get(&mut h1, asserted).await, 200);

    let new_ca = Ca::new("front-proxy-ca");
    let new = new_ca.client("front-proxy-client", &[]);
    let new = fixture.pki.client().identity(&new);
    assert_eq!(fixture.code(&new, asserted).await, 401);
    fixture.pki.dir.write("front-proxy-ca.crt", new_ca.pem());
    fixture.wait_for_code(&new, asserted, 200).await;
    assert_eq!(get(&mut h1, asserted).await, 401);
    assert_eq!(fixture.code(&peer, asserted).await, 401);
}

#[tokio::test]
async fn a_new_front_proxy_certificate_is_presented_and_a_watch_with_the_old_one_continues() {
    let mut fixture = ReloadFixture::new().await;
    let alice = fixture.pki.user("alice", &[]);
    let mut over_h2 = fixture.watch(&alice).await;
    let mut over_h1 = alice.http1(fixture.bridge.address()).await.unwrap();
    over_h1
        .send("GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: k\r\n\r\n")
        .await
        .unwrap();
    let h1_sender = fixture.watches.recv().await.unwrap();
    assert_eq!(over_h1.read_head().await.unwrap().status, 200);
    let mut keeps = alice.http1(fixture.bridge.address()).await.unwrap();
    assert_eq!(get(&mut keeps, "").await, 200);
    let before = fixture.last_certificate_name_at_upstream();
    assert_eq!(before.as_deref(), Some("front-proxy-client"));

    let new = fixture.pki.front_proxy_ca.client("renewed", &[]);
    fixture.write_pair("front-proxy", &new);
    eventually(
        "the renewed certificate is presented",
        TEST_TIMEOUT,
        async || {
            assert_eq!(get(&mut keeps, "").await, 200);
            fixture.last_certificate_name_at_upstream().as_deref() == Some("renewed")
        },
    )
    .await;
    assert_eq!(over_h2.h2.get("/api").await.unwrap().status, 200);
    assert_eq!(
        fixture.last_certificate_name_at_upstream().as_deref(),
        Some("renewed")
    );

    over_h2.assert_continues("second").await;
    for event in ["first", "second"] {
        h1_sender.send(event).await.unwrap();
        assert_eq!(over_h1.read_chunk().await.unwrap().unwrap(), event);
    }
    over_h2.assert_ends().await;
    h1_sender.finish().await.unwrap();
    assert!(over_h1.read_chunk().await.unwrap().is_none());
    // The connections that stay: one with the renewed certificate in either HTTP version, and that
    // of the probe.
    eventually("the old connections are closed", TEST_TIMEOUT, async || {
        fixture.upstream.live_connections() <= 3
    })
    .await;
}

#[tokio::test]
async fn a_new_upstream_ca_applies_to_the_next_connection() {
    let right = std::cell::OnceCell::new();
    let fixture = ReloadFixture::with(|pki, _| {
        right.set(pki.upstream_ca.pem()).unwrap();
        pki.dir.write("upstream-ca.crt", Ca::new("wrong").pem());
    })
    .await;
    let client = fixture.pki.client();
    assert_eq!(fixture.code(&client, "").await, 503);
    let right = right.into_inner().unwrap();
    fixture.pki.dir.write("upstream-ca.crt", right);
    fixture.wait_for_code(&client, "", 200).await;
    fixture
        .pki
        .dir
        .write("upstream-ca.crt", Ca::new("upstream-ca").pem());
    fixture.wait_for_code(&client, "", 503).await;
}

#[tokio::test]
async fn the_exported_expiry_is_that_of_the_new_certificate() {
    /// 1 January of these years as Unix time.
    const Y4096: Option<f64> = Some(67_090_118_400.0);
    const Y2001: Option<f64> = Some(978_307_200.0);
    let fixture = ReloadFixture::new().await;
    let expiry = async |flag: &str| {
        let scrape = scrape(fixture.bridge.admin_address()).await;
        let name = "skewbridge_certificate_expiration_timestamp_seconds";
        scrape.value(name, &[("flag", flag)])
    };
    for flag in [
        SERVING_FLAG,
        "--client-ca-file",
        "--requestheader-client-ca-file",
        "--upstream-ca-file",
        "--proxy-client-cert-file",
    ] {
        assert_eq!(expiry(flag).await, Y4096, "{flag}");
    }
    let ca = &fixture.pki.front_proxy_ca;
    let rounds = [
        (
            SERVING_FLAG,
            "serving",
            fixture
                .pki
                .serving_ca
                .server_valid(&SERVER_NAMES, Validity::Expired),
        ),
        (
            "--proxy-client-cert-file",
            "front-proxy",
            ca.client_valid("front-proxy-client", &[], Validity::Expired),
        ),
    ];
    for (flag, name, leaf) in rounds {
        fixture.write_pair(name, &leaf);
        eventually(flag, TEST_TIMEOUT, async || expiry(flag).await == Y2001).await;
        assert_eq!(fixture.reloads(flag, "ok").await, Some(1.0));
    }
}
