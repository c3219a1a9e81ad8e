//! Requests to the kube-apiserver behind a bridge, with the files and flags of the bridge.

use skewbridge_client::Request;
use skewbridge_gateway::config::{Config, UpstreamServer};
use skewbridge_k8s_api::identity::User;

use crate::check::http::{self, Access};

/// Without a client certificate.
pub(super) fn access<'a>(config: &'a Config, server_name: &'a str) -> Access<'a> {
    Access {
        ca: &config.upstream.ca,
        server_name,
        client: None,
    }
}

/// `--bridge-user` and `--bridge-groups`
pub(super) fn own_user(config: &Config) -> User {
    User {
        name: config.upstream.bridge_user.name.clone(),
        groups: config.upstream.bridge_user.groups.clone(),
        ..User::default()
    }
}

/// Sends a request as a user that the bridge asserts.
pub(super) async fn send_as(
    config: &Config,
    server: &UpstreamServer,
    user: &User,
    request: Request,
) -> Result<http::HttpResponse, String> {
    let name = server.server_name.to_str();
    let access = Access {
        client: config.upstream.front_proxy.as_ref(),
        ..access(config, &name)
    };
    let endpoint = http::endpoint(&server.authority(), access).await?;
    let headers = &config.callers.headers;
    http::send(&endpoint, request, Some((headers, user))).await
}
