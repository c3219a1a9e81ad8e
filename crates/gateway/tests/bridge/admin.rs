//! The admin listener reports health and metrics in the formats of kube-apiserver and Prometheus,
//! and `/readyz` on the main port fails while either the bridge or its upstream is not ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use http::Request;
use skewbridge_gateway::Handle;
use skewbridge_testkit::{
    ApiServer, BodySender, H1Client, Options, RecordedRequest, Reply, TEST_TIMEOUT, eventually,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

use crate::support::admin_client::{self, get, request, scrape};
use crate::support::pki::{PkiFixture, start};
use crate::support::self_test_responses;

/// An upstream that is ready; `answer` handles all requests but the probes.
async fn upstream(
    pki: &PkiFixture,
    answer: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
) -> ApiServer {
    ApiServer::start(
        Options::new(pki.upstream.clone()),
        move |recorded| match recorded.path() {
            "/readyz" => Reply::new(200).body("ok"),
            "/version" => Reply::json("{}"),
            _ => {
                self_test_responses::passing_response(&recorded).unwrap_or_else(|| answer(recorded))
            }
        },
    )
    .await
}

/// An upstream that answers with watches; the test sends the events.
async fn watch_upstream(pki: &PkiFixture) -> (ApiServer, mpsc::UnboundedReceiver<BodySender>) {
    let (senders, watches) = mpsc::unbounded_channel();
    let upstream = upstream(pki, move |_| {
        let (reply, sender) = Reply::stream();
        senders.send(sender).unwrap();
        reply
    });
    (upstream.await, watches)
}

async fn wait_until_ready(bridge: &Handle) {
    wait_for_status(bridge, "/readyz", 200).await;
}

async fn wait_for_status(bridge: &Handle, path: &str, status: u16) {
    eventually(&format!("{path} is {status}"), TEST_TIMEOUT, async || {
        get(bridge.admin_address(), path).await.status == status
    })
    .await;
}

async fn wait_for_request_count(bridge: &Handle, verb: &str, code: &str, count: f64) {
    eventually(
        &format!("{count} {verb} {code}"),
        TEST_TIMEOUT,
        async || {
            let counted = scrape(bridge.admin_address()).await.requests(verb, code);
            assert!(counted <= count, "{counted} {verb} {code}");
            counted >= count
        },
    )
    .await;
}

async fn send(client: &mut H1Client, request_line: &str) -> u16 {
    let request = format!("{request_line} HTTP/1.1\r\nHost: k\r\n\r\n");
    client.send(request).await.unwrap();
    client.read_response().await.unwrap().status
}

#[tokio::test]
async fn every_metric_has_a_type_and_a_help_line() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    wait_until_ready(&bridge).await;
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    send(&mut client, "GET /version").await;
    wait_for_request_count(&bridge, "get", "200", 1.0).await;
    // A client that does not speak TLS.
    let mut tcp = TcpStream::connect(bridge.address()).await.unwrap();
    tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let failures = "skewbridge_tls_handshake_failures_total";
    eventually("a failed handshake", TEST_TIMEOUT, async || {
        let scrape = scrape(bridge.admin_address()).await;
        scrape.value(failures, &[("reason", "not-tls")]) == Some(1.0)
    })
    .await;

    let scrape = scrape(bridge.admin_address()).await;
    for (name, kind) in [
        ("skewbridge_build", "info"),
        ("skewbridge_requests", "counter"),
        ("skewbridge_request_duration_seconds", "histogram"),
        ("skewbridge_client_connections", "gauge"),
        ("skewbridge_upstream_connections", "gauge"),
        ("skewbridge_upstream_streams", "gauge"),
        ("skewbridge_tls_handshake_failures", "counter"),
        (
            "skewbridge_certificate_expiration_timestamp_seconds",
            "gauge",
        ),
        ("skewbridge_ready", "gauge"),
        ("process_cpu_seconds", "counter"),
        ("process_resident_memory_bytes", "gauge"),
        ("process_virtual_memory_bytes", "gauge"),
        ("process_open_fds", "gauge"),
        ("process_max_fds", "gauge"),
        ("process_start_time_seconds", "gauge"),
    ] {
        let found = scrape.families.get(name).map(String::as_str);
        assert_eq!(found, Some(kind), "{name}");
    }
    for name in scrape.families.keys() {
        let help = scrape.helps.get(name).map_or("", String::as_str);
        assert!(help.len() > 10, "{name} has the help {help:?}");
    }
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    assert_eq!(scrape.value("skewbridge_build_info", &version), Some(1.0));
    assert_eq!(scrape.value("skewbridge_ready", &[]), Some(1.0));
}

