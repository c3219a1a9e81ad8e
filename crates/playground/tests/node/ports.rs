//! Port-forward.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;
use skewbridge_channels::port_forward::{Port, Stream as Which, pair};
use skewbridge_playground::server::pod_streams::StreamKind::PortForward;
use skewbridge_spdy::connection::{self, Handle, Receiver, Stream};
use skewbridge_spdy::{Config, Headers};
use tokio::io::DuplexStream;

use crate::site::{LIMIT, Site, spdy_headers};

fn open(handle: &Handle, stream: Which, port: u16, request: &str) -> Stream {
    let headers = pair::Headers {
        stream,
        port: Port::new(port).unwrap(),
        request: request.to_owned(),
    };
    let mut fields = Headers::new();
    for (name, value) in headers.fields() {
        fields = fields.with(name, value);
    }
    handle.open(fields).unwrap()
}

async fn all(mut receiver: Receiver) -> String {
    let mut text = Vec::new();
    let read = async {
        while let Ok(Some(data)) = receiver.read().await {
            text.extend_from_slice(&data);
        }
    };
    tokio::time::timeout(LIMIT, read).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// What comes from a port, and what is said of it.
async fn get(handle: &Handle, port: u16, request: &str) -> (String, String) {
    let mut error = open(handle, Which::Error, port, request);
    error.sender.finish().unwrap();
    let mut data = open(handle, Which::Data, port, request);
    let ask = Bytes::from_static(b"GET / HTTP/1.1\r\nhost: web\r\n\r\n");
    data.sender.write(ask).await.unwrap();
    data.sender.finish().unwrap();
    tokio::join!(all(data.receiver), all(error.receiver))
}

async fn connection(site: &Site) -> DuplexStream {
    let headers: HeaderMap = spdy_headers("portforward.k8s.io");
    site.switched(PortForward, "web", "", headers).await
}

#[tokio::test]
async fn declared_ports_are_forwarded_and_no_others() {
    let site = Site::new();
    // One that only root may have, and one that anybody may.
    let ports = json!([{"containerPort": 80}, {"containerPort": 18_080}]);
    let container = json!({"name": "web", "image": "web", "ports": ports});
    site.running("web", &json!({"containers": [container]}))
        .await;
    let (handle, _incoming, driver) =
        connection::client(connection(&site).await, Config::default());
    let driver = tokio::spawn(driver);
    for (number, port) in [(1, 80), (2, 18_080), (3, 80)] {
        // The process may not listen yet.
        let mut got = (String::new(), String::new());
        for attempt in 0..200 {
            got = get(&handle, port, &format!("{number}-{attempt}")).await;
            if got.1.is_empty() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(
            got.0
                .ends_with(&format!("Hello from pod web, port {port}.\n")),
            "{got:?}"
        );
    }
    let (data, error) = get(&handle, 22, "4").await;
    assert_eq!(data, "");
    assert_eq!(
        error,
        "error forwarding port 22 to pod web, uid : port 22 is not one of the container ports of \
         pod web"
    );
    driver.abort();
}
