//! Requests and responses are forwarded in every combination of protocols, and only hop-by-hop
//! fields change on the way.

use skewbridge_testkit::{ApiServer, H1Client, Options, RecordedRequest, Reply, Response};
use tokio::io::AsyncReadExt;

use crate::support::pki::PkiFixture;
use crate::support::protocols::Proto::{H1, H2};
use crate::support::protocols::{
    ApiServerFixture, COMBINATIONS, Client, assert_status, request, with_timeout,
};

/// Header bytes below and above the limit of 1 MiB.
const LARGE_HEADER_BYTES: usize = 900 << 10;
const TOO_LARGE_HEADER_BYTES: usize = 1100 << 10;

fn echo(recorded: RecordedRequest) -> Reply {
    Reply::new(200).body(recorded.body)
}

fn names(fields: &[(String, String)]) -> Vec<String> {
    fields.iter().map(|(name, _)| name.to_lowercase()).collect()
}

fn all_values<'a>(response: &'a Response, name: &str) -> Vec<&'a str> {
    response
        .headers
        .iter()
        .filter(|(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
        .collect()
}

/// Header fields of 8 KiB each, with this many bytes in total.
fn padding(bytes: usize) -> Vec<(String, String)> {
    (0..bytes.div_ceil(8 << 10))
        .map(|at| (format!("x-padding-{at}"), "p".repeat((8 << 10) - 20)))
        .collect()
}

/// All bytes until the server closes the connection cleanly.
async fn read_until_close(client: H1Client) -> String {
    let mut bytes = Vec::new();
    let mut connection = client.into_connection();
    with_timeout(connection.read_to_end(&mut bytes))
        .await
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn requests_are_forwarded_between_all_protocols() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, echo).await;
        let mut client = fixture.client(client).await;
        for path in ["/api/v1/pods?limit=1", "/apis"] {
            let answer = client.post(path, "hello").await;
            assert_eq!((answer.status, answer.text()), (200, "hello".to_owned()));
        }
        let recorded = fixture.upstream.requests();
        let targets: Vec<_> = recorded
            .iter()
            .map(|recorded| recorded.target.as_str())
            .collect();
        assert_eq!(targets, ["/api/v1/pods?limit=1", "/apis"]);
        for recorded in recorded {
            assert_eq!(recorded.version, upstream.version());
            assert_eq!(recorded.method, "POST");
            assert_eq!(recorded.authority.as_deref(), Some("k"));
            assert_eq!(recorded.body, "hello");
        }
    }
}

#[tokio::test]
async fn end_to_end_headers_are_forwarded_unchanged_both_ways() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |_| {
            Reply::json("{}")
                .header("Audit-ID", "from-upstream")
                .header("Warning", "299 - \"b\"")
                .header("Warning", "299 - \"a\"")
                .header("X-Empty", "")
        })
        .await;
        let builder = request("GET", "/api")
            .header("user-agent", "kubectl/v1.33.0 (linux/amd64)")
            .header("accept-encoding", "gzip")
            .header("accept", "application/json;q=0.5, application/yaml")
            .header("audit-id", "0815")
            .header("x-twice", "2")
            .header("x-other", "between")
            .header("x-twice", "1")
            .header("x-twice", "2, 3")
            .header("x-empty", "");
        let answer = fixture.client(client).await.request(builder, "").await;

        let recorded = fixture.only_request();
        for (name, value) in [
            ("user-agent", "kubectl/v1.33.0 (linux/amd64)"),
            ("accept-encoding", "gzip"),
            ("accept", "application/json;q=0.5, application/yaml"),
            ("audit-id", "0815"),
            ("x-other", "between"),
            ("x-empty", ""),
        ] {
            assert_eq!(recorded.all(name), [value], "{name}");
        }
        assert_eq!(recorded.all("x-twice"), ["2", "1", "2, 3"]);
        assert_eq!(recorded.authority.as_deref(), Some("k"));
        assert_eq!(all_values(&answer, "audit-id"), ["from-upstream"]);
        assert_eq!(
            all_values(&answer, "warning"),
            ["299 - \"b\"", "299 - \"a\""]
        );
        assert_eq!(all_values(&answer, "x-empty"), [""]);
        assert_eq!(all_values(&answer, "content-type"), ["application/json"]);
    }
}

#[tokio::test]
async fn only_framing_and_date_headers_are_added_to_a_response() {
    let fixture = ApiServerFixture::new(H1, |_| Reply::json("{}")).await;
    for proto in [H1, H2] {
        let answer = fixture.client(proto).await.get("/api").await;
        let expected = ["content-type", "content-length", "date"];
        assert_eq!(names(&answer.headers), expected);
    }
}

