//! Which processes may connect to the socket, and how many handshakes may be pending.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Uid;
use skewbridge_exec_proxy::Cluster;
use skewbridge_exec_proxy::forward::{Forwarder, Listener, serve};
use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Options, Reply, ScratchDir, Stopwatch, TEST_TIMEOUT, eventually,
    unprivileged_user,
};
use tokio::net::UnixListener;

use crate::forwarder_fixture::{ForwarderFixture, cluster};

/// A thread can have another UID than its process, and the kernel reports the UID of the thread.
#[tokio::test]
async fn a_connection_of_another_user_is_closed_before_a_byte_is_read() {
    let Some(other) = unprivileged_user() else {
        return;
    };
    let ca = Ca::new("cluster");
    let options = Options::new(ca.server(&["127.0.0.1"]));
    let server = ApiServer::start(options, |_| Reply::new(200)).await;
    let upstream = Cluster::new(&cluster(server.addr(), &ca), None).unwrap();
    let authority = upstream.authority().clone();
    let forwarder = Arc::new(Forwarder::new(upstream, authority, Vec::new()));
    let dir = ScratchDir::new();
    let path = dir.path().join("open.sock");
    let listener = UnixListener::bind(&path).unwrap();
    // Neither mode keeps other users away.
    let permissions = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(dir.path(), permissions(0o755)).unwrap();
    std::fs::set_permissions(&path, permissions(0o777)).unwrap();
    let tls = ca
        .server(&["localhost"])
        .server_config(ClientAuth::Require(&ca), &[]);
    let task = tokio::spawn(serve(
        Listener::Unix(listener),
        tls,
        forwarder,
        std::future::pending(),
    ));
    let same_user = connect(path.clone(), None).await;
    assert_eq!(same_user, ConnectResult::Alert);
    let others = connect(path, Some(other)).await;
    assert_eq!(others, ConnectResult::Closed);
    task.abort();
}

#[derive(Debug, PartialEq, Eq)]
enum ConnectResult {
    /// It answers data that is not TLS with an alert.
    Alert,
    Closed,
}

async fn connect(path: std::path::PathBuf, uid: Option<u32>) -> ConnectResult {
    // A thread of its own, because it keeps the changed UID.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        if let Some(uid) = uid {
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).unwrap();
        }
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let _ = stream.write_all(b"this is no handshake\r\n\r\n");
        let mut byte = [0];
        let result = match stream.read(&mut byte) {
            Ok(1) => ConnectResult::Alert,
            _ => ConnectResult::Closed,
        };
        let _ = sender.send(result);
    });
    tokio::time::timeout(TEST_TIMEOUT + Duration::from_secs(5), receiver)
        .await
        .unwrap()
        .unwrap()
}

/// Connections that send nothing, as this or another user.
fn idle_connections(to: std::net::SocketAddr, count: usize, uid: Option<u32>) -> Vec<TcpStream> {
    let opened = std::thread::spawn(move || {
        if let Some(uid) = uid {
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).unwrap();
        }
        let open = || {
            let stream = TcpStream::connect(to).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        (0..count).map(|_| open()).collect()
    });
    opened.join().unwrap()
}

fn is_closed(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_idle_connections_of_another_user_are_closed() {
    let Some(other) = unprivileged_user() else {
        return;
    };
    let ca = Ca::new("cluster");
    let server =
        ApiServer::start(Options::new(ca.server(&["127.0.0.1"])), |_| Reply::new(200)).await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let others = idle_connections(fixture.addr, 100, Some(other));
    let mut closed = 0;
    // The rest stays below the limit of pending handshakes.
    eventually("connections closed", TEST_TIMEOUT, async || {
        closed = others.iter().filter(|it| is_closed(it)).count();
        closed > 50
    })
    .await;
    assert_eq!(fixture.h2().await.get("/").await.unwrap().status, 200);
}

/// As the same user, the worst case: connections cannot be distinguished by UID.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_never_complete_do_not_block_other_clients() {
    let ca = Ca::new("cluster");
    let server =
        ApiServer::start(Options::new(ca.server(&["127.0.0.1"])), |_| Reply::new(200)).await;
    let fixture = ForwarderFixture::start(server.addr(), &ca, Vec::new()).await;
    let to = fixture.addr;
    let watch = Stopwatch::start();
    // More than the limit of pending handshakes.
    let idle = tokio::task::spawn_blocking(move || idle_connections(to, 300, None));
    let idle = idle.await.unwrap();
    assert_eq!(fixture.h2().await.get("/").await.unwrap().status, 200);
    // The handshake timeout is 10 s: other clients do not wait for it.
    let limit = Duration::from_secs(8);
    let closed = async || is_closed(&idle[0]);
    watch
        .within(limit, "the oldest connection closed", closed)
        .await;
}
