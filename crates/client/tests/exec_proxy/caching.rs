//! KEP-2718, "Caching": which callers share a plugin, and for how long.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use skewbridge_client::Endpoint;
use skewbridge_client::api_server::Timeouts;
use skewbridge_client::kubeconfig::PemSource;
use skewbridge_testkit::{Ca, TEST_TIMEOUT, eventually};

use crate::fixture::{Fixture, KEY_OWNER, PluginKind, TIMEOUTS, get, is_gone};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_concurrent_clients_share_one_exec() {
    for kind in [PluginKind::Itself, PluginKind::Starter] {
        let fixture = Fixture::new(kind).await;
        let clients: Vec<_> = (0..50)
            .map(|number| {
                let target = fixture.target();
                tokio::spawn(async move {
                    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
                        .await
                        .unwrap();
                    let answer = get(&endpoint, &format!("/{number}")).await.unwrap();
                    // Kept, so that the plugin is not dropped meanwhile.
                    (endpoint, answer)
                })
            })
            .collect();
        let mut kept = Vec::new();
        for (number, client) in clients.into_iter().enumerate() {
            let (endpoint, answer) = client.await.unwrap();
            assert_eq!(answer, format!("{KEY_OWNER} /{number}"));
            kept.push(endpoint);
        }
        assert_eq!(fixture.execs(), 1, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_waiting_callers_get_the_error_of_one_failed_exec() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let count = fixture.dir.path().join("count");
    let go = fixture.dir.path().join("go");
    let script = format!(
        "echo x >> {}; while [ ! -e {} ]; do sleep 0.1; done; exit 1",
        count.display(),
        go.display()
    );
    let plugin = Fixture::script(&script);
    let (waiting, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let target = fixture.target_of("u", &plugin);
            let waiting = waiting.clone();
            tokio::spawn(async move {
                let preparing = Endpoint::prepare_with_timeouts(&target, TIMEOUTS);
                tokio::pin!(preparing);
                // Polled once, so that it waits for the plugin.
                tokio::select! {
                    biased;
                    prepared = &mut preparing => return prepared.unwrap_err().to_string(),
                    () = std::future::ready(()) => waiting.send(()).unwrap(),
                }
                preparing.await.unwrap_err().to_string()
            })
        })
        .collect();
    for _ in 0..20 {
        arrived.recv().await.unwrap();
    }
    std::fs::write(go, "").unwrap();
    for client in clients {
        let error = client.await.unwrap();
        assert!(error.contains("exit status: 1"), "{error}");
    }
    let count = std::fs::read_to_string(count).unwrap();
    assert_eq!(count.lines().count(), 1);
}

/// Even if its credential is useless for the next request.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_plugin_never_runs_twice_at_the_same_time() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t","expirationTimestamp":"2001-01-01T00:00:00Z"}}"#;
    let script = format!(
        "cd {}; mkdir running || echo twice >> count; echo x >> count; rmdir running; echo '{good}'",
        fixture.dir.path().display()
    );
    let mut target = fixture.target_of("u", &Fixture::script(&script));
    target.cluster.proxy_url = None;
    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let endpoint = endpoint.clone();
        // The cluster requires a client certificate; the plugin has run by then.
        all.spawn(async move { endpoint.connect().await.map(drop) });
    }
    all.join_all().await;
    let recorded = fixture.recorded("count");
    assert!(!recorded.contains("twice"), "{recorded}");
    assert!((1..=21).contains(&recorded.lines().count()), "{recorded}");
}