#[tokio::test]
async fn hop_by_hop_headers_of_a_request_are_removed() {
    for upstream in [H1, H2] {
        let fixture = ApiServerFixture::new(upstream, echo).await;
        let mut client = fixture.h1().await;
        let head = "GET /api HTTP/1.1\r\nHost: k\r\nConnection: X-Listed, keep-alive\r\n\
            Connection: x-also\r\nX-Listed: 1\r\nX-ALSO: 1\r\nKeep-Alive: timeout=5\r\n\
            Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\n\
            TE: gzip, trailers\r\nHTTP2-Settings: AA\r\nX-Kept: 1\r\n\r\n";
        client.send(head).await.unwrap();
        assert_eq!(
            with_timeout(client.read_response()).await.unwrap().status,
            200
        );

        let recorded = fixture.only_request();
        let names = names(&recorded.headers);
        for gone in [
            "connection",
            "x-listed",
            "x-also",
            "keep-alive",
            "proxy-connection",
            "proxy-authorization",
            "http2-settings",
            "transfer-encoding",
        ] {
            assert!(!names.contains(&gone.to_owned()), "{gone}: {names:?}");
        }
        assert_eq!(recorded.all("te"), ["trailers"]);
        assert_eq!(recorded.all("x-kept"), ["1"]);
    }
}

#[tokio::test]
async fn hop_by_hop_headers_of_a_response_are_removed() {
    let fixture = ApiServerFixture::new(H1, |_| {
        Reply::json("{}")
            .header("Connection", "X-Listed")
            .header("X-Listed", "1")
            .header("Keep-Alive", "timeout=5")
            .header("Proxy-Authenticate", "Basic")
            .header("Proxy-Connection", "keep-alive")
            .header("Upgrade", "h2c")
            .header("X-Kept", "1")
    })
    .await;
    for proto in [H1, H2] {
        let answer = fixture.client(proto).await.get("/api").await;
        assert_eq!(
            names(&answer.headers),
            ["content-type", "x-kept", "content-length", "date"]
        );
    }
}

#[tokio::test]
async fn upstream_gets_the_client_address_the_host_and_the_scheme() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, echo).await;
        let builder = request("GET", "/api")
            .header("x-forwarded-for", "192.0.2.1")
            .header("x-forwarded-for", "192.0.2.2")
            .header("x-forwarded-host", "forged")
            .header("x-forwarded-proto", "http");
        fixture.client(client).await.request(builder, "").await;
        let recorded = fixture.only_request();
        let chain = recorded.all("x-forwarded-for");
        assert_eq!(chain, ["192.0.2.1, 192.0.2.2, 127.0.0.1"]);
        assert_eq!(recorded.all("x-forwarded-host"), ["k"]);
        assert_eq!(recorded.all("x-forwarded-proto"), ["https"]);
    }
}

#[tokio::test]
async fn a_request_that_has_passed_this_bridge_before_is_rejected_as_a_loop() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, echo).await;
        let mut requests = fixture.client(client).await;
        let builder = request("GET", "/api").header("via", "1.0 fred");
        assert_eq!(requests.request(builder, "").await.status, 200);
        let recorded = fixture.only_request();
        let [fred, own] = recorded.all("via")[..] else {
            panic!("{:?}", recorded.all("via"))
        };
        assert_eq!(fred, "1.0 fred");
        let version = if client == H2 { "2 " } else { "1.1 " };
        assert!(own.starts_with(version), "{own}");

        for looped in [own.to_owned(), format!("1.0 fred, {own}, 1.1 other")] {
            let builder = request("GET", "/api").header("via", looped);
            assert_status(&requests.request(builder, "").await, 508);
        }
        let builder = request("GET", "/api").header("via", "1.1 skewbridge-0");
        assert_eq!(requests.request(builder, "").await.status, 200);
        assert_eq!(fixture.upstream.requests().len(), 2);
    }
}

#[tokio::test]
async fn request_headers_below_one_mebibyte_are_forwarded() {
    let one_field = vec![("x-large".to_owned(), "p".repeat(LARGE_HEADER_BYTES))];
    let fields = [padding(LARGE_HEADER_BYTES), one_field];
    for (client, upstream) in COMBINATIONS {
        for fields in &fields {
            let fixture = ApiServerFixture::new(upstream, echo).await;
            let builder = fields
                .iter()
                .fold(request("GET", "/api"), |builder, (name, value)| {
                    builder.header(name, value)
                });
            let answer = fixture.client(client).await.request(builder, "").await;
            assert_eq!(answer.status, 200);
            let recorded = fixture.only_request();
            for (name, value) in fields {
                assert!(recorded.header(name) == Some(value.as_str()), "{name}");
            }
        }
    }
}

