//! Limits on what a client, or a server, may send.

use http::Request;
use tokio::io::AsyncWriteExt;

use super::{ApiProxy, ProxyFixture, ScriptedProxy, assert_json_status};
use crate::h2frames::{self, Frame, code, flag, kind};
use crate::protocols::Proto::{H1, H2};
use crate::protocols::{assert_status, with_timeout};
use crate::{Connection, Reply, TEST_TIMEOUT};

const COMPLETE_REQUEST: u8 = flag::END_HEADERS | flag::END_STREAM;

/// A server that answers all requests but those to `/held`.
async fn start<P: ProxyFixture>() -> ApiProxy<P> {
    let held = std::sync::Arc::new(tokio::sync::Notify::new());
    ApiProxy::new(H2, move |recorded| match recorded.path() {
        "/held" => Reply::new(200).after(&held),
        _ => Reply::json("{}"),
    })
    .await
}

/// Asserts that other clients are served.
async fn assert_serves_others<P: ProxyFixture>(proxy: &ApiProxy<P>) {
    for proto in [H1, H2] {
        assert_eq!(proxy.client(proto).await.get("/api").await.status, 200);
    }
}

async fn write_flushed(io: &mut Connection, bytes: impl AsRef<[u8]>) {
    io.write_all(bytes.as_ref()).await.unwrap();
    io.flush().await.unwrap();
}

/// Reads to the end of the connection, whether it is clean or not.
async fn frames_to_end(io: &mut Connection) -> Vec<Frame> {
    let mut frames = Vec::new();
    let reading = async {
        while let Ok(frame) = h2frames::read_frame(io).await {
            frames.push(frame);
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading)
        .await
        .expect("the connection is still open");
    frames
}

fn goaways(frames: &[Frame]) -> Vec<u32> {
    let mut goaways = frames.to_vec();
    goaways.retain(|frame| frame.header.kind == kind::GOAWAY);
    goaways.iter().filter_map(Frame::error_code).collect()
}

fn get_block(path: &str) -> Vec<u8> {
    h2frames::request_block("GET", "k", path)
}

/// Oversized heads of HTTP/1.1 are 400, 414 or 431, and the connection ends.
pub async fn oversized_heads_are_414_or_431<P: ProxyFixture>() {
    let proxy = start::<P>().await;
    let large = "x".repeat(1 << 20);
    let many = "x: 1\r\n".repeat(9000);
    let rows = [
        (
            "not an HTTP request",
            400,
            "what is this\r\n\r\n".to_owned(),
        ),
        (
            "too large",
            431,
            format!("GET / HTTP/1.1\r\nHost: k\r\nX: {large}\r\n\r\n"),
        ),
        (
            "too large and incomplete",
            431,
            format!("GET / HTTP/1.1\r\nX: {large}"),
        ),
        (
            "a target that is too long",
            414,
            format!("GET /{} HTTP/1.1\r\nHost: k\r\n\r\n", &large[..70_000]),
        ),
        (
            "a target larger than a head",
            414,
            format!("GET /{large} HTTP/1.1\r\nHost: k\r\n\r\n"),
        ),
        (
            "too many headers",
            431,
            format!("GET / HTTP/1.1\r\nHost: k\r\n{many}\r\n"),
        ),
    ];
    for (name, code, sent) in rows {
        println!("{name}");
        let mut client = proxy
            .fixture
            .client()
            .http1(proxy.fixture.address())
            .await
            .unwrap();
        client.send(sent).await.unwrap();
        let response = with_timeout(client.read_response()).await.unwrap();
        assert_json_status(&response, code);
        assert_eq!(response.header("connection"), Some("close"));
        client.read_close().await.unwrap();
    }
    assert!(proxy.upstream.requests().is_empty());
}

/// A flood of resets closes the connection and does not reach upstream.
pub async fn a_flood_of_resets_closes_the_connection_and_does_not_reach_upstream<
    P: ProxyFixture,
>() {
    let proxy = start::<P>().await;
    let mut io = proxy.raw_h2().await;
    let block = get_block("/held");
    let flood: Vec<u8> = (0..2000)
        .flat_map(|at| {
            let stream = 2 * at + 1;
            let headers = h2frames::headers(stream, COMPLETE_REQUEST, &block);
            [headers, h2frames::rst_stream(stream, code::CANCEL)].concat()
        })
        .collect();
    // The proxy may close the connection before it has read all frames.
    let _ = io.write_all(&flood).await;
    let _ = io.flush().await;
    let frames = frames_to_end(&mut io).await;
    assert_eq!(goaways(&frames), [code::ENHANCE_YOUR_CALM]);
    assert_serves_others(&proxy).await;
    let reached = proxy.upstream.requests().len() - 2;
    assert!(
        reached <= 100,
        "{reached} requests of the flood reached upstream"
    );
}

/// A client that resets most of its streams is disconnected.
pub async fn a_client_that_resets_most_of_its_streams_is_disconnected<P: ProxyFixture>() {
    let proxy = start::<P>().await;
    let mut io = proxy.raw_h2().await;
    let block = get_block("/held");
    let mut stream = 1;
    let ended = 'flood: loop {
        let mut opened = Vec::new();
        for _ in 0..50 {
            opened.push(stream);
            if io
                .write_all(&h2frames::headers(stream, COMPLETE_REQUEST, &block))
                .await
                .is_err()
            {
                break 'flood Vec::new();
            }
            stream += 2;
        }
        // A PING behind them is answered once they have been read.
        let _ = io.write_all(&h2frames::ping(0, [1; 8])).await;
        let _ = io.flush().await;
        loop {
            match h2frames::read_frame(&mut io).await {
                Ok(frame) if frame.header.kind == kind::GOAWAY => break 'flood vec![frame],
                Ok(frame) if frame.header.kind == kind::PING => break,
                Ok(_) => {}
                Err(_) => break 'flood Vec::new(),
            }
        }
        for stream in opened {
            let _ = io
                .write_all(&h2frames::rst_stream(stream, code::CANCEL))
                .await;
        }
        assert!(stream < 10_000, "still served after thousands of resets");
    };
    // The client gets the reason, unless it was still sending and got a reset connection.
    let received = goaways(&ended);
    assert!(
        received.iter().all(|it| *it == code::ENHANCE_YOUR_CALM),
        "{received:?}"
    );
    assert_serves_others(&proxy).await;
}

