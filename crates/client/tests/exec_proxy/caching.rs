//! KEP-2718, "Caching": who shares a plugin, and for how long.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use skewbridge_client::kubeconfig::PemSource;
use skewbridge_client::{Endpoint, Timeouts};
use skewbridge_testkit::{Ca, PATIENCE, eventually};

use crate::stage::{Kind, LIMITS, NAME, Stage, ask, is_gone};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_clients_at_once_are_one_exec() {
    for kind in [Kind::Itself, Kind::Starter] {
        let stage = Stage::new(kind).await;
        let clients: Vec<_> = (0..50)
            .map(|number| {
                let target = stage.target();
                tokio::spawn(async move {
                    let endpoint = Endpoint::prepare_with_timeouts(&target, LIMITS)
                        .await
                        .unwrap();
                    let answer = ask(&endpoint, &format!("/{number}")).await.unwrap();
                    // Kept, so that nobody finds the plugin let go.
                    (endpoint, answer)
                })
            })
            .collect();
        let mut kept = Vec::new();
        for (number, client) in clients.into_iter().enumerate() {
            let (endpoint, answer) = client.await.unwrap();
            assert_eq!(answer, format!("{NAME} /{number}"));
            kept.push(endpoint);
        }
        assert_eq!(stage.execs(), 1, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_who_waited_for_a_plugin_that_failed_are_told_so_by_one_exec() {
    let stage = Stage::new(Kind::Itself).await;
    let count = stage.dir.path().join("count");
    let go = stage.dir.path().join("go");
    let script = format!(
        "echo x >> {}; while [ ! -e {} ]; do sleep 0.1; done; exit 1",
        count.display(),
        go.display()
    );
    let plugin = Stage::script(&script);
    let (waiting, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let clients: Vec<_> = (0..20)
        .map(|_| {
            let target = stage.target_of("u", &plugin);
            let waiting = waiting.clone();
            tokio::spawn(async move {
                let preparing = Endpoint::prepare_with_timeouts(&target, LIMITS);
                tokio::pin!(preparing);
                // It has asked for its turn when it was polled once.
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

/// Even if what it gives is of no use to the next request.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn however_often_a_plugin_has_to_run_it_runs_once_at_a_time() {
    let stage = Stage::new(Kind::Itself).await;
    let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t","expirationTimestamp":"2001-01-01T00:00:00Z"}}"#;
    let script = format!(
        "cd {}; mkdir running || echo twice >> count; echo x >> count; rmdir running; echo '{good}'",
        stage.dir.path().display()
    );
    let mut target = stage.target_of("u", &Stage::script(&script));
    target.cluster.proxy_url = None;
    let endpoint = Endpoint::prepare_with_timeouts(&target, LIMITS)
        .await
        .unwrap();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let endpoint = endpoint.clone();
        // The cluster takes nobody without a certificate; the plugin has run by then.
        all.spawn(async move { endpoint.connect().await.map(drop) });
    }
    all.join_all().await;
    let noted = stage.told("count");
    assert!(!noted.contains("twice"), "{noted}");
    assert!((1..=21).contains(&noted.lines().count()), "{noted}");
}

#[tokio::test]
async fn who_leaves_while_the_plugin_runs_takes_nothing_from_those_who_wait() {
    let stage = Stage::new(Kind::Itself).await;
    let (count, go) = (stage.dir.path().join("count"), stage.dir.path().join("go"));
    let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}"#;
    let script = format!(
        "echo x >> {}; while [ ! -e {} ]; do sleep 0.1; done; echo '{good}'",
        count.display(),
        go.display()
    );
    let target = stage.target_of("u", &Stage::script(&script));
    let execs = || {
        let noted = std::fs::read_to_string(&count).unwrap_or_default();
        noted.lines().count()
    };
    let mut first = Box::pin(Endpoint::prepare_with_timeouts(&target, LIMITS));
    let mut second = Box::pin(Endpoint::prepare_with_timeouts(&target, LIMITS));
    // Each has asked for it when it was polled once, the first one first.
    for asking in [&mut first, &mut second] {
        tokio::select! {
            biased;
            _ = asking => panic!("nobody has let it go on"),
            () = std::future::ready(()) => {}
        }
    }
    eventually("the plugin", PATIENCE, async || execs() == 1).await;
    drop(first);
    std::fs::write(go, "").unwrap();
    second.await.unwrap();
    assert_eq!(execs(), 1);
}

#[tokio::test]
async fn each_waits_no_longer_than_its_own_limit_and_the_plugin_runs_for_the_others() {
    let hasty = Timeouts {
        plugin: Duration::from_millis(300),
        ..LIMITS
    };
    for timeouts in [[LIMITS, hasty], [hasty, LIMITS]] {
        let stage = Stage::new(Kind::Itself).await;
        let (count, go) = (stage.dir.path().join("count"), stage.dir.path().join("go"));
        let good = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"t"}}"#;
        let script = format!(
            "echo x >> {}; while [ ! -e {} ]; do sleep 0.1; done; echo '{good}'",
            count.display(),
            go.display()
        );
        let target = stage.target_of("alice", &Stage::script(&script));
        // In this order.
        let mut asking =
            timeouts.map(|timeouts| Box::pin(Endpoint::prepare_with_timeouts(&target, timeouts)));
        for asking in &mut asking {
            tokio::select! {
                biased;
                _ = asking => panic!("nobody has let it go on"),
                () = std::future::ready(()) => {}
            }
        }
        let [first, second] = asking;
        let (patient, in_a_hurry) = if timeouts[0] == LIMITS {
            (first, second)
        } else {
            (second, first)
        };
        let error = in_a_hurry.await.unwrap_err().to_string();
        let expected = "exec: sh (user \"alice\"): did not give a credential within 0.3 s; others \
                        wait for it still";
        assert!(error.contains(expected), "{error}");
        std::fs::write(go, "").unwrap();
        patient.await.unwrap();
        assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n");
    }
}

#[tokio::test]
async fn a_plugin_that_nobody_wants_any_more_is_ended() {
    let stage = Stage::new(Kind::Itself).await;
    let pid = stage.dir.path().join("waiting");
    let script = format!("echo $$ > {}; exec sleep 300", pid.display());
    let target = stage.target_of("u", &Stage::script(&script));
    let asking =
        tokio::spawn(async move { Endpoint::prepare_with_timeouts(&target, LIMITS).await });
    let read = || std::fs::read_to_string(&pid).unwrap_or_default();
    eventually("the plugin", PATIENCE, async || read().ends_with('\n')).await;
    asking.abort();
    let pid = read().trim().parse().unwrap();
    eventually("its end", PATIENCE, async || is_gone(pid)).await;
}

#[tokio::test]
async fn the_same_cluster_and_user_share_a_proxy_and_others_do_not() {
    let stage = Stage::new(Kind::Itself).await;
    let _first = stage.endpoint().await;
    let _same = stage.endpoint().await;
    assert_eq!(stage.execs(), 1);
    let other_user = stage.target_of("somebody-else", &stage.plugin());
    let _other = Endpoint::prepare_with_timeouts(&other_user, LIMITS)
        .await
        .unwrap();
    assert_eq!(stage.execs(), 2);
    let mut other_cluster = stage.target();
    other_cluster.cluster.tls_server_name = Some("another".to_owned());
    let _other = Endpoint::prepare_with_timeouts(&other_cluster, LIMITS)
        .await
        .unwrap();
    assert_eq!(stage.execs(), 3);
}

/// A file that is replaced is another CA, though its path is the same.
#[tokio::test]
async fn a_rotated_ca_counts_for_the_plugins_proxy() {
    let stage = Stage::new(Kind::Itself).await;
    let path = stage.dir.write("told-ca.crt", stage.cluster_ca.pem());
    let mut target = stage.target();
    target.cluster.certificate_authority = Some(PemSource::File(path));
    let endpoint = Endpoint::prepare_with_timeouts(&target, LIMITS)
        .await
        .unwrap();
    let _same = endpoint.renewed().await.unwrap();
    assert_eq!(stage.execs(), 1);
    let rotated = Ca::new("cluster").pem();
    stage.dir.write("told-ca.crt", &rotated);
    let _renewed = endpoint.renewed().await.unwrap();
    assert_eq!(stage.execs(), 2);
    let question: Value = serde_json::from_str(&stage.told("question")).unwrap();
    let told = &question["spec"]["cluster"]["certificate-authority-data"];
    assert_eq!(*told, *STANDARD.encode(rotated));
}

#[tokio::test]
async fn a_rotated_ca_counts_for_what_goes_straight_to_the_cluster() {
    let stage = Stage::new(Kind::Itself).await;
    let path = stage.dir.write("told-ca.crt", Ca::new("cluster").pem());
    let pair = stage.cluster_ca.client("jane", &[]);
    let document = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"clientCertificateData": pair.cert_pem, "clientKeyData": pair.key_pem},
    });
    let document = stage.dir.write("document", document.to_string());
    let script = format!("cat {}", document.display());
    let mut target = stage.target_of("u", &Stage::script(&script));
    target.cluster.proxy_url = None;
    target.cluster.certificate_authority = Some(PemSource::File(path));
    let endpoint = Endpoint::prepare_with_timeouts(&target, LIMITS)
        .await
        .unwrap();
    let error = ask(&endpoint, "/x").await.unwrap_err().to_string();
    assert!(error.contains("unknown authority"), "{error}");
    stage.dir.write("told-ca.crt", stage.cluster_ca.pem());
    let renewed = endpoint.renewed().await.unwrap();
    assert_eq!(ask(&renewed, "/x").await.unwrap(), "jane /x");
}

#[tokio::test]
async fn a_proxy_that_the_plugin_finds_again_stays() {
    let mut stage = Stage::new(Kind::Finder).await;
    stage.extra = json!({"expirationTimestamp": "2001-01-01T00:00:00Z"});
    let endpoint = stage.endpoint().await;
    let proxy = stage.proxy();
    // By what was there at the start.
    ask(&endpoint, "/").await.unwrap();
    for path in ["/one", "/two", "/three"] {
        let answer = ask(&endpoint, path).await.unwrap();
        assert_eq!(answer, format!("{NAME} {path}"));
        // What came before the last one has been let go when that one has ended.
        let last = stage.told("execs").lines().last().unwrap().parse().unwrap();
        eventually("its end", PATIENCE, async || is_gone(last)).await;
    }
    assert_eq!(stage.execs(), 4);
    assert!(!is_gone(proxy) && stage.proxy() == proxy);
    drop(endpoint);
    eventually("the end of the proxy", PATIENCE, async || is_gone(proxy)).await;
}

/// What had expired when it came is used once, as client-go does, and costs one exec.
#[tokio::test]
async fn what_has_expired_is_asked_for_again_and_what_has_not_is_kept() {
    let rows = [
        ("2001-01-01T00:00:00Z", [1, 2, 3]),
        ("2999-01-01T00:00:00Z", [1, 1, 1]),
    ];
    for (until, execs) in rows {
        let mut stage = Stage::new(Kind::Itself).await;
        stage.extra = json!({"expirationTimestamp": until});
        let endpoint = stage.endpoint().await;
        assert_eq!(stage.execs(), 1);
        for (path, execs) in ["/one", "/two", "/three"].into_iter().zip(execs) {
            let answer = ask(&endpoint, path).await.unwrap();
            assert_eq!(answer, format!("{NAME} {path}"));
            assert_eq!(stage.execs(), execs, "{until} {path}");
        }
    }
}
