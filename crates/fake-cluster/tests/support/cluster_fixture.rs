//! Three servers over one store, and clients for them.

use std::collections::HashMap;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};
use serde_json::Value;
use skewbridge_fake_cluster::catalogue::Release;
use skewbridge_fake_cluster::server::pod_streams::{PodStreams, StreamRequest, StreamResponse};
use skewbridge_fake_cluster::server::{ApiServer, RunningServer, ServerConfig, SharedStore};
use skewbridge_gateway::tls::files::{KeyPairFiles, load_ca};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::status::Status;
use skewbridge_testkit::{Ca, H2Client, H2Stream, Leaf, ScratchDir, TlsClient};

pub(crate) struct Cluster {
    pub(crate) store: SharedStore,
    pub(crate) old: RunningServer,
    pub(crate) middle: RunningServer,
    pub(crate) new: RunningServer,
    pub(crate) pki: Pki,
}

pub(crate) struct Pki {
    pub(crate) serving: Ca,
    pub(crate) clients: Ca,
    pub(crate) proxies: Ca,
    files: ScratchDir,
}

/// The token of a read-only user.
pub(crate) const VISITOR_TOKEN: &str = "the-visitors-token";

impl Pki {
    pub(crate) fn new() -> Self {
        Self {
            serving: Ca::new("serving"),
            clients: Ca::new("clients"),
            proxies: Ca::new("proxies"),
            files: ScratchDir::new(),
        }
    }

    pub(crate) async fn start(
        &self,
        release: Release,
        store: &SharedStore,
        streams: Arc<dyn PodStreams>,
    ) -> RunningServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let leaf = self.serving.server(&["localhost", "127.0.0.1"]);
        let name = format!("{release}");
        let ca = |ca: &Ca, name: &str| load_ca(&self.files.write(name, ca.pem())).unwrap();
        let visitor = User {
            name: "visitor".to_owned(),
            ..User::default()
        };
        ApiServer::start(ServerConfig {
            release,
            listener,
            serving: KeyPairFiles {
                cert: self.files.write(&format!("{name}.crt"), &leaf.cert_pem),
                key: self.files.write(&format!("{name}.key"), &leaf.key_pem),
            }
            .load()
            .unwrap(),
            client_ca: ca(&self.clients, "clients.crt"),
            front_proxy_ca: ca(&self.proxies, "proxies.crt"),
            front_proxy_names: vec!["front-proxy".to_owned()],
            tokens: HashMap::from([(VISITOR_TOKEN.to_owned(), visitor)]),
            hostname: format!("playground-{release}"),
            store: store.clone(),
            streams,
        })
        .await
        .unwrap()
    }

    pub(crate) fn anonymous(&self) -> TlsClient {
        TlsClient::new(&self.serving)
    }

    pub(crate) fn admin(&self) -> TlsClient {
        self.anonymous().identity(&self.admin_certificate())
    }

    pub(crate) fn admin_certificate(&self) -> Leaf {
        self.clients.client("admin", &["system:masters"])
    }
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        Self::with(Arc::new(NoNode)).await
    }

    pub(crate) async fn with(streams: Arc<dyn PodStreams>) -> Self {
        let pki = Pki::new();
        let store = SharedStore::new().unwrap();
        Self {
            old: pki.start(Release::V1_28, &store, streams.clone()).await,
            middle: pki.start(Release::V1_34, &store, streams.clone()).await,
            new: pki.start(Release::V1_36, &store, streams).await,
            store,
            pki,
        }
    }

    pub(crate) fn servers(&self) -> [&RunningServer; 3] {
        [&self.old, &self.middle, &self.new]
    }

    /// An administrator on a connection to a server.
    pub(crate) async fn admin(&self, server: &RunningServer) -> Client {
        Client(self.pki.admin().http2(server.address()).await.unwrap())
    }
}

/// For a cluster without a node: no pod runs.
pub(crate) struct NoNode;

impl PodStreams for NoNode {
    fn answer(
        &self,
        request: StreamRequest,
    ) -> Pin<Box<dyn Future<Output = StreamResponse> + Send + '_>> {
        let node = request.pod.text(&["spec", "nodeName"]);
        let message = format!("the node {node} of pod {} does not answer", request.name);
        Box::pin(async { StreamResponse::Refused(Status::internal(message)) })
    }
}

/// A client over HTTP/2.
pub(crate) struct Client(pub(crate) H2Client);

/// The response to a request.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) code: u16,
    pub(crate) body: Value,
}

impl Client {
    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.send_request(Method::GET, path, &[], Bytes::new())
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> TestResponse {
        self.json(Method::POST, path, body).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> TestResponse {
        self.json(Method::PUT, path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> TestResponse {
        self.send_request(Method::DELETE, path, &[], Bytes::new())
            .await
    }

    pub(crate) async fn json(&self, method: Method, path: &str, body: &Value) -> TestResponse {
        let media = [("content-type", "application/json")];
        self.send_request(method, path, &media, body.to_string())
            .await
    }

    pub(crate) async fn patch(&self, path: &str, form: &str, body: &Value) -> TestResponse {
        let media = [("content-type", form)];
        self.send_request(Method::PATCH, path, &media, body.to_string())
            .await
    }

    pub(crate) async fn send_request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> TestResponse {
        let answer = self.0.request(request(method, path, headers), body).await;
        let answer = answer.unwrap();
        let text = answer.text();
        TestResponse {
            code: answer.status,
            body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
        }
    }

    pub(crate) async fn watch(&self, path: &str) -> Watch {
        self.watch_as(path, &[]).await
    }

    pub(crate) async fn watch_as(&self, path: &str, headers: &[(&str, &str)]) -> Watch {
        let mut stream = self
            .0
            .stream(request(Method::GET, path, headers))
            .await
            .unwrap();
        stream.finish().unwrap();
        let code = stream.head().await.unwrap().status.as_u16();
        Watch {
            stream,
            code,
            rest: Vec::new(),
        }
    }
}

fn request(method: Method, path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("https://localhost{path}"))
        .header("user-agent", "tester/1");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

/// A watch that is read event by event.
pub(crate) struct Watch {
    stream: H2Stream,
    pub(crate) code: u16,
    rest: Vec<u8>,
}

impl Watch {
    /// The next event; `None` when the watch has ended.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = self.stream.chunk().await?;
            self.rest.extend_from_slice(&chunk.unwrap());
        }
    }

    /// The type of the next event and the name of its object.
    pub(crate) async fn next_event_name(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch is open");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (
            text(&event["type"]),
            text(&event["object"]["metadata"]["name"]),
        )
    }
}
