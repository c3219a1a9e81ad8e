//! Slots for client connections: unauthenticated connections are evicted, authenticated ones keep
//! theirs.

use std::time::Duration;

use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::slot_clients::{fixture, send_and_read_status, wait_until_closed};

const GET: &str = "GET /api HTTP/1.1\r\nHost: k\r\n\r\n";
const GET_WITH_TOKEN: &str = "GET /api HTTP/1.1\r\nHost: k\r\nAuthorization: Bearer good\r\n\r\n";
const WATCH: &str = "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: k\r\n\r\n";

#[tokio::test]
async fn idle_unauthenticated_connections_do_not_lock_out_clients() {
    let mut fixture = fixture(|limits| {
        limits.max_connections = 20;
        limits.max_unauthenticated_connections_per_source = Some(20);
    })
    .await;
    let mut watcher = fixture.open(&fixture.pki.user("alice", &[])).await;
    watcher.send(WATCH).await.unwrap();
    let events = fixture.watches.recv().await.unwrap();
    let mut unauthenticated_connections = fixture.unauthenticated_connections(30).await;

    let mut user = fixture.open(&fixture.pki.user("bob", &[])).await;
    assert_eq!(send_and_read_status(&mut user, GET).await, 200);
    let mut with_token = fixture.open(&fixture.pki.client()).await;
    assert_eq!(
        send_and_read_status(&mut with_token, GET_WITH_TOKEN).await,
        200
    );
    // 19 slots were left for 30 unauthenticated connections, and users needed two.
    for unauthenticated in &mut unauthenticated_connections[..13] {
        wait_until_closed(unauthenticated).await;
    }
    assert_eq!(fixture.evictions("slots-full").await, Some(13.0));
    assert_eq!(fixture.slots("unauthenticated").await, Some(17.0));
    assert_eq!(fixture.slots("authenticated").await, Some(3.0));

    // Later unauthenticated connections evict only unauthenticated ones.
    unauthenticated_connections.extend(fixture.unauthenticated_connections(30).await);
    assert_eq!(send_and_read_status(&mut user, GET).await, 200);
    assert_eq!(
        send_and_read_status(&mut with_token, GET_WITH_TOKEN).await,
        200
    );
    watcher.read_head().await.unwrap();
    events.send("event").await.unwrap();
    assert_eq!(watcher.read_chunk().await.unwrap().unwrap(), "event");
}

#[tokio::test]
async fn an_idle_connection_with_a_certificate_is_authenticated() {
    let fixture = fixture(|limits| {
        limits.max_connections = 4;
        limits.max_unauthenticated_connections_per_source = Some(4);
    })
    .await;
    let mut idle = fixture.open(&fixture.pki.user("alice", &[])).await;
    let mut peer = fixture.open(&fixture.pki.peer()).await;
    eventually("certificates are verified", TEST_TIMEOUT, async || {
        let (users, peers) = (fixture.slots("authenticated"), fixture.slots("reserved"));
        (users.await, peers.await) == (Some(1.0), Some(1.0))
    })
    .await;
    let _unauthenticated = fixture.unauthenticated_connections(20).await;
    assert_eq!(send_and_read_status(&mut idle, GET).await, 200);
    let asserted = "GET /api HTTP/1.1\r\nHost: k\r\nX-Remote-User: bob\r\n\r\n";
    assert_eq!(send_and_read_status(&mut peer, asserted).await, 200);
}

#[tokio::test]
async fn users_borrow_the_reserved_share_only_temporarily() {
    let fixture = fixture(|limits| {
        limits.max_connections = 6;
        limits.reserved_connections = Some(2);
    })
    .await;
    let mut users = Vec::new();
    for number in 0..6 {
        let mut user = fixture.open(&fixture.pki.user("alice", &[])).await;
        assert_eq!(
            send_and_read_status(&mut user, GET).await,
            200,
            "user {number}"
        );
        users.push(user);
    }
    assert_eq!(fixture.slots("authenticated").await, Some(4.0));
    assert_eq!(fixture.slots("overflow").await, Some(2.0));
    let mut nodes = Vec::new();
    for name in ["system:node:a", "system:node:b"] {
        let node = fixture.pki.user(name, &["system:nodes"]);
        let mut node = fixture.open(&node).await;
        assert_eq!(send_and_read_status(&mut node, GET).await, 200, "{name}");
        nodes.push(node);
    }
    assert_eq!(fixture.slots("reserved").await, Some(2.0));
    for user in &mut users[..4] {
        assert_eq!(
            send_and_read_status(user, GET).await,
            200,
            "an authenticated connection keeps its slot"
        );
    }
    for user in &mut users[4..] {
        let _ = user.send(GET).await;
        let answered = timeout(TEST_TIMEOUT, user.read_response()).await.unwrap();
        assert!(answered.is_err(), "the reserved share was borrowed");
    }
}

