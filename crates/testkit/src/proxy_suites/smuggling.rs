//! Ambiguous requests are rejected or forwarded with exactly one meaning. One request never becomes
//! two.

use tokio::io::AsyncWriteExt;

use super::{ApiProxy, ProxyFixture, assert_json_status};
use crate::h2frames::{self, flag, kind};
use crate::protocols::Proto::{self, H1, H2};
use crate::upstream::Body;
use crate::{ApiServer, H1Client, RecordedRequest, Reply};

/// A second request on the connection of a client that has sent another before.
const NEXT_REQUEST: &str = "GET /next HTTP/1.1\r\nHost: k\r\n\r\n";

async fn start<P: ProxyFixture>(upstream: Proto) -> ApiProxy<P> {
    ApiProxy::new(upstream, |_| Reply::json("{}")).await
}

async fn connect<P: ProxyFixture>(proxy: &ApiProxy<P>) -> H1Client {
    let client = proxy.fixture.client();
    client.http1(proxy.fixture.address()).await.unwrap()
}

/// The requests that upstream has received completely.
fn received_requests(upstream: &ApiServer, after: usize) -> Vec<(String, String)> {
    let whole = |recorded: &RecordedRequest| recorded.body_state == Body::Complete;
    let text = |recorded: RecordedRequest| {
        let body = String::from_utf8_lossy(&recorded.body).into_owned();
        (format!("{} {}", recorded.method, recorded.target), body)
    };
    let new = upstream.requests().into_iter().skip(after);
    new.filter(whole).map(text).collect()
}

