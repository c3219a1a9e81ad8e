//! Anonymous connections that try to take every slot of a bridge, beside users of a real
//! kube-apiserver.

use skewbridge_e2e::{ControlPlane, Protocol, Request, ServerSpec, User, Via, newest, versions};
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use skewbridge_testkit::{Connection, TEST_TIMEOUT};

const ANONYMOUS_CONNECTIONS: usize = 400;

const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0";

async fn anonymous_connections(plane: &ControlPlane) -> Vec<Connection> {
    let (anonymous, address) = (plane.anonymous_client(), plane.servers[0].bridge);
    let mut open = Vec::new();
    for _ in 0..ANONYMOUS_CONNECTIONS {
        open.push(anonymous.connect(address, "localhost").await.unwrap());
    }
    open
}

#[tokio::test]
async fn unauthenticated_connections_do_not_block_users() {
    let versions = versions();
    let server = ServerSpec::of(newest(&versions))
        .bridge_flag(&format!("--max-connections={ANONYMOUS_CONNECTIONS}"))
        .bridge_flag(&format!(
            "--max-unauthenticated-connections-per-source={ANONYMOUS_CONNECTIONS}"
        ));
    let plane = ControlPlane::start(&[server]).await;
    let watch = plane.http_client(0, Via::Bridge, Protocol::H2);
    let mut watch = watch.stream(&Request::get(WATCH)).await.unwrap();
    assert_eq!(watch.status, 200);

    let mut idle = anonymous_connections(&plane).await;
    for user in [User::Alice, User::Bob, User::Admin] {
        let output = plane.kubectl(0, Via::Bridge, user, &["get", "--raw", "/version"]);
        let output = timeout(TEST_TIMEOUT, output).await.expect("kubectl ends");
        assert_eq!(output.code, Some(0), "{user:?}: {}", output.stderr);
    }
    // The oldest anonymous connection lost its slot.
    let ended = timeout(TEST_TIMEOUT, idle[0].read(&mut [0])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    let metrics = plane.metrics(plane.servers[0].admin).await;
    let slots = |class: &str| metrics.sum("skewbridge_connection_slots", &[class]);
    assert!(slots("unauthenticated") > ANONYMOUS_CONNECTIONS as u64 / 2);

    // As many again do not affect existing connections.
    let _more = anonymous_connections(&plane).await;
    let words = ["create", "configmap", "seen"];
    let made = plane.kubectl(0, Via::Bridge, User::Admin, &words).await;
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let mut events = String::new();
    while !events.contains("\"seen\"") {
        let event = timeout(TEST_TIMEOUT, watch.next()).await.unwrap().unwrap();
        events += &String::from_utf8_lossy(&event.expect("the watch is open"));
    }
}
