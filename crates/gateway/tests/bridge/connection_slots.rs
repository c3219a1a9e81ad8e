//! Slots of client connections: strangers lose theirs, and clients that have authenticated
//! keep them.

use std::net::SocketAddr;
use std::time::Duration;

use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Limits;
use skewbridge_testkit::{
    ApiServer, BodySender, Connection, H1Client, Options, PATIENCE, Reply, TlsClient, eventually,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::bed::{self, Bed};
use crate::plain;

const GET: &str = "GET /api HTTP/1.1\r\nHost: k\r\n\r\n";
const GET_WITH_TOKEN: &str = "GET /api HTTP/1.1\r\nHost: k\r\nAuthorization: Bearer good\r\n\r\n";
const WATCH: &str = "GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: k\r\n\r\n";

struct Scene {
    bed: Bed,
    bridge: Handle,
    watches: mpsc::UnboundedReceiver<BodySender>,
    _upstream: ApiServer,
}

async fn scene(change: impl FnOnce(&mut Limits)) -> Scene {
    let bed = Bed::new();
    let (senders, watches) = mpsc::unbounded_channel();
    let upstream = ApiServer::start(Options::new(bed.upstream.clone()), move |seen| {
        match (seen.path(), seen.header("authorization")) {
            ("/api/v1/pods", _) => {
                let (reply, sender) = Reply::stream();
                senders.send(sender).unwrap();
                reply
            }
            (_, None | Some("Bearer good")) => Reply::json("{}"),
            _ => Reply::new(401),
        }
    })
    .await;
    let mut config = bed.config(upstream.addr());
    change(&mut config.limits);
    let bridge = bed::start(&config);
    Scene {
        bed,
        bridge,
        watches,
        _upstream: upstream,
    }
}

impl Scene {
    fn address(&self) -> SocketAddr {
        self.bridge.address()
    }

    /// An anonymous TLS connection that sends nothing.
    async fn stranger(&self) -> Connection {
        let client = self.bed.client();
        let connecting = client.connect(self.address(), "localhost");
        let connected = timeout(PATIENCE, connecting).await;
        connected.expect("a slot").unwrap()
    }

    async fn strangers(&self, count: usize) -> Vec<Connection> {
        let mut strangers = Vec::new();
        for _ in 0..count {
            strangers.push(self.stranger().await);
        }
        strangers
    }

    async fn open(&self, client: &TlsClient) -> H1Client {
        let connected = timeout(PATIENCE, client.http1(self.address())).await;
        connected.expect("a slot").unwrap()
    }

    async fn slots(&self, class: &str) -> Option<f64> {
        let scrape = plain::scrape(self.bridge.admin_address()).await;
        scrape.value("skewbridge_connection_slots", &[("class", class)])
    }

    async fn evictions(&self, reason: &str) -> Option<f64> {
        let scrape = plain::scrape(self.bridge.admin_address()).await;
        let name = "skewbridge_connection_evictions_total";
        scrape.value(name, &[("reason", reason)])
    }
}

async fn asks(client: &mut H1Client, request: &str) -> u16 {
    client.send(request).await.unwrap();
    client.read_response().await.unwrap().status
}

/// Waits for the end of a connection on which the bridge sends nothing but TLS.
async fn is_closed(connection: &mut Connection) {
    let read = timeout(PATIENCE, connection.read(&mut [0])).await;
    let read = read.expect("the connection is open");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test]
async fn idle_unauthenticated_connections_lock_no_client_out() {
    let mut scene = scene(|limits| {
        limits.max_connections = 20;
        limits.max_unauthenticated_connections_per_source = Some(20);
    })
    .await;
    let mut watcher = scene.open(&scene.bed.user("alice", &[])).await;
    watcher.send(WATCH).await.unwrap();
    let events = scene.watches.recv().await.unwrap();
    let mut strangers = scene.strangers(30).await;

    let mut user = scene.open(&scene.bed.user("bob", &[])).await;
    assert_eq!(asks(&mut user, GET).await, 200);
    let mut with_token = scene.open(&scene.bed.client()).await;
    assert_eq!(asks(&mut with_token, GET_WITH_TOKEN).await, 200);
    // 19 slots were left for 30 strangers, and two were needed for users.
    for stranger in &mut strangers[..13] {
        is_closed(stranger).await;
    }
    assert_eq!(scene.evictions("slots-full").await, Some(13.0));
    assert_eq!(scene.slots("unauthenticated").await, Some(17.0));
    assert_eq!(scene.slots("authenticated").await, Some(3.0));

    // Strangers that come later evict only strangers.
    strangers.extend(scene.strangers(30).await);
    assert_eq!(asks(&mut user, GET).await, 200);
    assert_eq!(asks(&mut with_token, GET_WITH_TOKEN).await, 200);
    watcher.read_head().await.unwrap();
    events.send("event").await.unwrap();
    assert_eq!(watcher.read_chunk().await.unwrap().unwrap(), "event");
}

#[tokio::test]
async fn an_idle_connection_with_a_certificate_is_authenticated() {
    let scene = scene(|limits| {
        limits.max_connections = 4;
        limits.max_unauthenticated_connections_per_source = Some(4);
    })
    .await;
    let mut idle = scene.open(&scene.bed.user("alice", &[])).await;
    let mut peer = scene.open(&scene.bed.peer()).await;
    eventually("certificates are verified", PATIENCE, async || {
        let (users, peers) = (scene.slots("authenticated"), scene.slots("reserved"));
        (users.await, peers.await) == (Some(1.0), Some(1.0))
    })
    .await;
    let _strangers = scene.strangers(20).await;
    assert_eq!(asks(&mut idle, GET).await, 200);
    let asserted = "GET /api HTTP/1.1\r\nHost: k\r\nX-Remote-User: bob\r\n\r\n";
    assert_eq!(asks(&mut peer, asserted).await, 200);
}

#[tokio::test]
async fn users_do_not_keep_the_reserved_share() {
    let scene = scene(|limits| {
        limits.max_connections = 6;
        limits.reserved_connections = Some(2);
    })
    .await;
    let mut users = Vec::new();
    for number in 0..6 {
        let mut user = scene.open(&scene.bed.user("alice", &[])).await;
        assert_eq!(asks(&mut user, GET).await, 200, "user {number}");
        users.push(user);
    }
    assert_eq!(scene.slots("authenticated").await, Some(4.0));
    assert_eq!(scene.slots("overflow").await, Some(2.0));
    let mut nodes = Vec::new();
    for name in ["system:node:a", "system:node:b"] {
        let node = scene.bed.user(name, &["system:nodes"]);
        let mut node = scene.open(&node).await;
        assert_eq!(asks(&mut node, GET).await, 200, "{name}");
        nodes.push(node);
    }
    assert_eq!(scene.slots("reserved").await, Some(2.0));
    for user in &mut users[..4] {
        assert_eq!(asks(user, GET).await, 200, "a slot was kept");
    }
    for user in &mut users[4..] {
        let _ = user.send(GET).await;
        let answered = timeout(PATIENCE, user.read_response()).await.unwrap();
        assert!(answered.is_err(), "the reserved share was borrowed");
    }
}

#[tokio::test]
async fn a_source_evicts_its_own_connections_at_its_limit() {
    let scene = scene(|limits| limits.max_unauthenticated_connections_per_source = Some(3)).await;
    let from = async |last: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(scene.address()).await.unwrap()
    };
    let other = from(9).await;
    let mut flood: Vec<TcpStream> = Vec::new();
    for _ in 0..10 {
        flood.push(from(8).await);
    }
    for connection in &mut flood[..7] {
        let read = timeout(PATIENCE, connection.read(&mut [0])).await.unwrap();
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    assert_eq!(scene.evictions("source-limit").await, Some(7.0));
    assert_eq!(scene.slots("unauthenticated").await, Some(4.0));
    let silent = other.try_read(&mut [0]).unwrap_err();
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock);
    // Connections that have authenticated do not count.
    let mut users = Vec::new();
    for _ in 0..8 {
        let mut user = scene.open(&scene.bed.client()).await;
        assert_eq!(asks(&mut user, GET_WITH_TOKEN).await, 200);
        users.push(user);
    }
    for user in &mut users {
        assert_eq!(asks(user, GET_WITH_TOKEN).await, 200);
    }
}

