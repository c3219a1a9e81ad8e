//! The admin listener reports health in the formats of kube-apiserver, and `/readyz` on the main
//! port fails while either the bridge or its upstream is not ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use skewbridge_testkit::{ApiServer, Options, Reply, TEST_TIMEOUT, eventually};
use tokio::sync::Notify;

use crate::support::admin_client::{get, request, scrape, wait_for_status, wait_until_ready};
use crate::support::pki::{PkiFixture, start};
use crate::support::ready_upstream::ready_upstream;
use crate::support::self_test_responses;

#[tokio::test]
async fn readyz_follows_the_readiness_of_upstream() {
    let pki = PkiFixture::new();
    let first = Arc::new(Notify::new());
    let status = Arc::new(AtomicU16::new(200));
    let upstream = {
        let (first, status) = (first.clone(), status.clone());
        let options = Options::new(pki.upstream.clone());
        ApiServer::start(options, move |recorded| {
            let reply = Reply::new(status.load(Ordering::SeqCst));
            if recorded.ordinal == 0 {
                reply.after(&first)
            } else {
                reply
            }
        })
        .await
    };
    let bridge = pki.start_bridge(upstream.addr());
    let admin = bridge.admin_address();
    let ready = async || scrape(admin).await.value("skewbridge_ready", &[]);

    upstream.wait_for_requests(1).await;
    assert_eq!(upstream.requests()[0].target, "/readyz");
    let answer = get(admin, "/readyz").await;
    assert_eq!(answer.status, 500);
    assert!(
        answer.body.contains("[-]upstream failed"),
        "{}",
        answer.body
    );
    assert_eq!(get(admin, "/healthz").await.status, 500);
    assert_eq!(get(admin, "/livez").await.status, 200);
    assert_eq!(ready().await, Some(0.0));

    first.notify_one();
    wait_until_ready(&bridge).await;
    assert_eq!(get(admin, "/healthz").await.status, 200);
    assert_eq!(ready().await, Some(1.0));

    upstream.stop_listening().await;
    upstream.kill_connections().await;
    wait_for_status(&bridge, "/readyz", 500).await;
    assert_eq!(get(admin, "/livez").await.status, 200);
    assert_eq!(ready().await, Some(0.0));
    upstream.listen_again().await;
    wait_until_ready(&bridge).await;

    for (current_status, expected) in [(500, 500), (401, 200), (503, 500), (403, 200)] {
        status.store(current_status, Ordering::SeqCst);
        wait_for_status(&bridge, "/readyz", expected).await;
    }
}

/// kube-apiserver denies requests until it has read the RBAC objects, except those of `system:masters`.
#[tokio::test]
async fn an_upstream_that_denies_its_readiness_while_it_starts_is_not_ready() {
    let pki = PkiFixture::new();
    let [anonymous, as_user] = [500, 500].map(|it| Arc::new(AtomicU16::new(it)));
    let upstream = {
        let [anonymous, as_user] = [anonymous.clone(), as_user.clone()];
        let options = Options::new(pki.upstream.clone());
        ApiServer::start(options, move |recorded| {
            let status = match recorded.header("x-remote-user") {
                None => &anonymous,
                Some(_) => &as_user,
            };
            match recorded.path() {
                "/readyz" => Reply::new(status.load(Ordering::SeqCst)),
                "/version" => Reply::json("{}"),
                _ => self_test_responses::passing_response(&recorded).unwrap(),
            }
        })
        .await
    };
    let bridge = pki.start_bridge(upstream.addr());
    wait_for_status(&bridge, "/readyz", 500).await;
    let upstream_check = async || get(bridge.admin_address(), "/readyz/upstream").await;

    // The bridge's own user may not read it yet either.
    for status in [&anonymous, &as_user] {
        status.store(403, Ordering::SeqCst);
    }
    eventually("the denial is seen", TEST_TIMEOUT, async || {
        let check = upstream_check().await;
        assert_eq!(check.status, 500, "{}", check.body);
        check.body.contains("403")
    })
    .await;
    as_user.store(500, Ordering::SeqCst);
    eventually("the user's answer is seen", TEST_TIMEOUT, async || {
        let check = upstream_check().await;
        assert_eq!(check.status, 500, "{}", check.body);
        check.body.contains("/readyz answered 500")
    })
    .await;
    // With anonymous requests denied for ever it is ready when the user's answer says so.
    as_user.store(200, Ordering::SeqCst);
    wait_until_ready(&bridge).await;
    // Not the other way round: the right of the user is removed while upstream runs.
    let count = upstream.requests().len();
    as_user.store(403, Ordering::SeqCst);
    eventually("further probes", TEST_TIMEOUT, async || {
        assert_eq!(upstream_check().await.status, 200);
        let requests = upstream.requests();
        let probes = requests[count..].iter();
        probes.filter(|it| it.path() == "/readyz").count() > 4
    })
    .await;
}