#[tokio::test]
async fn a_cancelled_caller_does_not_abort_the_call_of_others() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let (count, go) = (
        fixture.dir.path().join("count"),
        fixture.dir.path().join("go"),
    );
    let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}"#;
    let script = format!(
        "echo x >> {}; while [ ! -e {} ]; do sleep 0.1; done; echo '{good}'",
        count.display(),
        go.display()
    );
    let target = fixture.target_of("u", &Fixture::script(&script));
    let execs = || {
        let recorded = std::fs::read_to_string(&count).unwrap_or_default();
        recorded.lines().count()
    };
    let mut first = Box::pin(Endpoint::prepare_with_timeouts(&target, TIMEOUTS));
    let mut second = Box::pin(Endpoint::prepare_with_timeouts(&target, TIMEOUTS));
    // Each is polled once, in this order.
    for caller in [&mut first, &mut second] {
        tokio::select! {
            biased;
            _ = caller => panic!("the plugin ended too early"),
            () = std::future::ready(()) => {}
        }
    }
    eventually("the plugin", TEST_TIMEOUT, async || execs() == 1).await;
    drop(first);
    std::fs::write(go, "").unwrap();
    second.await.unwrap();
    assert_eq!(execs(), 1);
}

#[tokio::test]
async fn each_caller_waits_for_its_own_timeout_and_the_plugin_runs_on_for_the_others() {
    let short = Timeouts {
        plugin: Duration::from_millis(300),
        ..TIMEOUTS
    };
    for timeouts in [[TIMEOUTS, short], [short, TIMEOUTS]] {
        let fixture = Fixture::new(PluginKind::Itself).await;
        let (count, go) = (
            fixture.dir.path().join("count"),
            fixture.dir.path().join("go"),
        );
        let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}"#;
        let script = format!(
            "echo x >> {}; while [ ! -e {} ]; do sleep 0.1; done; echo '{good}'",
            count.display(),
            go.display()
        );
        let target = fixture.target_of("alice", &Fixture::script(&script));
        // In this order.
        let mut callers =
            timeouts.map(|timeouts| Box::pin(Endpoint::prepare_with_timeouts(&target, timeouts)));
        for caller in &mut callers {
            tokio::select! {
                biased;
                _ = caller => panic!("the plugin ended too early"),
                () = std::future::ready(()) => {}
            }
        }
        let [first, second] = callers;
        let (long_timeout, short_timeout) = if timeouts[0] == TIMEOUTS {
            (first, second)
        } else {
            (second, first)
        };
        let error = short_timeout.await.unwrap_err().to_string();
        let expected = "exec: sh (user \"alice\"): did not give a credential within 0.3 s; other \
                        requests still wait for it";
        assert!(error.contains(expected), "{error}");
        std::fs::write(go, "").unwrap();
        long_timeout.await.unwrap();
        assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n");
    }
}

#[tokio::test]
async fn a_plugin_without_callers_is_killed() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let pid = fixture.dir.path().join("waiting");
    let script = format!("echo $$ > {}; exec sleep 300", pid.display());
    let target = fixture.target_of("u", &Fixture::script(&script));
    let caller =
        tokio::spawn(async move { Endpoint::prepare_with_timeouts(&target, TIMEOUTS).await });
    let read = || std::fs::read_to_string(&pid).unwrap_or_default();
    eventually("the plugin", TEST_TIMEOUT, async || read().ends_with('\n')).await;
    caller.abort();
    let pid = read().trim().parse().unwrap();
    eventually("its end", TEST_TIMEOUT, async || is_gone(pid)).await;
}

#[tokio::test]
async fn the_same_cluster_and_user_share_a_proxy_and_others_do_not() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let _first = fixture.endpoint().await;
    let _same = fixture.endpoint().await;
    assert_eq!(fixture.execs(), 1);
    let other_user = fixture.target_of("another-user", &fixture.plugin());
    let _other = Endpoint::prepare_with_timeouts(&other_user, TIMEOUTS)
        .await
        .unwrap();
    assert_eq!(fixture.execs(), 2);
    let mut other_cluster = fixture.target();
    other_cluster.cluster.tls_server_name = Some("another".to_owned());
    let _other = Endpoint::prepare_with_timeouts(&other_cluster, TIMEOUTS)
        .await
        .unwrap();
    assert_eq!(fixture.execs(), 3);
}

