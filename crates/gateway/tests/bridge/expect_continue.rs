//! `Expect: 100-continue` is between the client and upstream: the bridge asks for no body that
//! upstream has not asked for.

use skewbridge_testkit::h2frames::{self, flag, kind};
use skewbridge_testkit::{Connection, H1Client, Reply, ScriptedConn};
use tokio::io::AsyncWriteExt;

use crate::support::protocols::Proto::{self, H1, H2};
use crate::support::protocols::{ApiServerFixture, COMBINATIONS, ScriptedFixture, with_timeout};

const HEAD: &str =
    "POST / HTTP/1.1\r\nHost: k\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";

/// What a client was told, in order.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// Heads before the body was sent.
    before: usize,
    /// Whether the body was sent, because it was asked for.
    body_sent: bool,
    /// The text of the answer.
    answer: Vec<u8>,
}

/// A client that sends its body only if it is asked to.
async fn patient_client(connection: Connection, client: Proto) -> Told {
    match client {
        H1 => patient_h1(H1Client::over(connection)).await,
        H2 => patient_h2(connection).await,
    }
}

async fn patient_h1(mut client: H1Client) -> Told {
    client.send(HEAD).await.unwrap();
    let body_sent = client.read_head().await.unwrap().status == 100;
    if body_sent {
        client.send("body").await.unwrap();
        client.read_head().await.unwrap();
    }
    let mut answer = Vec::new();
    while let Some(chunk) = client.read_chunk().await.unwrap() {
        answer.extend(chunk);
    }
    Told {
        before: 1,
        body_sent,
        answer,
    }
}

async fn patient_h2(mut connection: Connection) -> Told {
    h2frames::open(&mut connection, &[]).await.unwrap();
    let block = [
        h2frames::request_block("POST", "k", "/"),
        h2frames::literal("expect", "100-continue"),
    ];
    let head = h2frames::headers(1, flag::END_HEADERS, &block.concat());
    connection.write_all(&head).await.unwrap();
    connection.flush().await.unwrap();

    let (mut heads, mut before, mut answer) = (0, 0, Vec::new());
    loop {
        let frame = h2frames::read_frame(&mut connection).await.unwrap();
        match frame.header.kind {
            kind::HEADERS => {
                heads += 1;
                // The stand-ins answer 401 and 200 with an indexed or literal status of their
                // own; only the interim head has nothing but `:status: 100` in it.
                if is_continue(&frame.payload) {
                    before = heads;
                    let body = h2frames::data(1, flag::END_STREAM, b"body");
                    connection.write_all(&body).await.unwrap();
                    connection.flush().await.unwrap();
                }
            }
            kind::DATA => answer.extend(frame.payload),
            _ => continue,
        }
        if frame.header.has(flag::END_STREAM) {
            return Told {
                before: before.max(1),
                body_sent: before > 0,
                answer,
            };
        }
    }
}

/// Whether a header block is `:status: 100` and no more: a literal whose name is one of the
/// static table (8 to 14), with the value as it stands or in Huffman's code.
fn is_continue(block: &[u8]) -> bool {
    let plain = block.ends_with(b"\x03100");
    let huffman = block.ends_with(&[0x82, 0x08, 0x01]);
    block.len() <= 5 && (plain || huffman)
}

async fn connect(fixture: &ScriptedFixture, client: Proto) -> Connection {
    let user = fixture.pki.user("alice", &["dev"]).alpn(client.alpn());
    with_timeout(user.connect(fixture.bridge.address(), "localhost"))
        .await
        .unwrap()
}

/// Asks for the body and answers when it is there.
async fn asking(mut conn: ScriptedConn, upstream: Proto) {
    if upstream == H1 {
        let head = conn.read_head().await.to_lowercase();
        assert!(head.contains("expect: 100-continue\r\n"), "{head}");
        conn.write("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
            .await;
        let body = if head.contains("chunked") {
            conn.read(14).await
        } else {
            conn.read(4).await
        };
        assert!(body.windows(4).any(|it| it == b"body"));
        conn.write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthank")
            .await;
    } else {
        conn.accept_h2(&[]).await;
        conn.read_frame(kind::HEADERS).await;
        let interim =
            |status| h2frames::headers(1, flag::END_HEADERS, &h2frames::literal(":status", status));
        conn.write([interim("103"), interim("100")].concat()).await;
        assert_eq!(conn.read_frame(kind::DATA).await.payload, b"body");
        let head = h2frames::headers(1, flag::END_HEADERS, h2frames::STATUS_200);
        let data = h2frames::data(1, flag::END_STREAM, b"thank");
        conn.write([head, data].concat()).await;
    }
    conn.stall().await;
}

#[tokio::test]
async fn a_client_is_told_to_continue_when_upstream_says_so() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ScriptedFixture::new(upstream, move |conn| asking(conn, upstream)).await;
        let connection = connect(&fixture, client).await;
        let told = with_timeout(patient_client(connection, client)).await;
        let expected = Told {
            before: 1,
            body_sent: true,
            answer: b"thank".to_vec(),
        };
        assert_eq!(told, expected, "{client:?} to {upstream:?}");
    }
}

/// Refuses at once, and then sees no byte of a body.
async fn refusing(mut conn: ScriptedConn, upstream: Proto) {
    if upstream == H1 {
        conn.read_head().await;
        conn.write("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno")
            .await;
        assert_eq!(conn.read_to_end().await, b"");
        return;
    }
    conn.accept_h2(&[]).await;
    conn.read_frame(kind::HEADERS).await;
    let head = h2frames::headers(1, flag::END_HEADERS, &h2frames::literal(":status", "401"));
    let data = h2frames::data(1, flag::END_STREAM, b"no");
    conn.write([head, data].concat()).await;
    while let Ok(frame) = h2frames::read_frame(&mut conn.io).await {
        assert_ne!(frame.header.kind, kind::DATA, "nobody asked for a body");
    }
}

#[tokio::test]
async fn an_upstream_that_refuses_gets_no_body() {
    for (client, upstream) in COMBINATIONS {
        let fixture = ScriptedFixture::new(upstream, move |conn| refusing(conn, upstream)).await;
        let connection = connect(&fixture, client).await;
        let told = with_timeout(patient_client(connection, client)).await;
        let expected = Told {
            before: 1,
            body_sent: false,
            answer: b"no".to_vec(),
        };
        assert_eq!(told, expected, "{client:?} to {upstream:?}");
    }
}

#[tokio::test]
async fn an_upstream_that_says_nothing_gets_the_body_in_the_end() {
    // The stand-in never sends 100 over HTTP/2.
    let fixture = ApiServerFixture::new(H2, |seen| Reply::new(200).body(seen.body)).await;
    let told = with_timeout(patient_h1(fixture.h1().await)).await;
    assert!(told.body_sent);
    assert_eq!(told.answer, b"body");
}

#[tokio::test]
async fn a_client_that_does_not_wait_is_not_made_to() {
    for upstream in [H1, H2] {
        let fixture = ApiServerFixture::new(upstream, |seen| Reply::new(200).body(seen.body)).await;
        let mut client = fixture.h1().await;
        client.send(format!("{HEAD}body")).await.unwrap();
        assert_eq!(
            with_timeout(client.read_response()).await.unwrap().text(),
            "body"
        );
        client
            .send("GET /next HTTP/1.1\r\nHost: k\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(
            with_timeout(client.read_response()).await.unwrap().status,
            200
        );
    }
}