#[tokio::test]
async fn closing_an_idle_connection_leaves_upstream_ready() {
    let pki = PkiFixture::new();
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    wait_until_ready(&bridge).await;
    let stays_ready = async |request_count: usize| {
        let recorded = upstream.requests().len() + request_count;
        eventually("the next probe", TEST_TIMEOUT, async || {
            assert_eq!(get(bridge.admin_address(), "/readyz").await.status, 200);
            upstream.requests().len() >= recorded
        })
        .await;
        assert_eq!(get(bridge.admin_address(), "/readyz").await.status, 200);
    };
    upstream.goaway();
    stays_ready(1).await;
    upstream.kill_connections().await;
    stays_ready(1).await;
}

#[tokio::test]
async fn the_probe_reuses_its_connection() {
    let pki = PkiFixture::new();
    for protocols in [&["h2", "http/1.1"][..], &["http/1.1"]] {
        let options = Options::new(pki.upstream.clone()).alpn(protocols);
        let upstream = ApiServer::start(options, |_| Reply::new(200).body("ok")).await;
        let mut config = pki.config(upstream.addr());
        // Without this the self-test opens a second connection.
        config.upstream.front_proxy = None;
        let _bridge = start(&config);
        upstream.wait_for_requests(3).await;
        assert_eq!(upstream.connections(), 1, "{protocols:?}");
    }
}