#[tokio::test]
async fn request_headers_above_one_mebibyte_are_rejected() {
    let fixture = ApiServerFixture::new(H1, echo).await;
    let large = || {
        padding(TOO_LARGE_HEADER_BYTES)
            .iter()
            .fold(request("GET", "/api"), |builder, (name, value)| {
                builder.header(name, value)
            })
    };
    let mut h1 = fixture.client(H1).await;
    assert_status(&h1.request(large(), "").await, 431);

    let h2 = fixture.h2().await;
    let refused = with_timeout(h2.request(large().body(()).unwrap(), "")).await;
    assert_eq!(refused.unwrap().status, 431);
    // The connection and its other streams are not affected.
    assert_eq!(with_timeout(h2.get("/api")).await.unwrap().status, 200);
    assert_eq!(fixture.only_request().target, "/api");
}

#[tokio::test]
async fn large_response_headers_are_forwarded() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |_| {
            padding(600 << 10)
                .iter()
                .fold(Reply::json("{}"), |reply, (name, value)| {
                    reply.header(name, value)
                })
        })
        .await;
        let answer = fixture.client(client).await.get("/api").await;
        assert_eq!((answer.status, answer.text()), (200, "{}".to_owned()));
        for (name, value) in padding(600 << 10) {
            assert_eq!(answer.header(&name), Some(value.as_str()));
        }
    }
}

#[tokio::test]
async fn cookie_crumbs_are_joined_for_http1() {
    let fixture = ApiServerFixture::new(H1, echo).await;
    let builder = request("GET", "/api")
        .header("cookie", "a=1")
        .header("x-between", "1")
        .header("cookie", "b=2")
        .header("cookie", "c=3");
    fixture.client(H2).await.request(builder, "").await;
    assert_eq!(fixture.only_request().all("cookie"), ["a=1; b=2; c=3"]);
}

#[tokio::test]
async fn the_host_of_an_absolute_target_is_used() {
    for upstream in [H1, H2] {
        let fixture = ApiServerFixture::new(upstream, echo).await;
        let mut client = fixture.h1().await;
        let head = "GET https://named:6443/api/v1?a=%2F HTTP/1.1\r\nHost: other\r\n\r\n";
        client.send(head).await.unwrap();
        assert_eq!(
            with_timeout(client.read_response()).await.unwrap().status,
            200
        );
        let recorded = fixture.only_request();
        assert_eq!(recorded.target, "/api/v1?a=%2F");
        assert_eq!(recorded.authority.as_deref(), Some("named:6443"));
        assert_eq!(recorded.all("x-forwarded-host"), ["named:6443"]);
    }
}

#[tokio::test]
async fn the_bytes_of_a_request_target_are_not_changed() {
    let target = "/api/v1/namespaces/a%2Fb/pods/%e2%82%ac;x=1//y/.?fieldSelector=a%3Db&x=%20+&&";
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, echo).await;
        fixture.client(client).await.get(target).await;
        assert_eq!(fixture.only_request().target, target);
    }
}

#[tokio::test]
async fn an_http_1_0_client_gets_a_response_delimited_by_close() {
    for upstream in [H1, H2] {
        let (fixture, mut bodies) = ApiServerFixture::streaming(upstream).await;
        let mut client = fixture.h1().await;
        client.send("GET /api HTTP/1.0\r\n\r\n").await.unwrap();
        let body = with_timeout(bodies.recv()).await.unwrap();
        body.send("one ").await.unwrap();
        body.send("two").await.unwrap();
        body.finish().await.unwrap();
        let answer = read_until_close(client).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
        assert!(head.contains("Connection: close"), "{head}");
        assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
        assert_eq!(body, "one two");
        assert!(fixture.only_request().authority.is_some());
    }
}

#[tokio::test]
async fn an_http_1_0_client_may_keep_its_connection_alive() {
    let fixture = ApiServerFixture::new(H1, |_| Reply::json("{}")).await;
    let mut client = fixture.h1().await;
    let builder = |connection| format!("GET /api HTTP/1.0\r\nHost: k\r\n{connection}\r\n");
    let kept = builder("Connection: keep-alive\r\n");
    client.send([kept, builder("")].concat()).await.unwrap();
    let answers = read_until_close(client).await;
    let answers: Vec<_> = answers.split_inclusive("{}").collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(answers[0].contains("Connection: keep-alive\r\n"));
    assert!(answers[1].contains("Connection: close\r\n"));
}

#[tokio::test]
async fn connection_close_of_the_client_is_honoured_after_the_response() {
    let fixture = ApiServerFixture::new(H1, |_| Reply::json("{}")).await;
    let mut client = fixture.h1().await;
    let head = "GET /api HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n";
    client.send(head).await.unwrap();
    let answer = with_timeout(client.read_response()).await.unwrap();
    assert_eq!(answer.header("connection"), Some("close"));
    with_timeout(client.read_close()).await.unwrap();
}

