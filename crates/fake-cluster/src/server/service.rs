//! The requests of a connection: authentication, authorization, dispatch and response.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderValue, Method, Request, StatusCode};
use skewbridge_gateway::authn::ClientCertState;
use skewbridge_http_engine::body::{Frame, RequestBody};
use skewbridge_http_engine::server::{ClientResponse, Service};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::request_info::{DecodedPath, Kind, RequestInfo};
use skewbridge_k8s_api::status::Status;

use super::api_request::ApiRequest;
use super::query::Query;
use super::{Server, authenticate, discovery, dispatch, health, openapi, responses};
use crate::object::generate_uid;
use crate::rbac::Attributes;

/// Maximum size of a body: kube-apiserver's.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// The requests of one client.
#[derive(Clone)]
pub(super) struct Requests {
    pub(super) server: Arc<Server>,
    pub(super) presented: Arc<ClientCertState>,
}

impl Service for Requests {
    type Record = ();

    fn refused(&self, status: StatusCode) {
        tracing::debug!(%status, "the request is malformed");
    }

    async fn call(&self, request: Request<RequestBody>) -> ClientResponse {
        let (head, body) = request.into_parts();
        let mut answer = match self.answer(&head, body).await {
            Ok(answer) => answer,
            Err(status) => ClientResponse::new(responses::failure(&status, &head.headers)),
        };
        let id = generate_uid(&mut super::shared_store::entropy);
        if let Ok(id) = HeaderValue::from_str(&id) {
            answer.response.headers_mut().insert("audit-id", id);
        }
        answer
    }
}

impl Requests {
    async fn answer(&self, head: &Parts, body: RequestBody) -> Result<ClientResponse, Status> {
        let server = &*self.server;
        let path = DecodedPath::new(head.uri.path())
            .map_err(|error| Status::bad_request(error.to_string()))?;
        let info = RequestInfo::parse(&head.method, &path, head.uri.query());
        let user = server.authenticator.user(&self.presented, &head.headers)?;
        let may = |user: &User, attributes: Attributes<'_>| server.authorize(user, attributes);
        let user = authenticate::impersonated(user, &head.headers, &may)?;
        server.authorize(&user, Attributes::of(&info))?;
        if info.kind == Kind::Resource {
            let request = ApiRequest {
                server,
                head,
                info: &info,
                query: Query::parse(head.uri.query()),
                user: &user,
                body: read_body(body).await?,
            };
            return dispatch::answer(&request).await;
        }
        let query = Query::parse(head.uri.query());
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Err(crate::status::method_not_allowed());
        }
        let headers = &head.headers;
        let reply = discovery::answer(&server.catalogue, server.address, info.path, headers)
            .or_else(|| openapi::answer(&server.documents, info.path, &query, headers).map(Ok))
            .or_else(|| health::answer(server, info.path, &query).map(Ok))
            .unwrap_or_else(|| Ok(responses::not_found_page()));
        reply.map(ClientResponse::new)
    }
}

/// Reads the whole body; 413 if it is too large.
async fn read_body(mut body: RequestBody) -> Result<Bytes, Status> {
    let mut whole = BytesMut::new();
    while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
        let frame = frame.map_err(|error| Status::bad_request(error.to_string()))?;
        if let Frame::Data(data) = frame {
            if whole.len() + data.len() > MAX_BODY_BYTES {
                let message = format!("Request entity too large: limit is {MAX_BODY_BYTES}");
                return Err(Status::new(413, "RequestEntityTooLarge", message));
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}
