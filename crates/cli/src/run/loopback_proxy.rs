//! The listener for the command, and forwarding from there.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use http::uri::Authority as HostAndPort;
use skewbridge_client::Endpoint;
use skewbridge_client::exec_plugin::ConnectionCredential;
use skewbridge_exec_proxy::forward::{
    BoxFuture, ConnectError, CredentialState, Dial, DialedStream, Forwarder, Listener, Protocol,
    ProtocolOffer, ServerThread, connect_error,
};
use skewbridge_exec_proxy::{EphemeralCa, ModifyError, Outgoing, RequestModifier};
use tokio::net::TcpListener;

use super::kubeconfig::Access;

/// Other impersonation headers are ignored without this one.
const IMPERSONATE: &str = "impersonate-user";

/// Time for the shutdown: on an idle machine, ending processes and removing directories takes
/// milliseconds.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// A loopback listener that accepts clients with the certificate, and forwards to a cluster.
/// Dropping it closes it.
#[derive(Debug)]
pub(super) struct LoopbackProxy {
    access: Access,
    serving: ServerThread,
}

impl LoopbackProxy {
    /// Opens the listener, with a new CA.
    pub(super) async fn open(endpoint: Arc<Endpoint>) -> Result<Self, String> {
        let host: HostAndPort = endpoint
            .authority()
            .parse()
            .map_err(|_| format!("{} is not a host", endpoint.authority()))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(|error| format!("cannot listen on 127.0.0.1: {error}"))?;
        let address = listener
            .local_addr()
            .map_err(|error| format!("cannot listen on 127.0.0.1: {error}"))?;
        let ca = EphemeralCa::new().map_err(|error| error.to_string())?;
        let tls = ca.server_config(&[]).map_err(|error| error.to_string())?;
        let client = ca.issue_client().map_err(|error| error.to_string())?;
        let access = Access {
            server: format!("https://{address}{}", endpoint.path_prefix()),
            authority: ca.pem().to_owned(),
            certificate: client.certificate,
            key: client.key,
        };
        let credentials = Box::new(Credentials(endpoint.clone()));
        let forwarder = Forwarder::new(Upstream(endpoint), host, vec![credentials]);
        let serving = ServerThread::start(Listener::Tcp(listener), tls, Arc::new(forwarder))
            .map_err(|error| format!("cannot serve the command: {error}"))?;
        Ok(Self { access, serving })
    }

    /// Closes it, and ends the plugin. Requests in flight are dropped, because the command has
    /// ended.
    pub(super) async fn close(self) {
        self.serving.stop(SHUTDOWN_TIMEOUT).await;
    }

    /// The kubeconfig data for the command.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }
}

/// To the plugin's proxy, or to the cluster: the endpoint decides, and runs the plugin again
/// when needed.
struct Upstream(Arc<Endpoint>);

impl Dial for Upstream {
    fn dial(&self, offer: ProtocolOffer) -> BoxFuture<'_, Result<DialedStream, ConnectError>> {
        Box::pin(async move {
            let opened = self.0.open(&offer.alpn()).await;
            let opened = opened.map_err(|error| connect_error(&error))?;
            let credential = opened
                .credential
                .map(|credential| Arc::new(PluginCredential(credential)) as _);
            Ok(DialedStream {
                stream: opened.stream,
                protocol: Protocol::from_alpn(opened.protocol.as_deref()),
                credential,
            })
        })
    }
}

/// The credential of the plugin is used until it expires, or until the cluster answers 401.
struct PluginCredential(ConnectionCredential);

impl CredentialState for PluginCredential {
    fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    fn reaches_workload(&self, path: &str) -> bool {
        self.0.reaches_workload(path)
    }

    fn mark_unauthorized(&self, request: &HeaderMap) {
        self.0.mark_unauthorized(request);
    }
}

/// Adds the headers of the context that the command does not send.
struct Credentials(Arc<Endpoint>);

impl RequestModifier for Credentials {
    fn name(&self) -> &'static str {
        "skewbridge run"
    }

    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
        Box::pin(async move {
            let ours = self.0.credential_headers().await;
            let ours = ours.map_err(|error| ModifyError::new(error.to_string()))?;
            add(ours, request.headers);
            Ok(())
        })
    }
}

/// Headers of the command take precedence, as kubectl's `--token` and `--as` do.
fn add(ours: HeaderMap, headers: &mut HeaderMap) {
    let has_token = headers.contains_key(AUTHORIZATION);
    let has_role = headers.contains_key(IMPERSONATE);
    let mut name = None;
    for (next, value) in ours {
        name = next.or(name);
        let Some(name) = &name else { continue };
        let is_given = match name {
            name if *name == AUTHORIZATION => has_token,
            _ => has_role,
        };
        if !is_given {
            headers.append(name.clone(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn headers_of_the_command_override_the_context() {
        let ours = headers(&[("authorization", "Bearer ours"), (IMPERSONATE, "you")]);
        let rows = [
            (
                headers(&[("accept", "x")]),
                headers(&[
                    ("accept", "x"),
                    ("authorization", "Bearer ours"),
                    (IMPERSONATE, "you"),
                ]),
            ),
            (
                headers(&[("authorization", "Bearer theirs")]),
                headers(&[("authorization", "Bearer theirs"), (IMPERSONATE, "you")]),
            ),
            (
                headers(&[(IMPERSONATE, "them")]),
                headers(&[("authorization", "Bearer ours"), (IMPERSONATE, "them")]),
            ),
        ];
        for (mut requested, expected) in rows {
            add(ours.clone(), &mut requested);
            assert_eq!(requested, expected);
        }
        let mut many = HeaderMap::new();
        for group in ["a", "b"] {
            many.append("impersonate-group", HeaderValue::from_static(group));
        }
        let mut requested = HeaderMap::new();
        add(many.clone(), &mut requested);
        assert_eq!(requested, many);
    }
}