#[tokio::test]
async fn a_response_to_head_keeps_its_content_length() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |recorded| match recorded.method.as_str() {
            "HEAD" => Reply::new(200).header("Content-Length", "12345"),
            _ => Reply::json("{}"),
        })
        .await;
        let mut client = fixture.client(client).await;
        let answer = client.request(request("HEAD", "/api"), "").await;
        assert_eq!(answer.status, 200);
        assert_eq!(all_values(&answer, "content-length"), ["12345"]);
        assert!(answer.body.is_empty());
        assert_eq!(client.get("/api").await.text(), "{}");
    }
}

#[tokio::test]
async fn responses_without_a_body_leave_the_connection_usable() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, |recorded| match recorded.path() {
            "/204" => Reply::new(204).header("X-Kept", "1"),
            "/304" => Reply::new(304).header("ETag", "\"1\""),
            "/empty" => Reply::new(200),
            _ => Reply::json("{}"),
        })
        .await;
        let mut client = fixture.client(client).await;
        for (path, status) in [("/204", 204), ("/304", 304), ("/empty", 200)] {
            let answer = client.get(path).await;
            assert_eq!(answer.status, status);
            assert!(answer.body.is_empty());
            if status != 200 {
                assert_eq!(all_values(&answer, "content-length"), [""; 0], "{path}");
                assert_eq!(all_values(&answer, "transfer-encoding"), [""; 0], "{path}");
            }
            assert_eq!(client.get("/api").await.text(), "{}");
        }
        assert_eq!(fixture.upstream.connections(), 1);
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    for upstream in [H1, H2] {
        let fixture =
            ApiServerFixture::new(upstream, |recorded| Reply::json(recorded.target)).await;
        let mut client = fixture.h1().await;
        let with_body = "POST /body HTTP/1.1\r\nHost: k\r\nContent-Length: 3\r\n\r\nabc";
        let chunked = "POST /chunked HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n\
            3\r\nabc\r\n0\r\n\r\n";
        let plain = |at| format!("GET /{at} HTTP/1.1\r\nHost: k\r\n\r\n");
        let all: String = (0..20).map(plain).collect();
        client
            .send([with_body, chunked, &all].concat())
            .await
            .unwrap();
        let expected = ["/body".to_owned(), "/chunked".to_owned()];
        for target in expected
            .into_iter()
            .chain((0..20).map(|at| format!("/{at}")))
        {
            let answer = with_timeout(client.read_response()).await.unwrap();
            assert_eq!((answer.status, answer.text()), (200, target));
        }
    }
}

#[tokio::test]
async fn a_request_head_that_arrives_byte_by_byte_is_read() {
    let fixture = ApiServerFixture::new(H1, echo).await;
    let mut client = fixture.h1().await;
    for byte in "\r\nPOST /api HTTP/1.1\r\nHost: k\r\nContent-Length: 2\r\n\r\nok".bytes() {
        client.send([byte]).await.unwrap();
    }
    assert_eq!(
        with_timeout(client.read_response()).await.unwrap().text(),
        "ok"
    );
}

#[tokio::test]
async fn an_upstream_connection_is_reused() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ApiServerFixture::new(upstream, echo).await;
        let mut requests = fixture.client(client).await;
        for _ in 0..5 {
            assert_eq!(requests.post("/api", "x").await.text(), "x");
        }
        if let Client::H2(client) = &requests {
            assert!(!client.is_closed());
        }
        assert_eq!(fixture.upstream.connections(), 1);
    }
}

/// RFC 9110, 6.6.1.
#[tokio::test]
async fn a_response_without_a_date_gets_one_and_an_existing_date_is_kept() {
    const OLD_DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let pki = PkiFixture::new();
    let options = Options::new(pki.upstream.clone());
    let upstream = ApiServer::start(options, |recorded| match recorded.path() {
        "/dated" => Reply::json("{}").header("date", OLD_DATE),
        _ => Reply::json("{}"),
    })
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let mut h1 = pki.client().http1(bridge.address()).await.unwrap();
    let h2 = pki.client().http2(bridge.address()).await.unwrap();
    for (path, is_old) in [("/dated", true), ("/undated", false)] {
        h1.send(format!("GET {path} HTTP/1.1\r\nHost: k\r\n\r\n"))
            .await
            .unwrap();
        let answers = [
            h1.read_response().await.unwrap(),
            h2.get(path).await.unwrap(),
        ];
        for answer in answers {
            let date = answer.header("date").expect("a date");
            assert!(date.ends_with(" GMT"), "{date}");
            assert_eq!(date == OLD_DATE, is_old, "{path}");
        }
    }
}
