//! Clients cannot disturb other users through shared upstream connections: large headers,
//! unaccepted tokens and anonymous requests have their own connections.

use http::{Request, Version};
use skewbridge_testkit::h2frames::{self, code, kind};
use skewbridge_testkit::{ApiServer, H2Client, Options, Reply, ScriptedServer, TlsClient};
use tokio::io::AsyncWriteExt;

use crate::support::cluster::{self, ClusterFixture, NEW, NEW_PATH, served_by};
use crate::support::exhaustion::{
    COMPLETE_REQUEST, HeaderBomb, WATCH, fixture_with_options, frames_until_pong, get_block,
    header_bytes, kinds, read_frame, write_flushed,
};
use crate::support::pki::PkiFixture;
use crate::support::scripted_upstream::client_requests;

#[tokio::test]
async fn requests_with_large_headers_never_share_an_upstream_connection() {
    for alpn in [&["h2", "http/1.1"][..], &["h2"]] {
        let mut fixture = fixture_with_options(|options| options.alpn(alpn), |_| {}).await;
        let user = fixture.pki.client().http2(fixture.bridge.address()).await;
        let user = user.unwrap();
        let mut watches = Vec::new();
        for _ in 0..6 {
            let request = Request::get(format!("https://k{WATCH}")).body(()).unwrap();
            let mut watch = user.stream(request).await.unwrap();
            watch.finish().unwrap();
            watches.push((watch, fixture.watches.recv().await.unwrap()));
        }
        let shared = client_requests(&fixture.upstream)[0].connection;
        let mut io = fixture.raw_h2_connection(&fixture.pki.client(), &[]).await;
        let mut bomb = HeaderBomb { stream: 1 };
        for stream in [1, 3] {
            write_flushed(&mut io, bomb.request("/bomb")).await;
            read_frame(&mut io, kind::HEADERS, stream).await;
        }
        let mut bombs = client_requests(&fixture.upstream);
        bombs.retain(|recorded| recorded.path() == "/bomb");
        assert_eq!(
            (bombs[0].connection, bombs[0].version),
            (shared, Version::HTTP_2)
        );
        let expected = if alpn.len() == 2 {
            Version::HTTP_11
        } else {
            Version::HTTP_2
        };
        assert_ne!(bombs[1].connection, shared);
        assert_eq!(bombs[1].version, expected);
        assert!(header_bytes(&bombs[1..]) > HeaderBomb::FIELD_COUNT * HeaderBomb::VALUE_BYTES);
        for (watch, events) in &mut watches {
            events.send("{}\n").await.unwrap();
            assert_eq!(watch.head().await.unwrap().status, 200);
            assert_eq!(watch.chunk().await.unwrap().unwrap(), "{}\n");
        }
        // Other requests stay on their connection.
        assert_eq!(user.get("/api").await.unwrap().status, 200);
        let last = client_requests(&fixture.upstream).pop().unwrap();
        assert_eq!(last.connection, shared);
        assert_eq!(
            fixture.header_limit_count("own-connection").await,
            Some(1.0)
        );
    }
}