/// A replaced file is another CA, although its path is the same.
#[tokio::test]
async fn a_rotated_ca_is_used_by_the_plugins_proxy() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let path = fixture
        .dir
        .write("cluster-ca.crt", fixture.cluster_ca.pem());
    let mut target = fixture.target();
    target.cluster.certificate_authority = Some(PemSource::File(path));
    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    let _same = endpoint.renewed().await.unwrap();
    assert_eq!(fixture.execs(), 1);
    let rotated = Ca::new("cluster").pem();
    fixture.dir.write("cluster-ca.crt", &rotated);
    let _renewed = endpoint.renewed().await.unwrap();
    assert_eq!(fixture.execs(), 2);
    let exec_info: Value = serde_json::from_str(&fixture.recorded("exec-info")).unwrap();
    let ca_data = &exec_info["spec"]["cluster"]["certificate-authority-data"];
    assert_eq!(*ca_data, *STANDARD.encode(rotated));
}

#[tokio::test]
async fn a_rotated_ca_is_used_by_direct_connections() {
    let fixture = Fixture::new(PluginKind::Itself).await;
    let path = fixture
        .dir
        .write("cluster-ca.crt", Ca::new("cluster").pem());
    let pair = fixture.cluster_ca.client("jane", &[]);
    let document = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"clientCertificateData": pair.cert_pem, "clientKeyData": pair.key_pem},
    });
    let document = fixture.dir.write("document", document.to_string());
    let script = format!("cat {}", document.display());
    let mut target = fixture.target_of("u", &Fixture::script(&script));
    target.cluster.proxy_url = None;
    target.cluster.certificate_authority = Some(PemSource::File(path));
    let endpoint = Endpoint::prepare_with_timeouts(&target, TIMEOUTS)
        .await
        .unwrap();
    let error = get(&endpoint, "/x").await.unwrap_err().to_string();
    assert!(error.contains("unknown authority"), "{error}");
    fixture
        .dir
        .write("cluster-ca.crt", fixture.cluster_ca.pem());
    let renewed = endpoint.renewed().await.unwrap();
    assert_eq!(get(&renewed, "/x").await.unwrap(), "jane /x");
}

#[tokio::test]
async fn a_proxy_that_the_plugin_finds_again_keeps_running() {
    let mut fixture = Fixture::new(PluginKind::Finder).await;
    fixture.extra = json!({"expirationTimestamp": "2001-01-01T00:00:00Z"});
    let endpoint = fixture.endpoint().await;
    let proxy = fixture.proxy();
    // With the credential from the start.
    get(&endpoint, "/").await.unwrap();
    for path in ["/one", "/two", "/three"] {
        let answer = get(&endpoint, path).await.unwrap();
        assert_eq!(answer, format!("{KEY_OWNER} {path}"));
        // The previous processes have been dropped when the last one has ended.
        let last = fixture
            .recorded("execs")
            .lines()
            .last()
            .unwrap()
            .parse()
            .unwrap();
        eventually("its end", TEST_TIMEOUT, async || is_gone(last)).await;
    }
    assert_eq!(fixture.execs(), 4);
    assert!(!is_gone(proxy) && fixture.proxy() == proxy);
    drop(endpoint);
    eventually("the end of the proxy", TEST_TIMEOUT, async || {
        is_gone(proxy)
    })
    .await;
}

/// A credential that had expired when it was issued is used once, as in client-go, and costs
/// one exec.
#[tokio::test]
async fn an_expired_credential_is_requested_again_and_a_valid_one_is_kept() {
    let rows = [
        ("2001-01-01T00:00:00Z", [1, 2, 3]),
        ("2999-01-01T00:00:00Z", [1, 1, 1]),
    ];
    for (until, execs) in rows {
        let mut fixture = Fixture::new(PluginKind::Itself).await;
        fixture.extra = json!({"expirationTimestamp": until});
        let endpoint = fixture.endpoint().await;
        assert_eq!(fixture.execs(), 1);
        for (path, execs) in ["/one", "/two", "/three"].into_iter().zip(execs) {
            let answer = get(&endpoint, path).await.unwrap();
            assert_eq!(answer, format!("{KEY_OWNER} {path}"));
            assert_eq!(fixture.execs(), execs, "{until} {path}");
        }
    }
}
