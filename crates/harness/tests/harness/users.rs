//! Who may connect to the socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Uid, geteuid};
use skewbridge_harness::Cluster;
use skewbridge_harness::forward::{Forwarder, Listener, serve};
use skewbridge_testkit::{ApiServer, Ca, ClientAuth, Options, PATIENCE, Reply, ScratchDir};
use tokio::net::UnixListener;

use crate::rig::cluster;

/// Nobody, on most systems; somebody else, on all.
const OTHER: u32 = 65534;

/// A thread can be another user than its process, and the kernel tells who connects.
#[tokio::test]
async fn another_users_process_is_turned_away_before_a_byte_is_read() {
    if !geteuid().is_root() {
        eprintln!("left out: only root can be another user");
        return;
    }
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
    let others = connect(path, Some(OTHER)).await;
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
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(b"this is no handshake\r\n\r\n");
        let mut byte = [0];
        let met = match stream.read(&mut byte) {
            Ok(1) => Met::Listens,
            _ => Met::TurnedAway,
        };
        let _ = tell.send(met);
    });
    tokio::time::timeout(PATIENCE + Duration::from_secs(5), told)
        .await
        .unwrap()
        .unwrap()
}
