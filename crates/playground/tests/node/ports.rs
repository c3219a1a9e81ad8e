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
async fn what_a_pod_listens_on_is_forwarded() {
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
    driver.abort();
}

#[tokio::test]
async fn nobody_else_is_reached_through_a_pod() {
    let site = Site::new();
    let pod = |port: u16| {
        let ports = json!([{"containerPort": port}]);
        json!({"containers": [{"name": "web", "command": ["sleep", "1000"], "ports": ports}]})
    };
    // Strangers at the address of pods, everywhere, and at what pods call localhost.
    let strangers = ["127.0.0.2:0", "0.0.0.0:0", "127.0.0.1:0", "[::1]:0"];
    let strangers = strangers.map(|address| std::net::TcpListener::bind(address).ok());
    let strangers: Vec<_> = strangers.into_iter().flatten().collect();
    let first = strangers[0].local_addr().unwrap().port();
    site.running("web", &pod(first)).await;
    let (handle, _incoming, driver) =
        connection::client(connection(&site).await, Config::default());
    let driver = tokio::spawn(driver);
    for (number, stranger) in strangers.iter().enumerate() {
        let port = stranger.local_addr().unwrap().port();
        let (data, error) = get(&handle, port, &number.to_string()).await;
        assert_eq!(data, "");
        assert_eq!(
            error,
            format!(
                "error forwarding port {port} to pod web, uid : failed to connect to \
                 localhost:{port} inside the pod: connection refused"
            )
        );
        stranger.set_nonblocking(true).unwrap();
        let nobody = stranger.accept().map(|(_, address)| address);
        let nobody = nobody.unwrap_err().kind();
        assert_eq!(nobody, std::io::ErrorKind::WouldBlock);
    }
    driver.abort();
}