/// Heads that a server has to answer with 400, with a second request behind each. The connection
/// has to end then.
#[allow(clippy::too_many_lines)] // a table
pub fn malformed_heads() -> Vec<(&'static str, String)> {
    let long = format!("Content-Length: {}\r\n", "9".repeat(40));
    let post = |fields: &str| {
        format!("POST /x HTTP/1.1\r\nHost: k\r\n{fields}\r\n0\r\n\r\n{NEXT_REQUEST}")
    };
    vec![
        (
            "CL and TE",
            post("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        ),
        (
            "TE and CL",
            post("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
        ),
        (
            "CL twice, the same",
            post("Content-Length: 5\r\nContent-Length: 5\r\n"),
        ),
        (
            "CL twice, different",
            post("Content-Length: 5\r\nContent-Length: 0\r\n"),
        ),
        ("CL as a list", post("Content-Length: 5, 5\r\n")),
        ("CL negative", post("Content-Length: -5\r\n")),
        ("CL with a plus", post("Content-Length: +5\r\n")),
        ("CL in hexadecimal", post("Content-Length: 0x5\r\n")),
        ("CL with a fraction", post("Content-Length: 5.0\r\n")),
        ("CL empty", post("Content-Length:\r\n")),
        ("CL huge", post(&long)),
        (
            "TE chunked, identity",
            post("Transfer-Encoding: chunked, identity\r\n"),
        ),
        ("TE identity", post("Transfer-Encoding: identity\r\n")),
        (
            "TE twice",
            post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ),
        ("TE xchunked", post("Transfer-Encoding: xchunked\r\n")),
        ("TE quoted", post("Transfer-Encoding: \"chunked\"\r\n")),
        (
            "TE with a vertical tab",
            post("Transfer-Encoding: \x0bchunked\r\n"),
        ),
        (
            "a space before the colon",
            post("Transfer-Encoding : chunked\r\n"),
        ),
        ("a tab before the colon", post("Content-Length\t: 5\r\n")),
        ("a folded line", post("X: a\r\n b\r\n")),
        ("TE folded", post("Transfer-Encoding:\r\n chunked\r\n")),
        (
            "a folded first header",
            format!("GET / HTTP/1.1\r\n Host: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        ("a header without a colon", post("X\r\n")),
        ("a header without a name", post(": x\r\n")),
        ("a name with a control byte", post("X\x01: x\r\n")),
        ("NUL in a value", post("X: a\0b\r\n")),
        ("NUL in a name", post("X\0: a\r\n")),
        (
            "NUL in the target",
            format!("GET /\0 HTTP/1.1\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "CR in a value",
            post("X: a\rTransfer-Encoding: chunked\r\n"),
        ),
        ("a bare LF between headers", post("X: a\nY: b\r\n")),
        (
            "a bare LF before TE",
            post("X: a\nTransfer-Encoding: chunked\r\n"),
        ),
        (
            "a bare LF after the request line",
            format!("GET / HTTP/1.1\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "a bare LF for a blank line",
            format!("GET / HTTP/1.1\r\nHost: k\r\n\n{NEXT_REQUEST}"),
        ),
        (
            "bare LFs alone",
            format!("GET / HTTP/1.1\nHost: k\n\n{NEXT_REQUEST}"),
        ),
        ("no Host", format!("GET / HTTP/1.1\r\n\r\n{NEXT_REQUEST}")),
        (
            "Host twice",
            format!("GET / HTTP/1.1\r\nHost: k\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "HTTP/1.0 with TE",
            format!("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{NEXT_REQUEST}"),
        ),
        ("HTTP/0.9", format!("GET /\r\n\r\n{NEXT_REQUEST}")),
        (
            "HTTP/1.2",
            format!("GET / HTTP/1.2\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "HTTP/2's preface",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        ),
        (
            "no target",
            format!("GET HTTP/1.1\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "two spaces before the target",
            format!("GET  / HTTP/1.1\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "two spaces after the target",
            format!("GET /  HTTP/1.1\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "a space in the target",
            format!("GET /a /b HTTP/1.1\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "a tab in the request line",
            format!("GET\t/ HTTP/1.1\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "a space before the method",
            format!(" GET / HTTP/1.1\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
        (
            "a colon in the method",
            format!("GE:T / HTTP/1.1\r\nHost: k\r\n\r\n{NEXT_REQUEST}"),
        ),
    ]
}

/// Malformed heads are rejected and nothing after them is read.
pub async fn malformed_heads_are_rejected_and_nothing_after_them_is_read<P: ProxyFixture>() {
    let proxy = start::<P>(H1).await;
    let upstream = &proxy.upstream;
    for (name, sent) in malformed_heads() {
        println!("{name}");
        let mut client = connect(&proxy).await;
        client.send(sent).await.unwrap();
        let response = client.read_response().await.unwrap();
        assert_json_status(&response, 400);
        assert_eq!(response.header("connection"), Some("close"), "{name}");
        client.read_close().await.unwrap();
        assert_eq!(upstream.requests().len(), 0, "{name}");
    }
}

/// Malformed chunks are rejected and never look complete.
#[allow(clippy::too_many_lines)] // a table
pub async fn malformed_chunks_are_rejected_and_never_look_complete<P: ProxyFixture>() {
    let rows: &[(&str, &[u8])] = &[
        ("0x before the size", b"0x5\r\nhello\r\n0\r\n\r\n"),
        ("a plus before the size", b"+5\r\nhello\r\n0\r\n\r\n"),
        ("a minus before the size", b"-5\r\nhello\r\n0\r\n\r\n"),
        ("a space before the size", b" 5\r\nhello\r\n0\r\n\r\n"),
        ("a line before the size", b"\r\n5\r\nhello\r\n0\r\n\r\n"),
        ("no size", b";a=b\r\nhello\r\n0\r\n\r\n"),
        ("a size that is not a number", b"five\r\nhello\r\n0\r\n\r\n"),
        ("a size with an underscore", b"0_5\r\nhello\r\n0\r\n\r\n"),
        ("2^64", b"10000000000000000\r\nhello\r\n0\r\n\r\n"),
        ("2^64 + 5", b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
        ("2^63", b"8000000000000000\r\nhello\r\n0\r\n\r\n"),
        ("a bare LF after the size", b"5\nhello\r\n0\r\n\r\n"),
        ("a bare CR after the size", b"5\rhello\r\n0\r\n\r\n"),
        ("a bare LF in an extension", b"5;a\nb\r\nhello\r\n0\r\n\r\n"),
        ("a bare CR in an extension", b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
        ("NUL in an extension", b"5;a\0b\r\nhello\r\n0\r\n\r\n"),
        ("a chunk longer than its size", b"4\r\nhello\r\n0\r\n\r\n"),
        ("a bare LF after a chunk", b"5\r\nhello\n0\r\n\r\n"),
        ("no CRLF after a chunk", b"5\r\nhello0\r\n\r\n"),
        ("a bare LF after the last size", b"5\r\nhello\r\n0\n\r\n"),
        ("a malformed trailer", b"5\r\nhello\r\n0\r\nX\r\n\r\n"),
        ("a folded trailer", b"5\r\nhello\r\n0\r\nX: a\r\n b\r\n\r\n"),
        (
            "a bare LF in the trailers",
            b"5\r\nhello\r\n0\r\nX: a\n\r\n",
        ),
    ];
    let proxy = start::<P>(H1).await;
    let upstream = &proxy.upstream;
    for (name, body) in rows {
        println!("{name}");
        let before = upstream.requests().len();
        let mut client = connect(&proxy).await;
        let head = b"POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n";
        client
            .send([head, *body, NEXT_REQUEST.as_bytes()].concat())
            .await
            .unwrap();
        assert_json_status(&client.read_response().await.unwrap(), 400);
        client.read_close().await.unwrap();
        assert!(upstream.requests().len() <= before + 1, "{name}");
        assert_eq!(received_requests(upstream, before), [], "{name}");
    }
}

/// Unambiguous requests are forwarded once in their meaning.
#[allow(clippy::too_many_lines)] // a table
pub async fn unambiguous_requests_are_forwarded_once_in_their_meaning<P: ProxyFixture>() {
    let method = "M".repeat(3000);
    let rows: Vec<(&str, String, &str, &str)> = vec![
        (
            "GET with a body",
            "GET /x HTTP/1.1\r\nHost: k\r\nContent-Length: 5\r\n\r\nhello".into(),
            "GET /x",
            "hello",
        ),
        (
            "a body that looks like a request",
            format!(
                "POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: {}\r\n\r\n{NEXT_REQUEST}",
                NEXT_REQUEST.len()
            ),
            "POST /x",
            NEXT_REQUEST,
        ),
        (
            "chunks, extensions and a space after the size",
            "POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: Chunked\r\n\r\n\
             3;a=\"b;c\"\r\nhel\r\n02 \r\nlo\r\n0\r\n\r\n"
                .into(),
            "POST /x",
            "hello",
        ),
        (
            "TE that is listed in Connection",
            "POST /x HTTP/1.1\r\nHost: k\r\nConnection: transfer-encoding, keep-alive\r\n\
             Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
                .into(),
            "POST /x",
            "hello",
        ),
        (
            "an empty line before the request",
            "\r\nGET /x HTTP/1.1\r\nHost: k\r\n\r\n".into(),
            "GET /x",
            "",
        ),
        (
            "an empty Host",
            "GET /x HTTP/1.1\r\nHost:\r\n\r\n".into(),
            "GET /x",
            "",
        ),
        (
            "a long method",
            format!("{method} /x HTTP/1.1\r\nHost: k\r\n\r\n"),
            &format!("{method} /x").leak()[..],
            "",
        ),
        (
            "absolute-form",
            "GET https://k/x?y HTTP/1.1\r\nHost: k\r\n\r\n".into(),
            "GET /x?y",
            "",
        ),
        (
            "asterisk-form",
            "OPTIONS * HTTP/1.1\r\nHost: k\r\n\r\n".into(),
            "OPTIONS *",
            "",
        ),
        (
            "a path that looks like an authority",
            "GET //evil/x HTTP/1.1\r\nHost: k\r\n\r\n".into(),
            "GET //evil/x",
            "",
        ),
    ];
    let proxy = start::<P>(H1).await;
    let upstream = &proxy.upstream;
    for (name, sent, line, body) in rows {
        println!("{name}");
        let before = upstream.requests().len();
        let mut client = connect(&proxy).await;
        client.send(sent).await.unwrap();
        assert_eq!(client.read_response().await.unwrap().status, 200, "{name}");
        // The next request is parsed from its first byte.
        client.send(NEXT_REQUEST).await.unwrap();
        assert_eq!(client.read_response().await.unwrap().status, 200, "{name}");
        let expected = [(line, body), ("GET /next", "")];
        let expected = expected.map(|(line, body)| (line.to_owned(), body.to_owned()));
        assert_eq!(received_requests(upstream, before), expected, "{name}");
    }
}

/// Bytes after a body must be a valid request.
#[allow(clippy::too_many_lines)] // a table
pub async fn bytes_after_a_body_must_be_a_valid_request<P: ProxyFixture>() {
    let proxy = start::<P>(H1).await;
    let upstream = &proxy.upstream;
    let mut client = connect(&proxy).await;
    client
        .send(
            "POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n\
             5\r\nhello\r\n0\r\n\r\nX: garbage\r\n\r\n",
        )
        .await
        .unwrap();
    assert_eq!(client.read_response().await.unwrap().status, 200);
    assert_json_status(&client.read_response().await.unwrap(), 400);
    client.read_close().await.unwrap();
    let expected = ("POST /x".to_owned(), "hello".to_owned());
    assert_eq!(received_requests(upstream, 0), [expected]);
}

/// Bytes after connect are not a request.
#[allow(clippy::too_many_lines)] // a table
pub async fn bytes_after_connect_are_not_a_request<P: ProxyFixture>() {
    let proxy = start::<P>(H1).await;
    let upstream = &proxy.upstream;
    let mut client = connect(&proxy).await;
    let connect = "CONNECT k:443 HTTP/1.1\r\nHost: k:443\r\n\r\n";
    client
        .send(format!("{connect}{NEXT_REQUEST}"))
        .await
        .unwrap();
    assert_json_status(&client.read_response().await.unwrap(), 405);
    client.read_close().await.unwrap();
    assert_eq!(upstream.requests().len(), 0);
}

/// Header fields as sent in frames, pseudo-headers included.
type Fields = Vec<(&'static str, &'static str)>;

/// The outcome of an HTTP/2 request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum H2Outcome {
    /// The stream is reset, or the connection closed.
    Reset,
    /// Answered with a Status of 400.
    Refused,
    /// Forwarded.
    Passed,
}

/// Http2 requests that http1 would misread are rejected.
#[allow(clippy::too_many_lines)] // a table
pub async fn http2_requests_that_http1_would_misread_are_rejected<P: ProxyFixture>() {
    const PLAIN_REQUEST: [(&str, &str); 4] = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "k"),
        (":path", "/x"),
    ];
    let with = |fields: &[(&'static str, &'static str)]| [&PLAIN_REQUEST[..], fields].concat();
    let but = |name: &str, value: &'static str| {
        PLAIN_REQUEST.map(|(it, old)| (it, if it == name { value } else { old }))
    };
    let without = |name: &str| -> Vec<_> {
        PLAIN_REQUEST
            .into_iter()
            .filter(|it| it.0 != name)
            .collect()
    };
    #[rustfmt::skip]
    let rows: Vec<(&str, Fields, Option<&str>, H2Outcome)> = vec![
        ("plain", with(&[]), None, H2Outcome::Passed),
        ("a body", with(&[("content-length", "5")]), Some("hello"), H2Outcome::Passed),
        ("TE trailers", with(&[("te", "trailers")]), None, H2Outcome::Passed),
        ("the same Host", with(&[("host", "k")]), None, H2Outcome::Passed),
        ("Connection", with(&[("connection", "close")]), None, H2Outcome::Reset),
        ("Keep-Alive", with(&[("keep-alive", "x")]), None, H2Outcome::Reset),
        ("Proxy-Connection", with(&[("proxy-connection", "x")]), None, H2Outcome::Reset),
        ("Upgrade", with(&[("upgrade", "websocket")]), None, H2Outcome::Reset),
        ("Transfer-Encoding", with(&[("transfer-encoding", "chunked")]), Some("0\r\n\r\n"), H2Outcome::Reset),
        ("TE gzip", with(&[("te", "gzip")]), None, H2Outcome::Reset),
        ("another Host", with(&[("host", "evil")]), None, H2Outcome::Refused),
        ("Host twice", with(&[("host", "k"), ("host", "k")]), None, H2Outcome::Refused),
        ("no authority", without(":authority"), None, H2Outcome::Refused),
        ("CL longer than the body", with(&[("content-length", "9")]), Some("hello"), H2Outcome::Reset),
        ("CL shorter than the body", with(&[("content-length", "3")]), Some("hello"), H2Outcome::Reset),
        ("CL without a body", with(&[("content-length", "5")]), None, H2Outcome::Reset),
        ("CL with a plus sign", with(&[("content-length", "+5")]), Some("hello"), H2Outcome::Reset),
        ("CL twice, the same", with(&[("content-length", "5"), ("content-length", "5")]), Some("hello"), H2Outcome::Refused),
        ("CL twice, different", with(&[("content-length", "5"), ("content-length", "50")]), Some("hello"), H2Outcome::Reset),
        ("CL empty", with(&[("content-length", "")]), None, H2Outcome::Refused),
        ("an upper-case name", with(&[("X-Upper", "1")]), None, H2Outcome::Reset),
        ("a name with a space", with(&[("x y", "1")]), None, H2Outcome::Reset),
        ("a name with a colon", with(&[("x:y", "1")]), None, H2Outcome::Reset),
        ("an empty name", with(&[("", "1")]), None, H2Outcome::Reset),
        ("CRLF in a name", with(&[("x: 1\r\ny", "1")]), None, H2Outcome::Reset),
        ("CRLF in a value", with(&[("x", "1\r\ncontent-length: 9")]), None, H2Outcome::Reset),
        ("LF in a value", with(&[("x", "1\ny: 2")]), None, H2Outcome::Reset),
        ("NUL in a value", with(&[("x", "a\0b")]), None, H2Outcome::Reset),
        ("CRLF in the path", but(":path", "/x HTTP/1.1\r\nhost: evil\r\n\r\n").to_vec(), None, H2Outcome::Reset),
        ("a space in the path", but(":path", "/x HTTP/1.1").to_vec(), None, H2Outcome::Reset),
        ("an empty path", but(":path", "").to_vec(), None, H2Outcome::Reset),
        ("a path without a slash", but(":path", "x").to_vec(), None, H2Outcome::Reset),
        ("a URL for a path", but(":path", "https://evil/x").to_vec(), None, H2Outcome::Reset),
        ("CRLF in the method", but(":method", "GET /x HTTP/1.1\r\nx: ").to_vec(), None, H2Outcome::Reset),
        ("a space in the method", but(":method", "GET /").to_vec(), None, H2Outcome::Reset),
        ("CRLF in the authority", but(":authority", "k\r\nx: 1").to_vec(), None, H2Outcome::Reset),
        ("a path in the authority", but(":authority", "k/y").to_vec(), None, H2Outcome::Reset),
        ("CRLF in the scheme", but(":scheme", "https\r\nx: 1").to_vec(), None, H2Outcome::Reset),
        ("no method", without(":method"), None, H2Outcome::Reset),
        ("no path", without(":path"), None, H2Outcome::Reset),
        ("no scheme", without(":scheme"), None, H2Outcome::Reset),
        ("two paths", with(&[(":path", "/y")]), None, H2Outcome::Reset),
        ("two methods", with(&[(":method", "GET")]), None, H2Outcome::Reset),
        ("an unknown pseudo-header", with(&[(":x", "1")]), None, H2Outcome::Reset),
        (":status in a request", with(&[(":status", "200")]), None, H2Outcome::Reset),
        ("a pseudo-header behind a header", [&[("x", "1")][..], &PLAIN_REQUEST[..]].concat(), None, H2Outcome::Reset),
    ];
    for proto in [H1, H2] {
        let proxy = start::<P>(proto).await;
        let upstream = &proxy.upstream;
        for (name, fields, body, expected) in &rows {
            println!("{proto:?}: {name}");
            let before = upstream.requests().len();
            let outcome = send_request(&proxy, fields, *body).await;
            assert_eq!(outcome, *expected, "{proto:?}: {name}");
            assert!(upstream.requests().len() <= before + 1, "{proto:?}: {name}");
            let got = received_requests(upstream, before);
            match expected {
                H2Outcome::Passed => {
                    let body = body.unwrap_or_default().to_owned();
                    assert_eq!(got, [("POST /x".to_owned(), body)], "{proto:?}: {name}");
                }
                H2Outcome::Reset | H2Outcome::Refused => assert_eq!(got, [], "{proto:?}: {name}"),
            }
        }
    }
}

/// Sends a request as raw frames and returns its outcome.
async fn send_request<P: ProxyFixture>(
    proxy: &ApiProxy<P>,
    fields: &[(&str, &str)],
    body: Option<&str>,
) -> H2Outcome {
    let mut io = proxy.raw_h2().await;
    let block: Vec<u8> = fields
        .iter()
        .flat_map(|(name, value)| h2frames::literal(name, value))
        .collect();
    let mut frames = match body {
        None => h2frames::headers(1, flag::END_HEADERS | flag::END_STREAM, &block),
        Some(_) => h2frames::headers(1, flag::END_HEADERS, &block),
    };
    if let Some(body) = body {
        frames.extend(h2frames::data(1, flag::END_STREAM, body.as_bytes()));
    }
    io.write_all(&frames).await.unwrap();
    io.flush().await.unwrap();
    let mut answer = Vec::new();
    loop {
        let Ok(frame) = h2frames::read_frame(&mut io).await else {
            return H2Outcome::Reset;
        };
        match frame.header.kind {
            kind::RST_STREAM | kind::GOAWAY => return H2Outcome::Reset,
            kind::DATA => {
                answer.extend_from_slice(&frame.payload);
                if frame.header.has(flag::END_STREAM) {
                    break;
                }
            }
            _ => {}
        }
    }
    let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
    match answer["code"].as_u64() {
        None => H2Outcome::Passed,
        Some(400) => H2Outcome::Refused,
        Some(_) => panic!("{answer}"),
    }
}
