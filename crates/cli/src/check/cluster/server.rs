//! One server: a bridge, or a kube-apiserver itself.

use std::sync::Arc;
use std::time::SystemTime;

use rustls_pki_types::ServerName;
use skewbridge_client::kubeconfig::PemSource;
use skewbridge_client::{Request, Target};
use skewbridge_discovery::{ServerDiscoveryList, servers};
use skewbridge_gateway::tls::client_config;
use skewbridge_gateway::tls::files::{load_ca, parse_ca, validity};
use skewbridge_gateway::tls::own_certificates::PEER_NAME;

use crate::check::handshake::{ConnectProblem, ServerCertificate, handshake};
use crate::check::http::{self, ClockReading};
use crate::flag_values;

/// What answers at an address.
#[derive(Debug, Clone)]
pub(super) enum ServerReachability {
    Bridge(Box<BridgeReport>),
    /// A kube-apiserver without a bridge in front.
    Server,
    /// It cannot be connected to, or its certificate is not valid.
    Unreachable(String),
    /// It does not accept the credentials.
    Refused(String),
}

/// What a bridge reports.
#[derive(Debug, Clone)]
pub(super) struct BridgeReport {
    pub(super) list: ServerDiscoveryList,
    /// When its serving certificate expires, if this is known.
    pub(super) not_after: Option<SystemTime>,
    pub(super) clock: Option<ClockReading>,
}

/// The same cluster and user at another address. All serving certificates have the name that pods
/// verify.
pub(in crate::check) fn with_address(target: &Target, authority: &str) -> Target {
    let server = format!("https://{authority}");
    target.clone().with_server(&server, Some(PEER_NAME))
}

/// Determines whether a bridge or a kube-apiserver answers at the address.
pub(super) async fn contact(target: &Target) -> ServerReachability {
    let (mut found, not_after) = tokio::join!(connect(target), expiry(target));
    if let ServerReachability::Bridge(answer) = &mut found {
        answer.not_after = not_after;
    }
    found
}

/// The same over one new connection, without its certificate.
pub(super) async fn connect(target: &Target) -> ServerReachability {
    let endpoint = match http::prepared(target).await {
        Ok(endpoint) => endpoint,
        Err(why) => return ServerReachability::Unreachable(why),
    };
    let request = Request::get("/apis").header("accept", servers::ACCEPT);
    let answer = match http::send(&endpoint, request, None).await {
        Ok(answer) => answer,
        Err(why) => return ServerReachability::Unreachable(why),
    };
    let response = &answer.response;
    if !response.status.is_success() {
        return ServerReachability::Refused(crate::skew::refusal("/apis", response));
    }
    if !servers::is_content_type(response.content_type()) {
        return ServerReachability::Server;
    }
    match ServerDiscoveryList::parse(&response.body) {
        Ok(list) => ServerReachability::Bridge(Box::new(BridgeReport {
            list,
            not_after: None,
            clock: answer.clock,
        })),
        Err(error) => ServerReachability::Refused(format!("/apis: {error}")),
    }
}

/// When the serving certificate expires.
pub(in crate::check) async fn expiry(target: &Target) -> Option<SystemTime> {
    let certificate = connected(target).await?.ok()??;
    validity(&[certificate])
        .ok()
        .map(|(_, not_after)| not_after)
}

/// Why a server cannot be connected to, if this is known.
pub(super) async fn problem(target: &Target) -> Option<ConnectProblem> {
    connected(target).await?.err()
}

/// A handshake; none through a proxy, and none without a CA.
async fn connected(target: &Target) -> Option<Result<ServerCertificate, ConnectProblem>> {
    let cluster = &target.cluster;
    let endpoint = flag_values::endpoint(&cluster.server).ok()?;
    let bundle = match cluster.certificate_authority.as_ref()? {
        PemSource::Data(pem) => parse_ca(pem.expose()).ok()?,
        PemSource::File(path) => load_ca(path).ok()?,
    };
    let tls = client_config(&bundle, None).ok()?;
    let name = cluster.tls_server_name.as_ref().unwrap_or(&endpoint.host);
    let name = ServerName::try_from(name.clone()).ok()?;
    let port = endpoint.port.unwrap_or(443);
    if cluster.proxy_url.is_some() {
        return None;
    }
    Some(handshake(&endpoint.host, port, &name, Arc::new(tls)).await)
}