/// kube-apiserver closes the HTTP/2 connection of an anonymous client together with its response.
#[tokio::test]
async fn goaway_for_anonymous_clients_reaches_them_and_no_user() {
    for ends in [true, false] {
        let pki = PkiFixture::new();
        let upstream =
            ScriptedServer::start(&pki.upstream, None, &["h2"], move |mut conn| async move {
                conn.accept_h2(&[]).await;
                while let Ok(head) = h2frames::read_until(&mut conn.io, kind::HEADERS).await {
                    let stream = head.header.stream;
                    let block = h2frames::literal(":status", "403");
                    let mut answer = h2frames::headers(stream, COMPLETE_REQUEST, &block);
                    if ends {
                        answer.extend(h2frames::goaway(stream, code::NO_ERROR));
                    }
                    let _ = conn.io.write_all(&answer).await;
                    let _ = conn.io.flush().await;
                }
            })
            .await;
        let bridge = pki.start_bridge(upstream.addr());
        let send_request = async |client: TlsClient| {
            let client = client.alpn(&["h2"]);
            let mut io = client.connect(bridge.address(), "localhost").await.unwrap();
            h2frames::open(&mut io, &[]).await.unwrap();
            write_flushed(
                &mut io,
                h2frames::headers(1, COMPLETE_REQUEST, &get_block("/api")),
            )
            .await;
            read_frame(&mut io, kind::HEADERS, 1).await;
            io
        };
        for _ in 0..3 {
            let mut unauthenticated = send_request(pki.client()).await;
            if ends {
                let goaway = read_frame(&mut unauthenticated, kind::GOAWAY, 0).await;
                assert_eq!(goaway.error_code(), Some(code::NO_ERROR));
            } else {
                let since = frames_until_pong(&mut unauthenticated).await;
                assert!(!kinds(&since).contains(&kind::GOAWAY), "{since:?}");
            }
            let mut user = send_request(pki.user("alice", &[])).await;
            let since = frames_until_pong(&mut user).await;
            assert!(!kinds(&since).contains(&kind::GOAWAY), "{since:?}");
        }
    }
}

/// kube-apiserver closes a connection with its 401, which may hit other users' requests on it.
#[tokio::test]
async fn tokens_not_yet_accepted_share_no_upstream_connection_with_accepted_ones() {
    let pki = PkiFixture::new();
    let upstream = ApiServer::start(
        Options::new(pki.upstream.clone()),
        |recorded| match recorded.header("authorization") {
            None | Some("Bearer good") => Reply::json("{}"),
            _ => Reply::new(401),
        },
    )
    .await;
    let bridge = pki.start_bridge(upstream.addr());
    let connection = async |client: &H2Client, token: Option<&str>| {
        let mut request = Request::get("https://k/api");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        client.request(request.body(()).unwrap(), "").await.unwrap();
        client_requests(&upstream).pop().unwrap().connection
    };
    let open = async || pki.client().http2(bridge.address()).await.unwrap();
    let user = open().await;
    let unaccepted = connection(&user, Some("good")).await;
    let accepted = connection(&user, Some("good")).await;
    assert_ne!(unaccepted, accepted);
    for (client, token, expected) in [
        (open().await, Some("junk"), unaccepted),
        (open().await, None, unaccepted),
        // Accepted earlier, on another connection.
        (open().await, Some("good"), accepted),
        (user, Some("good"), accepted),
    ] {
        let connection = connection(&client, token).await;
        assert_eq!(connection, expected, "{token:?}");
    }
}

#[tokio::test]
async fn requests_with_large_headers_share_no_peer_connection() {
    let (cluster, [peer], bridge) =
        ClusterFixture::with_peers(&[], [("apiserver-b", &[NEW])]).await;
    let large = "x".repeat(100_000);
    let alice = cluster.alice();
    let usual = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &[], "").await;
    assert_eq!(served_by(&usual), "apiserver-b");
    let fields = [("x-large", large.as_str())];
    let answer = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &fields, "").await;
    assert_eq!(served_by(&answer), "apiserver-b");
    let recorded = peer.client_requests();
    let (usual, large) = (&recorded[recorded.len() - 2], &recorded[recorded.len() - 1]);
    assert_eq!(
        (usual.version, large.version),
        (Version::HTTP_2, Version::HTTP_11)
    );
    assert_ne!(usual.connection, large.connection);
    // A request that every receiver would reject is not sent at all.
    let name = |number: usize| format!("x-{number}");
    let names: Vec<_> = (0..10).map(name).collect();
    let filler = "x".repeat((1 << 20) / 10 - 60);
    let fields: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), filler.as_str()))
        .collect();
    let answer = cluster::send_request(&alice, &bridge, "GET", NEW_PATH, &fields, "").await;
    assert_eq!(answer.status, 431);
    assert_eq!(peer.client_requests().len(), recorded.len());
}
