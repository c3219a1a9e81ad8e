//! An upstream that answers the bridge's probes and leaves all other requests to a script.

use std::sync::Arc;

use http::Version;
use skewbridge_testkit::{ApiServer, RecordedRequest, Response, ScriptedConn, ScriptedServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::pki::PkiFixture;

/// Supports HTTP/1.1 only. The script gets the head of a request and its connection, and may
/// continue with [`next_request`].
pub(crate) async fn start_scripted<F, Fut>(pki: &PkiFixture, script: F) -> ScriptedServer
where
    F: Fn(String, ScriptedConn) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let script = Arc::new(script);
    ScriptedServer::start(&pki.upstream, None, &["http/1.1"], move |mut conn| {
        let script = script.clone();
        async move {
            if let Some(head) = next_request(&mut conn).await {
                script(head, conn).await;
            }
        }
    })
    .await
}

/// The next request head that is not a probe; `None` at the end of the connection.
pub(crate) async fn next_request(conn: &mut ScriptedConn) -> Option<String> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(conn.io.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).unwrap();
        if !head.starts_with("GET /readyz") && !head.starts_with("GET /version") {
            return Some(head);
        }
        let ready = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        conn.io.write_all(ready).await.ok()?;
        conn.io.flush().await.ok()?;
    }
}

/// The requests of clients, without the bridge's own probes.
pub(crate) fn client_requests(upstream: &ApiServer) -> Vec<RecordedRequest> {
    let mut all = upstream.requests();
    all.retain(|recorded| !recorded.is_probe());
    all
}

/// Asserts that a response is a `metav1.Status` in JSON with this code and consistent headers, and
/// returns it.
pub(crate) fn assert_json_status(response: &Response, code: u16) -> serde_json::Value {
    assert_eq!(response.status, code, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
    if response.version == Version::HTTP_11 {
        let length = response.body.len().to_string();
        assert_eq!(response.header("content-length"), Some(length.as_str()));
    }
    let status: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    assert_eq!(status["kind"], "Status", "{status}");
    assert_eq!(status["apiVersion"], "v1", "{status}");
    assert_eq!(status["status"], "Failure", "{status}");
    assert_eq!(status["code"], code, "{status}");
    assert!(!status["message"].as_str().unwrap().is_empty(), "{status}");
    status
}