#[tokio::test]
async fn process_metrics_are_exported() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    let scrape = scrape(bridge.admin_address()).await;
    let value = |name| scrape.value(name, &[]).unwrap();

    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let started = value("process_start_time_seconds");
    assert!(started > 1.7e9 && started <= now.as_secs_f64(), "{started}");
    let resident = value("process_resident_memory_bytes");
    assert!(resident > 1e6 && resident < value("process_virtual_memory_bytes"));
    let open = value("process_open_fds");
    assert!(open > 3.0 && open < value("process_max_fds"), "{open}");
    assert!(value("process_cpu_seconds_total") >= 0.0);
}

#[tokio::test]
async fn every_scraper_gets_openmetrics_with_its_content_type() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    for accept in [
        // Prometheus, VictoriaMetrics and curl.
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
        "text/plain; version=0.0.4",
        "*/*",
    ] {
        let headers = format!("Accept: {accept}\r\n");
        let answer = request(bridge.admin_address(), "GET", "/metrics", &headers).await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.header("content-type"),
            Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
        );
        admin_client::Scrape::parse(&answer.body);
    }
}

#[tokio::test]
async fn requests_are_counted_by_route_verb_and_code() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki, |recorded| match recorded.path() {
        "/api/v1/namespaces/a/pods/gone" => Reply::new(404),
        _ => Reply::json("{}"),
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    for (line, status) in [
        ("GET /api/v1/pods", 200),
        ("GET /api/v1/namespaces/a/pods/gone", 404),
        ("GET /api/v1/namespaces/a/pods/there", 200),
        ("BREW /api/v1/pods", 200),
        ("SIMMER /pot", 200),
    ] {
        assert_eq!(send(&mut client, line).await, status, "{line}");
    }
    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    assert_eq!(h2.get("/api/v1/pods").await.unwrap().status, 200);
    // A certificate of an untrusted CA, and no token.
    let untrusted_client = pki.client().identity(&pki.upstream_ca.client("eve", &[]));
    let mut untrusted_client = untrusted_client.http1(bridge.address()).await.unwrap();
    assert_eq!(send(&mut untrusted_client, "GET /api/v1/pods").await, 401);

    wait_for_request_count(&bridge, "list", "200", 2.0).await;
    wait_for_request_count(&bridge, "get", "404", 1.0).await;
    wait_for_request_count(&bridge, "get", "200", 1.0).await;
    wait_for_request_count(&bridge, "other", "200", 2.0).await;
    let refused = [
        ("route", "refuse"),
        ("destination", "rejected"),
        ("verb", "list"),
        ("code", "401"),
    ];
    eventually(
        "the request with the untrusted certificate is counted",
        TEST_TIMEOUT,
        async || {
            let scrape = scrape(bridge.admin_address()).await;
            scrape.value("skewbridge_requests_total", &refused) == Some(1.0)
        },
    )
    .await;

    let scrape = scrape(bridge.admin_address()).await;
    let verbs = scrape.labels("skewbridge_requests_total", "verb");
    assert_eq!(verbs, ["get", "list", "other"].into());
    let count = "skewbridge_request_duration_seconds_count";
    let list = [
        ("route", "local"),
        ("destination", "local"),
        ("verb", "list"),
        ("code", "200"),
    ];
    assert_eq!(scrape.value(count, &list), Some(2.0));
    let all = [list[0], list[1], list[2], list[3], ("le", "+Inf")];
    let bucket = "skewbridge_request_duration_seconds_bucket";
    assert_eq!(scrape.value(bucket, &all), Some(2.0));
}