/// A flood of continuation frames closes the connection.
pub async fn a_flood_of_continuation_frames_closes_the_connection<P: ProxyFixture>() {
    let proxy = start::<P>().await;
    for piece in [
        &b""[..],
        &h2frames::literal("x-filler", &"x".repeat(16_000)),
    ] {
        let mut io = proxy.raw_h2().await;
        let mut flood = h2frames::headers(1, flag::END_STREAM, &get_block("/api"));
        for _ in 0..2000 {
            flood.extend(h2frames::continuation(1, flag::NONE, piece));
        }
        let _ = io.write_all(&flood).await;
        let _ = io.flush().await;
        let frames = frames_to_end(&mut io).await;
        assert_eq!(goaways(&frames), [code::ENHANCE_YOUR_CALM]);
        assert_serves_others(&proxy).await;
    }
    assert_eq!(
        proxy.upstream.requests().len(),
        4,
        "only the requests of other clients arrived"
    );
}

/// A header list above one mebibyte is rejected.
pub async fn a_header_list_above_one_mebibyte_is_rejected<P: ProxyFixture>() {
    let proxy = start::<P>().await;
    let h2 = proxy.h2().await;
    let request = |fields: usize| {
        let value = "x".repeat(50_000);
        let mut request = Request::get("https://k/api");
        for at in 0..fields {
            request = request.header(format!("x-{at}"), &value);
        }
        request.body(()).unwrap()
    };
    let response = h2.request(request(20), "").await.unwrap();
    assert_eq!(response.status, 200, "a million bytes are below the limit");
    let response = h2.request(request(22), "").await.unwrap();
    assert_eq!(response.status, 431);
    assert_eq!(h2.get("/api").await.unwrap().status, 200);
    assert_eq!(proxy.upstream.requests().len(), 2);
}

/// Too many headers are 431 with a status.
pub async fn too_many_headers_are_431_with_a_status<P: ProxyFixture>() {
    let proxy = start::<P>().await;
    let mut io = proxy.raw_h2().await;
    let mut block = get_block("/api");
    for number in 0..9000 {
        block.extend(h2frames::literal(&format!("x-{number}"), ""));
    }
    let mut pieces = block.chunks(16_000).peekable();
    let first = pieces.next().unwrap();
    write_flushed(&mut io, h2frames::headers(1, flag::END_STREAM, first)).await;
    while let Some(piece) = pieces.next() {
        let last = if pieces.peek().is_none() {
            flag::END_HEADERS
        } else {
            0
        };
        write_flushed(&mut io, h2frames::continuation(1, last, piece)).await;
    }
    let body = h2frames::read_until(&mut io, kind::DATA).await.unwrap();
    let status: serde_json::Value = serde_json::from_slice(&body.payload).unwrap();
    assert_eq!(status["code"], 431);
    assert_serves_others(&proxy).await;
}

/// A server that sends interim responses without end is 502.
pub async fn a_server_that_sends_only_interim_responses_is_502<P: ProxyFixture>() {
    for client in [H1, H2] {
        let proxy = ScriptedProxy::<P>::new(H1, |mut conn| async move {
            conn.read_head().await;
            for _ in 0..1000 {
                let interim = b"HTTP/1.1 103 Early Hints\r\n\r\n";
                if conn.io.write_all(interim).await.is_err() || conn.io.flush().await.is_err() {
                    return;
                }
            }
            conn.stall().await;
        })
        .await;
        assert_status(&proxy.client(client).await.get("/").await, 502);
        assert_eq!(proxy.upstream.connections(), 1);
    }
}

/// A server that speaks another protocol than HTTP is 502 at its first byte.
pub async fn a_server_that_does_not_speak_http_is_502_at_once<P: ProxyFixture>() {
    for client in [H1, H2] {
        let proxy = ScriptedProxy::<P>::new(H1, |mut conn| async move {
            conn.read_head().await;
            conn.write("SSH-2.0-OpenSSH").await;
            conn.stall().await;
        })
        .await;
        assert_status(&proxy.client(client).await.get("/").await, 502);
    }
}
