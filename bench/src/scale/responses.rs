//! What the stand-ins for kube-apiservers answer.

use std::task::{Context, Poll};
use std::time::SystemTime;

use anyhow::Result;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;
use skewbridge_http_engine::body::{ChunkProducer, ResponseBody};
use skewbridge_http_engine::server::{ClientResponse, UpgradeHandler};
use skewbridge_peer_directory::{Identity, IdentityLease};
use skewbridge_remotecommand::Protocol;
use skewbridge_websocket::{parse_upgrade_request, set_response_headers};
use tokio::io::AsyncReadExt;

use super::discovery_documents::{core, groups, own_group};
use crate::args::StandIn;

/// The object under load, at the server behind the bridge.
pub(super) const ANSWER: &str = "/api/v1/namespaces/bench/configmaps/answer";
pub(super) const ANSWER_BYTES: u32 = 1024;
pub(super) const EXEC: &str = "/api/v1/namespaces/bench/pods/pod/exec";
/// Every server accepts any token.
pub(super) const TOKEN: &str = "bench-token";

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const VERSION: &str = r#"{"major":"1","minor":"36","gitVersion":"v1.36.4"}"#;
/// Groups with this ending are served if discovery has them.
const BENCH_GROUP: &str = ".scale.bench";

/// An object that only one of the peers serves.
pub(super) fn object_of_peer(peer: u32) -> String {
    let group = own_group(peer);
    format!("/apis/{group}/v1/namespaces/bench/things/answer")
}

/// The identity of a server; 0 is behind the bridge.
pub(super) fn identity(server: u32) -> Result<Identity> {
    Ok(Identity::named(&format!("apiserver-{server}"))?)
}

/// What a server answers.
pub(super) struct Server {
    number: u32,
    servers: u32,
    core: Bytes,
    groups: Bytes,
    answer: Bytes,
}

impl Server {
    pub(super) fn new(number: u32, args: &StandIn) -> Self {
        let own = (number > 0).then(|| own_group(number));
        let groups = groups(args.resources, own.as_deref(), &["v1"]);
        let filler = "x".repeat(ANSWER_BYTES as usize);
        Self {
            number,
            servers: args.peers + 1,
            core: core().to_string().into(),
            groups: groups.to_string().into(),
            answer: json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"text": filler}})
                .to_string()
                .into(),
        }
    }

    pub(super) fn answer(&self, head: &Parts) -> Result<ClientResponse> {
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        match path {
            "/version" => return json_response(Bytes::from_static(VERSION.as_bytes())),
            "/readyz" | "/livez" | "/healthz" => {
                return response(StatusCode::OK, "text/plain", Bytes::from_static(b"ok"));
            }
            "/api" => return self.document(head, &self.core),
            "/apis" => return self.document(head, &self.groups),
            EXEC => return exec(head),
            _ => {}
        }
        if query.split('&').any(|pair| pair == "watch=true") {
            let mut answer = json_response(Bytes::new())?;
            *answer.response.body_mut() = ResponseBody::generated(NoEvents);
            return Ok(answer);
        }
        if path == LEASES {
            return json_response(self.leases()?);
        }
        if let Some(name) = path.strip_prefix(LEASES) {
            return json_response(lease(name.trim_start_matches('/'))?.into());
        }
        let group = path
            .strip_prefix("/apis/")
            .and_then(|it| it.split('/').next());
        match group {
            None if path.starts_with("/api/") => json_response(self.answer.clone()),
            Some(group) if group.ends_with(BENCH_GROUP) && self.serves(group) => {
                json_response(self.answer.clone())
            }
            Some(group) if !group.ends_with(BENCH_GROUP) => json_response(list(&[])),
            _ => {
                let page = Bytes::from_static(b"404 page not found\n");
                response(StatusCode::NOT_FOUND, "text/plain", page)
            }
        }
    }

    /// The groups of peers are those that the others do not serve.
    fn serves(&self, group: &str) -> bool {
        !group.starts_with("peer-") || group == own_group(self.number)
    }

    fn document(&self, head: &Parts, document: &Bytes) -> Result<ClientResponse> {
        let etag = format!("\"server-{}\"", self.number);
        let known = head.headers.get(IF_NONE_MATCH);
        let mut answer = if known.is_some_and(|it| it.as_bytes() == etag.as_bytes()) {
            response(StatusCode::NOT_MODIFIED, V2, Bytes::new())?
        } else {
            response(StatusCode::OK, V2, document.clone())?
        };
        let headers = answer.response.headers_mut();
        headers.insert(ETAG, HeaderValue::from_str(&etag)?);
        Ok(answer)
    }

    /// Those of all servers, renewed now: they are valid for an hour.
    fn leases(&self) -> Result<Bytes> {
        let leases = (0..self.servers).map(|it| lease(identity(it)?.as_str()));
        let leases = leases.collect::<Result<Vec<_>>>()?;
        Ok(list(&leases))
    }
}