#[tokio::test]
async fn a_watch_is_counted_as_a_stream_while_it_runs_and_as_a_request_when_it_ends() {
    let pki = PkiFixture::new();
    let (upstream, mut watches) = watch_upstream(&pki).await;
    let bridge = pki.start_bridge(upstream.addr());
    wait_until_ready(&bridge).await;
    // As a user with a certificate: the probe uses another upstream connection.
    let leg = [("leg", "front-proxy"), ("identity", "front-proxy")];
    let h2 = [
        ("leg", "front-proxy"),
        ("identity", "front-proxy"),
        ("protocol", "h2"),
    ];
    let streams = async || {
        let scrape = scrape(bridge.admin_address()).await;
        (
            scrape.value("skewbridge_upstream_connections", &h2),
            scrape.value("skewbridge_upstream_streams", &leg),
        )
    };

    let user = pki.user("jane", &[]);
    let client = user.http2(bridge.address()).await.unwrap();
    let request = Request::get("https://k/api/v1/pods?watch=1")
        .body(())
        .unwrap();
    let mut stream = client.stream(request).await.unwrap();
    stream.finish().unwrap();
    let watch = watches.recv().await.unwrap();
    watch.send("{}\n").await.unwrap();
    assert_eq!(stream.head().await.unwrap().status, 200);
    assert_eq!(stream.chunk().await.unwrap().unwrap(), "{}\n");
    assert_eq!(streams().await, (Some(1.0), Some(1.0)));
    wait_for_request_count(&bridge, "watch", "200", 0.0).await;

    watch.finish().await.unwrap();
    while let Some(rest) = stream.chunk().await {
        assert_eq!(rest.unwrap(), "");
    }
    wait_for_request_count(&bridge, "watch", "200", 1.0).await;
    let after = async || streams().await == (Some(1.0), Some(0.0));
    eventually("the stream is no longer counted", TEST_TIMEOUT, after).await;
    upstream.kill_connections().await;
    let all_closed = async || streams().await == (Some(0.0), Some(0.0));
    eventually(
        "the connection is no longer counted",
        TEST_TIMEOUT,
        all_closed,
    )
    .await;
}

#[tokio::test]
async fn a_client_that_disconnects_before_the_response_is_counted_as_499() {
    let pki = PkiFixture::new();
    let never = Arc::new(Notify::new());
    let upstream = upstream(&pki, move |_| Reply::new(200).after(&never)).await;
    let bridge = pki.start_bridge(upstream.addr());
    let arrived = |count| {
        upstream.wait_for(
            move |recorded| recorded.iter().filter(|it| it.path() == "/apis").count() == count,
            TEST_TIMEOUT,
        )
    };

    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    h1.send("GET /apis HTTP/1.1\r\nHost: k\r\n\r\n")
        .await
        .unwrap();
    arrived(1).await;
    drop(h1);
    wait_for_request_count(&bridge, "get", "499", 1.0).await;

    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    let request = Request::get("https://k/apis").body(()).unwrap();
    let stream = h2.stream(request).await.unwrap();
    arrived(2).await;
    stream.reset(h2::Reason::CANCEL);
    wait_for_request_count(&bridge, "get", "499", 2.0).await;

    // While it sends its body.
    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    h1.send("POST /apis HTTP/1.1\r\nHost: k\r\nContent-Length: 9\r\n\r\nhalf")
        .await
        .unwrap();
    arrived(3).await;
    drop(h1);
    wait_for_request_count(&bridge, "post", "499", 1.0).await;
}

#[tokio::test]
async fn the_expiry_of_the_certificate_of_each_flag_is_exported() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    let name = "skewbridge_certificate_expiration_timestamp_seconds";
    let scraped = scrape(bridge.admin_address()).await;
    let flags = scraped.labels(name, "flag");
    let expected = [
        "--tls-cert-file",
        "--client-ca-file",
        "--requestheader-client-ca-file",
        "--upstream-ca-file",
        "--proxy-client-cert-file",
    ];
    assert_eq!(flags, expected.into());
    for (flag, file) in [
        ("--tls-cert-file", "serving.crt"),
        ("--client-ca-file", "client-ca.crt"),
    ] {
        let pem = std::fs::read(pki.path().join(file)).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        let not_after = pem.parse_x509().unwrap().validity().not_after.timestamp();
        let served = scraped.value(name, &[("flag", flag)]).unwrap();
        assert_eq!(format!("{served}"), not_after.to_string(), "{flag}");
    }
}

#[tokio::test]
async fn file_reloads_are_counted_by_flag_and_result() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
    let bridge = pki.start_bridge(upstream.addr());
    let counted = async |flag, result| {
        let scrape = scrape(bridge.admin_address()).await;
        let labels = [("flag", flag), ("result", result)];
        scrape.value("skewbridge_file_reloads_total", &labels) == Some(1.0)
    };
    pki.dir.write("client-ca.crt", pki.front_proxy_ca.pem());
    pki.dir.write("serving.crt", "not a certificate");
    eventually(
        "the reload of the valid file is counted",
        TEST_TIMEOUT,
        async || counted("--client-ca-file", "ok").await,
    )
    .await;
    eventually(
        "the failed reload of the invalid file is counted",
        TEST_TIMEOUT,
        async || counted("--tls-cert-file", "failed").await,
    )
    .await;
}

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
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
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
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
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
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
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
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
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
    let upstream = upstream(&pki, |_| Reply::json("{}")).await;
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
