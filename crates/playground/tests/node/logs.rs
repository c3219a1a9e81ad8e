//! Logs.

use http::HeaderMap;
use serde_json::json;
use skewbridge_playground::server::pod_streams::{StreamAnswer, StreamKind::Log};

use crate::site::{LIMIT, Site};

async fn log(site: &Site, query: &str) -> String {
    let answer = site.ask(Log, "web", query, HeaderMap::new()).await;
    let StreamAnswer::Pieces(head, mut pieces) = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(head.headers()["content-type"], "text/plain");
    let mut text = Vec::new();
    let all = async {
        while let Some(piece) = pieces.recv().await {
            text.extend_from_slice(&piece);
        }
    };
    tokio::time::timeout(LIMIT, all).await.unwrap();
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn logs_are_followed_to_the_end_and_cut_as_asked() {
    let site = Site::new();
    let script = "echo one; echo two >&2; sleep 0.2; echo three";
    let container = json!({"name": "web", "command": ["/bin/sh", "-c", script]});
    let spec = json!({"restartPolicy": "Never", "containers": [container]});
    site.running("web", &spec).await;
    let mut lines: Vec<_> = log(&site, "follow=true")
        .await
        .lines()
        .map(str::to_owned)
        .collect();
    assert_eq!(lines.pop().as_deref(), Some("three"));
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    assert_eq!(log(&site, "tailLines=1").await, "three\n");
    assert_eq!(log(&site, "tailLines=1&limitBytes=2").await, "th");
    assert!(
        log(&site, "timestamps=true&tailLines=1")
            .await
            .ends_with("Z three\n")
    );
    let status = site.refused(Log, "web", "previous=true").await;
    assert_eq!(
        status.message,
        "previous terminated container \"web\" in pod \"web\" not found"
    );
}
