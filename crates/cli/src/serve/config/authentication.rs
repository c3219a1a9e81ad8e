//! How clients authenticate, and how their users are asserted to kube-apiserver.

use skewbridge_gateway::config::{AuthenticationConfig, Config, RequestHeader};
use skewbridge_gateway::tls::ca_conflict::{self, CaConflict};
use skewbridge_gateway::tls::files::load_ca;
use skewbridge_k8s_api::identity::IdentityHeaders;

use super::non_empty;
use crate::flag_values;
use crate::serve::diagnostics::Diagnostics;
use crate::serve::flags::{AuthenticationFlags, Flags};
use crate::serve::signatures;

pub(super) fn callers(
    flags: &AuthenticationFlags,
    diagnostics: &mut Diagnostics,
) -> AuthenticationConfig {
    const REQUEST_HEADER_CA: &str = "--requestheader-client-ca-file";
    let client_ca = diagnostics.ca(("--client-ca-file", non_empty(flags.client_ca_file.as_ref())));
    let path = non_empty(flags.requestheader_client_ca_file.as_ref());
    let peer_ca = diagnostics.ca((REQUEST_HEADER_CA, path));
    let allowed_names = diagnostics.values(
        "--requestheader-allowed-names",
        &flags.requestheader_allowed_names,
        |name| Ok(name.to_owned()),
    );
    let headers = identity_headers(flags, diagnostics);
    let (client_ca, users) = client_ca.unzip();
    let (peer_ca, proxies) = peer_ca.unzip();
    let callers = AuthenticationConfig {
        client_ca,
        request_header: peer_ca.map(|ca| RequestHeader { ca, allowed_names }),
        signatures: signatures::read(flags, &headers, diagnostics),
        headers,
    };
    if let (Some(users), Some(proxies)) = (users, proxies) {
        let conflict = ca_conflict::request_header_conflict(&callers, &proxies, &users);
        refuse(conflict, diagnostics);
    }
    callers
}

fn identity_headers(flags: &AuthenticationFlags, diagnostics: &mut Diagnostics) -> IdentityHeaders {
    let username = diagnostics.values(
        "--requestheader-username-headers",
        &flags.requestheader_username_headers,
        flag_values::identity_header,
    );
    let uid = diagnostics.values(
        "--requestheader-uid-headers",
        &flags.requestheader_uid_headers,
        flag_values::identity_header,
    );
    let group = diagnostics.values(
        "--requestheader-group-headers",
        &flags.requestheader_group_headers,
        flag_values::identity_header,
    );
    let extra_prefix = diagnostics.values(
        "--requestheader-extra-headers-prefix",
        &flags.requestheader_extra_headers_prefix,
        flag_values::identity_prefix,
    );
    for prefix in &extra_prefix {
        let covered_header = [&username, &uid, &group]
            .into_iter()
            .flatten()
            .find(|name| name.as_str().starts_with(prefix.as_str()));
        if let Some(name) = covered_header {
            diagnostics.problem(
                "--requestheader-extra-headers-prefix",
                None,
                format!("{prefix:?} is too short: it would also match {name}"),
            );
        }
    }
    IdentityHeaders {
        username,
        uid,
        group,
        extra_prefix,
    }
}

/// The front-proxy certificate must not authenticate as a user where it is presented to peers.
pub(super) fn check_front_proxy_is_not_user(config: &Config, diagnostics: &mut Diagnostics) {
    let (Some(front_proxy), Some(client_ca)) =
        (&config.upstream.front_proxy, &config.callers.client_ca)
    else {
        return;
    };
    // Files that cannot be read have been reported.
    if let (Ok(front_proxy), Ok(client_ca)) = (front_proxy.load(), load_ca(client_ca)) {
        let conflict = ca_conflict::front_proxy_conflict(config, &front_proxy, &client_ca);
        refuse(conflict, diagnostics);
    }
}

fn refuse(conflict: Option<CaConflict>, diagnostics: &mut Diagnostics) {
    if let Some(conflict) = conflict {
        diagnostics.problem(conflict.flag(), Some(conflict.file()), conflict.message());
    }
}

/// Users that the bridge authenticates must be asserted to the upstream.
pub(super) fn check_front_proxy_present(flags: &Flags, diagnostics: &mut Diagnostics) {
    let front_proxy = [
        &flags.upstream.proxy_client_cert_file,
        &flags.upstream.proxy_client_key_file,
    ];
    if front_proxy
        .iter()
        .any(|file| non_empty(file.as_ref()).is_some())
    {
        return;
    }
    let authentication = &flags.authentication;
    let recognises = [
        ("--client-ca-file", &authentication.client_ca_file),
        (
            "--requestheader-client-ca-file",
            &authentication.requestheader_client_ca_file,
        ),
        ("--http-signature-keys", &authentication.http_signature_keys),
    ];
    let recognises = recognises
        .iter()
        .find(|(_, file)| non_empty(file.as_ref()).is_some());
    if let Some((flag, _)) = recognises {
        diagnostics.problem(
            "--proxy-client-cert-file",
            None,
            format!(
                "required with {flag}, as is --proxy-client-key-file: without them the \
                 upstream would not accept the users that the bridge asserts"
            ),
        );
    }
}