#[tokio::test]
async fn health_endpoints_answer_in_the_format_of_kube_apiserver() {
    let pki = PkiFixture::new();
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    wait_until_ready(&bridge).await;
    upstream.stop_listening().await;
    let table = [
        ("/livez", 200, "ok"),
        ("/readyz", 200, "ok"),
        ("/healthz", 200, "ok"),
        ("/livez?verbose", 200, "[+]ping ok\nlivez check passed\n"),
        (
            "/readyz?verbose=true",
            200,
            "[+]ping ok\n[+]upstream ok\n[+]self-test ok\n\
             [+]peers ok: local only, since --peer-ca-file is not set\n\
             [+]shutdown ok\nreadyz check passed\n",
        ),
        (
            "/healthz?verbose&exclude=upstream",
            200,
            "[+]ping ok\n[+]upstream excluded: ok\n[+]self-test ok\n\
             [+]peers ok: local only, since --peer-ca-file is not set\n\
             [+]shutdown ok\nhealthz check passed\n",
        ),
        ("/readyz/ping", 200, "ok"),
        ("/readyz/upstream", 200, "ok"),
        ("/livez/ping", 200, "ok"),
    ];
    for (path, status, body) in table {
        let answer = get(bridge.admin_address(), path).await;
        assert_eq!((answer.status, &*answer.body), (status, body), "{path}");
        let content_type = answer.header("content-type");
        assert_eq!(content_type, Some("text/plain; charset=utf-8"));
    }

    upstream.kill_connections().await;
    wait_for_status(&bridge, "/readyz/upstream", 500).await;
    for (path, status) in [
        ("/readyz", 500),
        ("/readyz?exclude=upstream", 200),
        ("/healthz?exclude=upstream&exclude=ping", 200),
        ("/readyz?exclude=ping", 500),
        ("/readyz/ping", 200),
        ("/livez", 200),
    ] {
        let answer = get(bridge.admin_address(), path).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn unserved_paths_and_methods_of_the_admin_listener_are_answered_with_a_status() {
    let pki = PkiFixture::new();
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    for (method, path, code, reason) in [
        ("GET", "/", 404, "NotFound"),
        ("GET", "/metrics/cadvisor", 404, "NotFound"),
        ("GET", "/readyzz", 404, "NotFound"),
        ("GET", "/readyz/etcd", 404, "NotFound"),
        ("GET", "/livez/upstream", 404, "NotFound"),
        ("GET", "/debug/pprof/heap", 404, "NotFound"),
        ("POST", "/metrics", 405, "MethodNotAllowed"),
        ("DELETE", "/readyz", 405, "MethodNotAllowed"),
    ] {
        let answer = request(bridge.admin_address(), method, path, "").await;
        assert_eq!(answer.status, code, "{method} {path}");
        let allow = (code == 405).then_some("GET, HEAD");
        assert_eq!(answer.header("allow"), allow);
        let status: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["code"], code);
        assert_eq!(status["reason"], reason, "{method} {path}");
    }
    let head = request(bridge.admin_address(), "HEAD", "/metrics", "").await;
    assert_eq!((head.status, &*head.body), (200, ""));
}

#[tokio::test]
async fn a_request_target_that_is_not_a_path_is_not_found() {
    let pki = PkiFixture::new();
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    for target in ["foo", "foo:443", "https://foo", "*", "/", "//"] {
        assert_eq!(
            get(bridge.admin_address(), target).await.status,
            404,
            "{target}"
        );
    }
}

#[tokio::test]
async fn health_endpoints_on_the_main_port_are_answered_by_upstream() {
    let pki = PkiFixture::new();
    let failing = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n";
    let status = Arc::new(AtomicU16::new(500));
    let current_status = status.clone();
    let options = Options::new(pki.upstream.clone());
    let upstream = ApiServer::start(options, move |recorded| match recorded.path() {
        "/readyz" => Reply::new(current_status.load(Ordering::SeqCst))
            .header("X-Content-Type-Options", "nosniff")
            .body(failing),
        path => Reply::new(200).body(format!("upstream's {path}")),
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let h1 =
        async |path: &str| skewbridge_testkit::get(bridge.address(), &pki.serving_ca, path).await;
    let h2 = pki.client().http2(bridge.address()).await.unwrap();

    for answer in [
        h1("/readyz?verbose").await,
        h2.get("/readyz?verbose").await.unwrap(),
    ] {
        assert_eq!((answer.status, &*answer.text()), (500, failing));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
    status.store(200, Ordering::SeqCst);
    // The bridge's own probe has to succeed as well.
    let ready = async || h1("/readyz").await.status == 200;
    eventually("bridge and upstream are ready", TEST_TIMEOUT, ready).await;
    assert_eq!(h2.get("/readyz").await.unwrap().status, 200);
    for path in ["/livez", "/healthz", "/readyz/ping", "/metrics"] {
        assert_eq!(h1(path).await.text(), format!("upstream's {path}"));
    }
}

#[tokio::test]
async fn zpages_have_the_shape_of_kubernetes() {
    let pki = PkiFixture::new();
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
    let mut config = pki.config(upstream.addr());
    let flags = [("tls-cert-file", "/etc/a.crt"), ("upstream", "[https://a]")];
    config.admin.flags = (flags.into_iter())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let bridge = start(&config);
    let status = get(bridge.admin_address(), "/statusz").await;
    assert_eq!(status.status, 200);
    assert!(status.body.starts_with("\nskewbridge statusz\nWarning: "));
    let flags = get(bridge.admin_address(), "/flagz").await;
    let expected = "only.\ntls-cert-file=/etc/a.crt\nupstream=[https://a]\n";
    assert!(flags.body.ends_with(expected), "{}", flags.body);

    let json = "application/json;g=config.k8s.io;v=v1beta1;as=Flagz";
    let accept = format!("Accept: {json}\r\n");
    let flags = request(bridge.admin_address(), "GET", "/flagz", &accept).await;
    assert_eq!(flags.header("content-type"), Some(json));
    let found: serde_json::Value = serde_json::from_str(&flags.body).unwrap();
    assert_eq!(found["flags"]["tls-cert-file"], "/etc/a.crt");
    let accept = "Accept: application/json\r\n";
    let refused = request(bridge.admin_address(), "GET", "/statusz", accept).await;
    assert_eq!(refused.status, 406);
}
