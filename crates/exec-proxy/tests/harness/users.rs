//! Who may connect to the socket.

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

use crate::rig::{Rig, cluster};

/// A thread can be another user than its process, and the kernel tells who connects.
#[tokio::test]
async fn another_users_process_is_turned_away_before_a_byte_is_read() {
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
    // As if both modes had been forgotten.
    let everybody = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(dir.path(), everybody(0o755)).unwrap();
    std::fs::set_permissions(&path, everybody(0o777)).unwrap();
    let tls = ca
        .server(&["localhost"])
        .server_config(ClientAuth::Require(&ca), &[]);
    let task = tokio::spawn(serve(
        Listener::Unix(listener),
        tls,
        forwarder,
        std::future::pending(),
    ));
    let ours = connect(path.clone(), None).await;
    assert_eq!(ours, Met::Listens);
    let others = connect(path, Some(other)).await;
    assert_eq!(others, Met::TurnedAway);
    task.abort();
}

#[derive(Debug, PartialEq, Eq)]
enum Met {
    /// It answers what is no TLS with an alert.
    Listens,
    TurnedAway,
}

async fn connect(path: std::path::PathBuf, uid: Option<u32>) -> Met {
    // A thread of its own, which ends with the user that it has become.
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        if let Some(uid) = uid {
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).unwrap();
        }
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let _ = stream.write_all(b"this is no handshake\r\n\r\n");
        let mut byte = [0];
        let met = match stream.read(&mut byte) {
            Ok(1) => Met::Listens,
            _ => Met::TurnedAway,
        };
        let _ = tell.send(met);
    });
    tokio::time::timeout(TEST_TIMEOUT + Duration::from_secs(5), told)
        .await
        .unwrap()
        .unwrap()
}

/// Connections that say nothing, as another user.
fn silent_connections(to: std::net::SocketAddr, many: usize, uid: Option<u32>) -> Vec<TcpStream> {
    let opened = std::thread::spawn(move || {
        if let Some(uid) = uid {
            rustix::thread::set_thread_uid(Uid::from_raw(uid)).unwrap();
        }
        let open = || {
            let stream = TcpStream::connect(to).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        (0..many).map(|_| open()).collect()
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
async fn a_crowd_of_another_user_is_turned_away() {
    let Some(other) = unprivileged_user() else {
        return;
    };
    let ca = Ca::new("cluster");
    let server =
        ApiServer::start(Options::new(ca.server(&["127.0.0.1"])), |_| Reply::new(200)).await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    let theirs = silent_connections(rig.addr, 100, Some(other));
    let mut closed = 0;
    // Who is left is no crowd.
    eventually("their end", TEST_TIMEOUT, async || {
        closed = theirs.iter().filter(|it| is_closed(it)).count();
        closed > 50
    })
    .await;
    assert_eq!(rig.h2().await.get("/").await.unwrap().status, 200);
}

/// As the same user, which is the worst case: nobody can be told apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_never_end_keep_nobody_out() {
    let ca = Ca::new("cluster");
    let server =
        ApiServer::start(Options::new(ca.server(&["127.0.0.1"])), |_| Reply::new(200)).await;
    let rig = Rig::start(server.addr(), &ca, Vec::new()).await;
    let to = rig.addr;
    let watch = Stopwatch::start();
    // More than may be under way.
    let silent = tokio::task::spawn_blocking(move || silent_connections(to, 300, None));
    let silent = silent.await.unwrap();
    assert_eq!(rig.h2().await.get("/").await.unwrap().status, 200);
    // A handshake has 10 s: nobody waits for the end of the others'.
    let limit = Duration::from_secs(8);
    let given_up = async || is_closed(&silent[0]);
    watch.within(limit, "the oldest given up", given_up).await;
}
