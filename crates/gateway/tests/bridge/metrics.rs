//! The metrics of the admin listener: what is counted, and how.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Request;
use skewbridge_gateway::Handle;
use skewbridge_testkit::{ApiServer, BodySender, H1Client, Reply, TEST_TIMEOUT, eventually};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

use crate::support::admin_client::{self, request, scrape, wait_until_ready};
use crate::support::pki::PkiFixture;
use crate::support::ready_upstream::ready_upstream;

/// An upstream that answers with watches; the test sends the events.
async fn watch_upstream(pki: &PkiFixture) -> (ApiServer, mpsc::UnboundedReceiver<BodySender>) {
    let (senders, watches) = mpsc::unbounded_channel();
    let upstream = ready_upstream(pki, move |_| {
        let (reply, sender) = Reply::stream();
        senders.send(sender).unwrap();
        reply
    });
    (upstream.await, watches)
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
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
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
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
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
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
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
    let upstream = ready_upstream(&pki, |recorded| match recorded.path() {
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
    let upstream = ready_upstream(&pki, move |_| Reply::new(200).after(&never)).await;
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
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
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
    let upstream = ready_upstream(&pki, |_| Reply::json("{}")).await;
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