#[tokio::test]
async fn a_source_evicts_its_own_connections_at_its_limit() {
    let fixture =
        fixture(|limits| limits.max_unauthenticated_connections_per_source = Some(3)).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(fixture.address()).await.unwrap()
    };
    let other = from(9).await;
    let mut flood: Vec<TcpStream> = Vec::new();
    for _ in 0..10 {
        flood.push(from(8).await);
    }
    for connection in &mut flood[..7] {
        let read = timeout(TEST_TIMEOUT, connection.read(&mut [0]))
            .await
            .unwrap();
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    assert_eq!(fixture.evictions("source-limit").await, Some(7.0));
    assert_eq!(fixture.slots("unauthenticated").await, Some(4.0));
    let no_data = other.try_read(&mut [0]).unwrap_err();
    assert_eq!(no_data.kind(), std::io::ErrorKind::WouldBlock);
    // Authenticated connections do not count.
    let mut users = Vec::new();
    for _ in 0..8 {
        let mut user = fixture.open(&fixture.pki.client()).await;
        assert_eq!(send_and_read_status(&mut user, GET_WITH_TOKEN).await, 200);
        users.push(user);
    }
    for user in &mut users {
        assert_eq!(send_and_read_status(user, GET_WITH_TOKEN).await, 200);
    }
}

/// kube-apiserver reads a token from the subprotocol of WebSocket upgrades only. To other requests
/// with such a header it answers as to anonymous ones.
#[tokio::test]
async fn a_token_in_a_subprotocol_without_an_upgrade_does_not_authenticate() {
    let fixture = fixture(|_| {}).await;
    let mut client = fixture.open(&fixture.pki.client()).await;
    let subprotocol = "GET /api HTTP/1.1\r\nHost: k\r\n\
        Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.x\r\n\r\n";
    assert_eq!(send_and_read_status(&mut client, subprotocol).await, 200);
    assert_eq!(fixture.slots("authenticated").await, Some(0.0));
    assert_eq!(fixture.slots("unauthenticated").await, Some(1.0));
    assert_eq!(send_and_read_status(&mut client, GET_WITH_TOKEN).await, 200);
    assert_eq!(fixture.slots("authenticated").await, Some(1.0));
}

#[tokio::test]
async fn a_rejected_token_does_not_authenticate() {
    let fixture =
        fixture(|limits| limits.max_unauthenticated_connections_per_source = Some(2)).await;
    let bad = "GET /api HTTP/1.1\r\nHost: k\r\nAuthorization: Bearer bad\r\n\r\n";
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = fixture.open(&fixture.pki.client()).await;
        assert_eq!(send_and_read_status(&mut client, bad).await, 401);
        clients.push(client);
    }
    let _ = clients[0].send(bad).await;
    let answered = timeout(TEST_TIMEOUT, clients[0].read_response())
        .await
        .unwrap();
    assert!(answered.is_err(), "its slot was evicted");
    assert_eq!(send_and_read_status(&mut clients[2], bad).await, 401);
}

#[tokio::test]
async fn an_unauthenticated_connection_without_a_request_is_closed() {
    let fixture = fixture(|limits| {
        limits.handshake_timeout = Duration::from_secs(3);
        limits.read_header_timeout = Duration::from_millis(500);
    })
    .await;
    let mut user = fixture.open(&fixture.pki.user("alice", &[])).await;
    let mut anonymous = fixture.open(&fixture.pki.client()).await;
    assert_eq!(send_and_read_status(&mut anonymous, GET).await, 200);
    wait_until_closed(&mut fixture.unauthenticated().await).await;
    assert_eq!(fixture.evictions("no-request").await, Some(1.0));
    assert_eq!(send_and_read_status(&mut user, GET).await, 200);
    assert_eq!(send_and_read_status(&mut anonymous, GET).await, 200);
}
