//! Requests to the admin ports of bridges.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use skewbridge_client::{Endpoint, Error, Kubeconfig, Request, Response, Target};

/// The time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The admin port of a bridge.
#[derive(Debug, Clone)]
pub(crate) enum AdminTarget {
    /// `--admin-address` of a bridge on this machine: plain HTTP, without credentials.
    Loopback(SocketAddr),
    /// `--admin-secure-address`, as a user of a kubeconfig.
    Secure(Box<Target>),
}

impl AdminTarget {
    /// Sends a GET. `timeout`: `None` is no limit.
    pub(crate) async fn get(
        &self,
        request: &Request,
        timeout: Option<Duration>,
    ) -> Result<Response, Error> {
        let endpoint = match self {
            Self::Loopback(address) => {
                let kubeconfig = Kubeconfig::parse(
                    &without_credentials(*address),
                    Path::new("--admin-address"),
                )?;
                Endpoint::prepare(&kubeconfig.target(None)?, timeout).await?
            }
            Self::Secure(target) => Endpoint::prepare(target, timeout).await?,
        };
        endpoint.send(request).await
    }
}

/// A kubeconfig for this address.
fn without_credentials(address: SocketAddr) -> String {
    format!(
        "{{current-context: admin, contexts: [{{name: admin, context: {{cluster: admin, user: none}}}}], \
         clusters: [{{name: admin, cluster: {{server: 'http://{address}'}}}}], users: [{{name: none, user: {{}}}}]}}"
    )
}

/// The body of a response of a bridge on this machine: that of a success, or as an error.
pub(crate) fn get(admin_address: SocketAddr, target: &str) -> Result<String, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?
        .block_on(send(admin_address, target))
}

async fn send(admin_address: SocketAddr, target: &str) -> Result<String, String> {
    let admin = AdminTarget::Loopback(admin_address);
    let response = admin
        .get(&Request::get(target), Some(REQUEST_TIMEOUT))
        .await;
    let response = response.map_err(|error| {
        format!("{error}; is a bridge running whose --admin-address is {admin_address}?")
    })?;
    let text = String::from_utf8_lossy(&response.body).trim().to_owned();
    if response.status.is_success() {
        Ok(text)
    } else {
        Err(text)
    }
}