fn lease(name: &str) -> Result<String> {
    let host = format!("host-of-{name}");
    let lease = IdentityLease::new(&Identity::named(name)?, &host, name, SystemTime::now());
    let mut object: serde_json::Value = serde_json::from_str(&lease.to_json())?;
    object["metadata"]["resourceVersion"] = json!("1");
    object["metadata"]["uid"] = json!(format!("uid-of-{name}"));
    Ok(object.to_string())
}

fn list(items: &[String]) -> Bytes {
    let items = items.join(",");
    format!(
        "{{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{{\"resourceVersion\":\"1\"}},\
         \"items\":[{items}]}}"
    )
    .into()
}

/// A command that neither reads nor writes anything, and runs until its client leaves.
fn exec(head: &Parts) -> Result<ClientResponse> {
    let request = parse_upgrade_request(&head.method, &head.headers)?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let protocol = HeaderValue::from_static(Protocol::V5.name());
    set_response_headers(&request, Some(protocol), response.headers_mut());
    let handler = UpgradeHandler::new(|mut io, _, ()| async move {
        let mut ignored = [0; 1024];
        while matches!(io.read(&mut ignored).await, Ok(length) if length > 0) {}
    });
    Ok(ClientResponse::switching(response, handler))
}

fn json_response(body: Bytes) -> Result<ClientResponse> {
    response(StatusCode::OK, "application/json", body)
}

fn response(status: StatusCode, media: &'static str, body: Bytes) -> Result<ClientResponse> {
    let response = Response::builder().status(status);
    let response = response.header(CONTENT_TYPE, media);
    Ok(ClientResponse::new(
        response.body(ResponseBody::full(body))?,
    ))
}

/// The body of a watch.
#[derive(Debug)]
struct NoEvents;

impl ChunkProducer for NoEvents {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn status(server: &Server, target: &str) -> u16 {
        let (head, ()) = Request::get(target).body(()).unwrap().into_parts();
        server.answer(&head).unwrap().response.status().as_u16()
    }

    #[test]
    fn only_a_peer_serves_its_group() {
        let args = StandIn {
            certificate: "unused".into(),
            key: "unused".into(),
            peers: 2,
            resources: 100,
        };
        let servers = [0, 1, 2].map(|number| Server::new(number, &args));
        let statuses = |target: &str| servers.each_ref().map(|it| status(it, target));
        assert_eq!(statuses(ANSWER), [200, 200, 200]);
        assert_eq!(statuses(&object_of_peer(1)), [404, 200, 404]);
        assert_eq!(statuses(&object_of_peer(2)), [404, 404, 200]);
        assert_eq!(statuses("/apis"), [200, 200, 200]);
        assert_eq!(statuses("/openapi/v2"), [404, 404, 404]);
    }

    #[test]
    fn leases_of_all_servers_are_listed() {
        let args = StandIn {
            certificate: "unused".into(),
            key: "unused".into(),
            peers: 50,
            resources: 0,
        };
        let list = Server::new(0, &args).leases().unwrap();
        let list: serde_json::Value = serde_json::from_slice(&list).unwrap();
        let leases = list["items"].as_array().unwrap();
        assert_eq!(leases.len(), 51);
        for lease in leases {
            IdentityLease::parse(lease.to_string().as_bytes()).unwrap();
        }
    }
}
