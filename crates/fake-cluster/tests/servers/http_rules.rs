//! The servers apply the framing rules and limits of the HTTP engine.

use skewbridge_testkit::proxy_suites::smuggling::malformed_heads;

use crate::cluster_fixture::Cluster;

#[tokio::test]
async fn malformed_heads_are_rejected_and_the_bytes_after_them_are_not_read() {
    let cluster = Cluster::start().await;
    for (name, sent) in malformed_heads() {
        let mut client = cluster
            .pki
            .admin()
            .http1(cluster.new.address())
            .await
            .unwrap();
        client.send(sent).await.unwrap();
        let response = client.read_response().await.unwrap();
        assert_eq!(response.status, 400, "{name}");
        assert_eq!(response.header("connection"), Some("close"), "{name}");
        client.read_close().await.unwrap();
    }
}

#[tokio::test]
async fn oversized_heads_are_414_or_431() {
    let cluster = Cluster::start().await;
    let large = "x".repeat(1 << 20);
    for (status, sent) in [
        (
            414,
            format!("GET /{} HTTP/1.1\r\nHost: k\r\n\r\n", &large[..70_000]),
        ),
        (
            431,
            format!("GET / HTTP/1.1\r\nHost: k\r\nX: {large}\r\n\r\n"),
        ),
    ] {
        let mut client = cluster
            .pki
            .admin()
            .http1(cluster.new.address())
            .await
            .unwrap();
        client.send(sent).await.unwrap();
        assert_eq!(client.read_response().await.unwrap().status, status);
        client.read_close().await.unwrap();
    }
}
