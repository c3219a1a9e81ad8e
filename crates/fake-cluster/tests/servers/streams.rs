//! Streams, which the servers hand over to the node.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use serde_json::json;
use skewbridge_fake_cluster::server::RunningServer;
use skewbridge_fake_cluster::server::pod_streams::{
    PodStreamHandler, PodStreams, StreamKind, StreamRequest, StreamResponse,
};
use skewbridge_testkit::H1Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::cluster_fixture::{Cluster, VISITOR_TOKEN};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Echoes its input.
struct Echo;

impl PodStreams for Echo {
    fn answer(
        &self,
        request: StreamRequest,
    ) -> Pin<Box<dyn Future<Output = StreamResponse> + Send + '_>> {
        assert!(!request.headers.contains_key("authorization"));
        Box::pin(async move {
            if request.kind == StreamKind::Log {
                let (sender, receiver) = mpsc::channel(1);
                tokio::spawn(async move {
                    for line in ["one\n", "two\n"] {
                        if sender
                            .send(Bytes::from_static(line.as_bytes()))
                            .await
                            .is_err()
                        {
                            return;
                        }
                    }
                });
                return StreamResponse::Chunked(Response::new(()), receiver);
            }
            let upgrade = request.headers["upgrade"].clone();
            let head = Response::builder()
                .status(101)
                .header("connection", "Upgrade")
                .header("upgrade", upgrade)
                .body(())
                .unwrap();
            let run = PodStreamHandler::new(|mut switched| async move {
                let mut bytes = [0; 4];
                let early = switched.input.len().min(4);
                bytes[..early].copy_from_slice(&switched.input.split_to(early));
                switched.io.read_exact(&mut bytes[early..]).await.unwrap();
                switched.io.write_all(&bytes).await.unwrap();
                switched.io.flush().await.unwrap();
                switched.io.shutdown().await.unwrap();
            });
            StreamResponse::Switch(head, run)
        })
    }
}

async fn cluster() -> Cluster {
    let cluster = Cluster::with(Arc::new(Echo)).await;
    let client = cluster.admin(&cluster.new).await;
    let pod = json!({"metadata": {"name": "web"}, "spec": {
        "nodeName": "n", "containers": [{"name": "c", "image": "i"}],
    }});
    client.post("/api/v1/namespaces/default/pods", &pod).await;
    cluster
}

async fn connect(cluster: &Cluster, server: &RunningServer) -> H1Client {
    cluster.pki.admin().http1(server.address()).await.unwrap()
}

fn exec(method: &str, protocol: &str) -> String {
    format!(
        "{method} /api/v1/namespaces/default/pods/web/exec?command=sh HTTP/1.1\r\n\
         Host: localhost\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\nping"
    )
}

#[tokio::test]
async fn a_connection_is_handed_over_with_what_was_read() {
    let cluster = cluster().await;
    for (server, protocol, method) in [
        (&cluster.old, "SPDY/3.1", "POST"),
        (&cluster.middle, "websocket", "GET"),
        (&cluster.new, "websocket", "GET"),
    ] {
        let mut client = connect(&cluster, server).await;
        client.send(exec(method, protocol)).await.unwrap();
        assert_eq!(client.read_head().await.unwrap().status, 101);
        let mut io = client.into_connection();
        let mut response = Vec::new();
        timeout(TEST_TIMEOUT, io.read_to_end(&mut response))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(response, b"ping");
    }
}

#[tokio::test]
async fn the_oldest_release_has_no_websocket() {
    let cluster = cluster().await;
    let mut client = connect(&cluster, &cluster.old).await;
    client.send(exec("GET", "websocket")).await.unwrap();
    assert_eq!(client.read_head().await.unwrap().status, 403);
    // But for port-forward by channels, which is older than all releases here.
    for (protocol, status) in [
        ("v4.channel.k8s.io", 101),
        ("SPDY/3.1+portforward.k8s.io", 403),
    ] {
        let mut client = connect(&cluster, &cluster.old).await;
        let request = exec("GET", "websocket").replace("exec?command=sh", "portforward?ports=80");
        let request = request.replace(
            "Upgrade: websocket\r\n",
            &format!("Upgrade: websocket\r\nSec-WebSocket-Protocol: {protocol}\r\n"),
        );
        client.send(request).await.unwrap();
        assert_eq!(
            client.read_head().await.unwrap().status,
            status,
            "{protocol}"
        );
    }
}

#[tokio::test]
async fn logs_are_streamed() {
    let cluster = cluster().await;
    let client = cluster.admin(&cluster.middle).await;
    let log = client
        .get("/api/v1/namespaces/default/pods/web/log?follow=true")
        .await;
    assert_eq!((log.code, log.body), (200, "one\ntwo\n".into()));
    let missing = client.get("/api/v1/namespaces/default/pods/none/log").await;
    assert_eq!(missing.body["message"], r#"pods "none" not found"#);
    let plain = client.get("/api/v1/namespaces/default/pods/web/exec").await;
    assert_eq!(plain.code, 400);
    assert_eq!(plain.body["message"], "Upgrade request required");
}

#[tokio::test]
async fn read_only_users_cannot_exec() {
    let cluster = cluster().await;
    for server in [&cluster.middle, &cluster.new] {
        let mut client = cluster
            .pki
            .anonymous()
            .http1(server.address())
            .await
            .unwrap();
        let request = exec("GET", "websocket").replace(
            "Host:",
            &format!("Authorization: Bearer {VISITOR_TOKEN}\r\nHost:"),
        );
        client.send(request).await.unwrap();
        assert_eq!(client.read_head().await.unwrap().status, 403);
    }
}

#[tokio::test]
async fn pods_are_bound_and_evicted() {
    let cluster = cluster().await;
    let client = cluster.admin(&cluster.old).await;
    let pods = "/api/v1/namespaces/default/pods";
    client
        .post(
            pods,
            &json!({"metadata": {"name": "lone"}, "spec": {
                "containers": [{"name": "c", "image": "i"}],
            }}),
        )
        .await;
    let binding = json!({"metadata": {"name": "lone"}, "target": {"kind": "Node", "name": "n"}});
    let path = format!("{pods}/lone/binding");
    assert_eq!(client.post(&path, &binding).await.code, 201);
    assert_eq!(client.post(&path, &binding).await.code, 409);
    let pod = client.get(&format!("{pods}/lone")).await.body;
    assert_eq!(pod["spec"]["nodeName"], "n");
    let path = format!("{pods}/lone/eviction");
    let uid = pod["metadata"]["uid"].clone();
    for (options, code) in [
        (json!({"dryRun": ["All"]}), 201),
        (json!({"dryRun": ["Some"]}), 422),
        (json!({"preconditions": {"uid": "another"}}), 409),
        (json!({"gracePeriodSeconds": -1}), 400),
        (
            json!({"dryRun": ["All"], "preconditions": {"uid": uid}}),
            201,
        ),
    ] {
        let eviction = json!({"metadata": {"name": "lone"}, "deleteOptions": options});
        let response = client.post(&path, &eviction).await;
        assert_eq!(response.code, code, "{response:?}");
        let pod = client.get(&format!("{pods}/lone")).await.body;
        assert!(pod["metadata"]["deletionTimestamp"].is_null(), "{options}");
    }
    let eviction = json!({"metadata": {"name": "lone"}});
    let response = client.post(&path, &eviction).await;
    assert_eq!(response.code, 201, "{response:?}");
    let pod = client.get(&format!("{pods}/lone")).await.body;
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
}
