//! Requests to servers, as this bridge or another client would send them.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use http::header::DATE;
use http::{HeaderMap, Method};
use serde_json::Value;
use skewbridge_client::kubeconfig::{Cluster, PemSource, User as ClientUser};
use skewbridge_client::{Endpoint, Error, Request, Response, Target};
use skewbridge_gateway::config::KeyPairFiles;
use skewbridge_k8s_api::identity::{IdentityHeaders, User};
use skewbridge_k8s_api::time::parse_http_date;

use super::handshake::PROBE_TIMEOUT;

/// A response of any size that a check needs.
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;

/// How a server is verified, and how the client authenticates.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access<'a> {
    pub(crate) ca: &'a Path,
    pub(crate) server_name: &'a str,
    pub(crate) client: Option<&'a KeyPairFiles>,
}

/// The server at `HOST:PORT`.
pub(crate) async fn endpoint(authority: &str, access: Access<'_>) -> Result<Endpoint, String> {
    let file = |path: &Path| Some(PemSource::File(path.to_owned()));
    let target = Target {
        context: "check".to_owned(),
        cluster_name: authority.to_owned(),
        cluster: Cluster {
            server: format!("https://{authority}"),
            tls_server_name: Some(access.server_name.to_owned()),
            certificate_authority: file(access.ca),
            ..Cluster::default()
        },
        user_name: "check".to_owned(),
        user: ClientUser {
            client_certificate: access.client.and_then(|it| file(&it.cert)),
            client_key: access.client.and_then(|it| file(&it.key)),
            ..ClientUser::default()
        },
        namespace: None,
    };
    prepared(&target).await
}

/// The server of a kubeconfig.
pub(crate) async fn prepared(target: &Target) -> Result<Endpoint, String> {
    let endpoint = Endpoint::prepare(target, Some(PROBE_TIMEOUT)).await;
    endpoint.map_err(|error| error.to_string())
}

/// A response, and what it says about the clock of the server.
#[derive(Debug, Clone)]
pub(crate) struct HttpResponse {
    pub(crate) response: Response,
    pub(crate) clock: Option<ClockReading>,
}

/// A `Date` header, and when it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClockReading {
    /// Seconds since 1970.
    pub(crate) server_time: u64,
    /// This machine's clock in the middle between request and response.
    pub(crate) local_time: SystemTime,
    pub(crate) round_trip: Duration,
}

impl HttpResponse {
    /// The body, if the status is 2xx.
    pub(crate) fn json(&self, path: &str) -> Result<Value, String> {
        if !self.response.status.is_success() {
            return Err(crate::skew::refusal(path, &self.response));
        }
        serde_json::from_slice(&self.response.body).map_err(|error| format!("{path}: {error}"))
    }
}

/// Sends a request, as this user if there is one.
pub(crate) async fn send(
    endpoint: &Endpoint,
    request: Request,
    user: Option<(&IdentityHeaders, &User)>,
) -> Result<HttpResponse, String> {
    let sent = try_send(endpoint, request, user).await;
    sent.map_err(|error| error.to_string())
}

/// The same with the kind of the error.
pub(crate) async fn try_send(
    endpoint: &Endpoint,
    request: Request,
    user: Option<(&IdentityHeaders, &User)>,
) -> Result<HttpResponse, Error> {
    let mut request = request.limit(MAX_RESPONSE_BYTES);
    if let Some((headers, user)) = user {
        let mut written = HeaderMap::new();
        let result = headers.write(&mut written, user);
        result.map_err(|error| Error::InvalidRequest(error.to_string()))?;
        for (name, value) in &written {
            request = request.header(name.as_str(), value.to_str().unwrap_or_default());
        }
    }
    let (local_time, started) = (SystemTime::now(), Instant::now());
    let response = endpoint.send(&request).await?;
    let round_trip = started.elapsed();
    let server_time = response.header(&DATE).and_then(parse_http_date);
    Ok(HttpResponse {
        clock: server_time.map(|server_time| ClockReading {
            server_time,
            local_time: local_time + round_trip / 2,
            round_trip,
        }),
        response,
    })
}

/// A GET of JSON.
pub(crate) fn get(path: &str) -> Request {
    Request::get(path).header("accept", "application/json")
}

/// A POST of JSON.
pub(crate) fn post(path: &str, body: impl Into<String>) -> Request {
    Request::new(Method::POST, path)
        .header("accept", "application/json")
        .header("content-type", "application/json")
        .body(body.into())
}