/// kube-apiserver looks for a token in the subprotocol of WebSocket upgrades only: to others
/// it answers as to anonymous requests.
#[tokio::test]
async fn a_token_in_a_subprotocol_without_an_upgrade_does_not_authenticate() {
    let scene = scene(|_| {}).await;
    let mut client = scene.open(&scene.bed.client()).await;
    let subprotocol = "GET /api HTTP/1.1\r\nHost: k\r\n\
        Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.x\r\n\r\n";
    assert_eq!(asks(&mut client, subprotocol).await, 200);
    assert_eq!(scene.slots("authenticated").await, Some(0.0));
    assert_eq!(scene.slots("unauthenticated").await, Some(1.0));
    assert_eq!(asks(&mut client, GET_WITH_TOKEN).await, 200);
    assert_eq!(scene.slots("authenticated").await, Some(1.0));
}

#[tokio::test]
async fn a_refused_token_does_not_authenticate() {
    let scene = scene(|limits| limits.max_unauthenticated_connections_per_source = Some(2)).await;
    let bad = "GET /api HTTP/1.1\r\nHost: k\r\nAuthorization: Bearer bad\r\n\r\n";
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = scene.open(&scene.bed.client()).await;
        assert_eq!(asks(&mut client, bad).await, 401);
        clients.push(client);
    }
    let _ = clients[0].send(bad).await;
    let answered = timeout(PATIENCE, clients[0].read_response()).await.unwrap();
    assert!(answered.is_err(), "its slot was lost");
    assert_eq!(asks(&mut clients[2], bad).await, 401);
}

#[tokio::test]
async fn an_unauthenticated_connection_without_a_request_is_closed() {
    let scene = scene(|limits| {
        limits.handshake_timeout = Duration::from_secs(3);
        limits.read_header_timeout = Duration::from_millis(500);
    })
    .await;
    let mut user = scene.open(&scene.bed.user("alice", &[])).await;
    let mut anonymous = scene.open(&scene.bed.client()).await;
    assert_eq!(asks(&mut anonymous, GET).await, 200);
    is_closed(&mut scene.stranger().await).await;
    assert_eq!(scene.evictions("no-request").await, Some(1.0));
    assert_eq!(asks(&mut user, GET).await, 200);
    assert_eq!(asks(&mut anonymous, GET).await, 200);
}
