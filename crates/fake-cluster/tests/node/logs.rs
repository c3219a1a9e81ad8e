//! Logs.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use skewbridge_fake_cluster::server::pod_streams::{StreamKind::Log, StreamResponse};
use tokio::sync::mpsc;

use crate::node_fixture::{NodeFixture, TEST_TIMEOUT};

/// A log that is read.
struct LogReader {
    pieces: mpsc::Receiver<Bytes>,
    text: String,
}

impl LogReader {
    async fn of(fixture: &NodeFixture, query: &str) -> Self {
        let answer = fixture
            .send_request(Log, "web", query, HeaderMap::new())
            .await;
        let StreamResponse::Chunked(head, pieces) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(head.headers()["content-type"], "text/plain");
        Self {
            pieces,
            text: String::new(),
        }
    }

    /// Reads until there is enough, or the end.
    async fn read(&mut self, enough: impl Fn(&str) -> bool) {
        let read = async {
            while !enough(&self.text)
                && let Some(piece) = self.pieces.recv().await
            {
                self.text.push_str(std::str::from_utf8(&piece).unwrap());
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, read).await.unwrap();
    }
}

async fn log(fixture: &NodeFixture, query: &str) -> String {
    let mut reading = LogReader::of(fixture, query).await;
    reading.read(|_| false).await;
    reading.text
}

#[tokio::test]
async fn logs_are_followed_to_the_end_and_limited() {
    let fixture = NodeFixture::new();
    let script = "echo one; echo two >&2; until [ -e go ]; do sleep 0.05; done; echo three";
    let container = json!({"name": "web", "command": ["/bin/sh", "-c", script]});
    let spec = json!({"restartPolicy": "Never", "containers": [container]});
    let pod = fixture.running("web", &spec).await;
    let mut followed = LogReader::of(&fixture, "follow=true").await;
    followed.read(|text| text.lines().count() == 2).await;
    std::fs::write(fixture.directory(&pod).join("go"), "").unwrap();
    followed.read(|_| false).await;
    let mut lines: Vec<_> = followed.text.lines().collect();
    assert_eq!(lines.pop(), Some("three"));
    // The order of stdout and stderr is not defined.
    lines.sort_unstable();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(log(&fixture, "tailLines=1").await, "three\n");
    assert_eq!(log(&fixture, "tailLines=1&limitBytes=2").await, "th");
    assert!(
        log(&fixture, "timestamps=true&tailLines=1")
            .await
            .ends_with("Z three\n")
    );
    let status = fixture.refused(Log, "web", "previous=true").await;
    assert_eq!(
        status.message,
        "previous terminated container \"web\" in pod \"web\" not found"
    );
}
