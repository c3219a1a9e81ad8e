//! Authentication and impersonation.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::HeaderMap;
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use skewbridge_gateway::authn::{Caller, ClientCertState, TrustConfig};
use skewbridge_k8s_api::identity::{IdentityHeaders, User};
use skewbridge_k8s_api::status::Status;
use skewbridge_k8s_api::version::Version;

use crate::rbac::Attributes;

/// The anonymous user.
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATED: &str = "system:authenticated";

/// The subprotocol in which browsers send a token, because they cannot set headers of a
/// WebSocket.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The authenticators of a server.
pub(super) struct Authenticator {
    trust: Arc<TrustConfig>,
    tokens: Tokens,
    version: Option<Version>,
}

/// Users by the digest of their token, so that the time of a lookup reveals nothing about other
/// tokens.
struct Tokens(HashMap<[u8; 32], User>);

impl Authenticator {
    pub(super) fn new(
        trust: TrustConfig,
        tokens: &HashMap<String, User>,
        git_version: &str,
    ) -> Self {
        let tokens = tokens.iter();
        Self {
            trust: Arc::new(trust),
            tokens: Tokens(
                tokens
                    .map(|(token, user)| (fingerprint(token), user.clone()))
                    .collect(),
            ),
            version: git_version.parse().ok(),
        }
    }

    /// The user of a request, in kube-apiserver's order of authenticators; 401 for invalid
    /// credentials.
    pub(super) fn user(
        &self,
        presented: &ClientCertState,
        headers: &HeaderMap,
    ) -> Result<User, Status> {
        let mut user = match presented.authenticate(&self.trust, headers).caller {
            Caller::Asserted(user) => user,
            Caller::Certificate(user) => {
                // A server derives the same user from the certificate as a bridge.
                let mut identity = HeaderMap::new();
                user.headers(self.version.as_ref()).apply(&mut identity);
                let read = self.trust.headers().read(&identity);
                read.ok_or_else(Status::unauthorized)?
            }
            Caller::Bearer => {
                let token = bearer(headers).ok_or_else(Status::unauthorized)?;
                self.of_token(&token).ok_or_else(Status::unauthorized)?
            }
            Caller::Anonymous => anonymous(),
            // Only bridges have keys for signatures.
            Caller::Signed(_) | Caller::Unauthorized => return Err(Status::unauthorized()),
        };
        add_authenticated_group(&mut user);
        Ok(user)
    }

    /// The user of a token.
    pub(super) fn of_token(&self, token: &str) -> Option<User> {
        let mut user = self.tokens.0.get(&fingerprint(token)).cloned()?;
        add_authenticated_group(&mut user);
        Some(user)
    }
}

fn anonymous() -> User {
    User {
        name: ANONYMOUS.to_owned(),
        groups: vec![UNAUTHENTICATED.to_owned()],
        ..User::default()
    }
}

/// Adds `system:authenticated` to named users.
fn add_authenticated_group(user: &mut User) {
    let is_in = |group: &str| user.groups.iter().any(|it| it == group);
    if user.name != ANONYMOUS && !is_in(AUTHENTICATED) && !is_in(UNAUTHENTICATED) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
}

fn fingerprint(token: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    bytes
}

fn bearer(headers: &HeaderMap) -> Option<String> {
    let header = headers.get(AUTHORIZATION).and_then(|it| it.to_str().ok());
    if let Some((scheme, token)) = header.and_then(|it| it.trim().split_once(' '))
        && scheme.eq_ignore_ascii_case("bearer")
    {
        return token.split(' ').next().map(str::to_owned);
    }
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let mut protocols = protocols
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(','));
    let token = protocols.find_map(|it| it.trim().strip_prefix(TOKEN_PROTOCOL))?;
    let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?;
    String::from_utf8(bytes).ok()
}

/// Removes credentials, which only the server needs.
pub(super) fn remove_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    IdentityHeaders::default().remove(headers);
    let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    let kept: Vec<_> = offered
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(','))
        .map(str::trim)
        .filter(|it| !it.starts_with(TOKEN_PROTOCOL))
        .collect();
    let kept = kept.join(", ");
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if !kept.is_empty()
        && let Ok(kept) = kept.parse()
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, kept);
    }
}

/// The effective user (`Impersonate-*`): the caller, or another user if the caller may
/// impersonate it.
pub(super) fn impersonated(
    user: User,
    headers: &HeaderMap,
    may: &dyn Fn(&User, Attributes<'_>) -> Result<(), Status>,
) -> Result<User, Status> {
    let names = IdentityHeaders {
        username: vec![http::HeaderName::from_static("impersonate-user")],
        uid: vec![http::HeaderName::from_static("impersonate-uid")],
        group: vec![http::HeaderName::from_static("impersonate-group")],
        extra_prefix: vec!["impersonate-extra-".to_owned()],
    };
    let Some(mut wanted) = names.read(headers) else {
        if headers
            .keys()
            .any(|name| name.as_str().starts_with("impersonate-"))
        {
            return Err(Status::internal(
                "requested groups, extra or uid without impersonating a user",
            ));
        }
        return Ok(user);
    };
    let check = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let attributes = Attributes::Resource {
            verb: "impersonate",
            group,
            resource,
            subresource,
            namespace,
            name,
        };
        may(&user, attributes)
    };
    let account = service_account(&wanted.name);
    match account {
        Some((namespace, name)) => check("", "serviceaccounts", "", namespace, name)?,
        None => check("", "users", "", "", &wanted.name)?,
    }
    for group in &wanted.groups {
        check("", "groups", "", "", group)?;
    }
    if let (Some((namespace, _)), true) = (account, wanted.groups.is_empty()) {
        // The groups of all service accounts need no permission.
        wanted.groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    for (key, values) in &wanted.extra {
        for value in values {
            check("authentication.k8s.io", "userextras", key, "", value)?;
        }
    }
    if !wanted.uid.is_empty() {
        check("authentication.k8s.io", "uids", "", "", &wanted.uid)?;
    }
    if wanted.name == ANONYMOUS && wanted.groups.is_empty() {
        wanted.groups.push(UNAUTHENTICATED.to_owned());
    }
    add_authenticated_group(&mut wanted);
    Ok(wanted)
}

/// `system:serviceaccount:NAMESPACE:NAME`
fn service_account(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix("system:serviceaccount:")?.split_once(':')
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::rbac::is_master;

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|it| (*it).to_owned()).collect(),
            ..User::default()
        }
    }

    #[test]
    fn tokens_are_found_in_headers_and_subprotocols() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers), None);
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer abc"));
        assert_eq!(bearer(&headers).as_deref(), Some("abc"));
        headers.remove(AUTHORIZATION);
        let protocols = "base64url.bearer.authorization.k8s.io.YWJj, v4.channel.k8s.io";
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocols));
        assert_eq!(bearer(&headers).as_deref(), Some("abc"));
        remove_credentials(&mut headers);
        assert_eq!(headers[SEC_WEBSOCKET_PROTOCOL], "v4.channel.k8s.io");
    }

    #[test]
    fn tokens_are_removed_from_any_header_line() {
        let token = "base64url.bearer.authorization.k8s.io.YWJj";
        let rows: [(&[&'static str], Option<&str>); 3] = [
            (&["v5.channel.k8s.io", token], Some("v5.channel.k8s.io")),
            (
                &[token, "v5.channel.k8s.io, v4.channel.k8s.io"],
                Some("v5.channel.k8s.io, v4.channel.k8s.io"),
            ),
            (&[token], None),
        ];
        for (lines, kept) in rows {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(line));
            }
            assert_eq!(bearer(&headers).as_deref(), Some("abc"));
            remove_credentials(&mut headers);
            let left = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
            let left: Vec<_> = left.map(|it| it.to_str().unwrap()).collect();
            assert_eq!(left, kept.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn impersonation_needs_permission() {
        let may = |user: &User, attributes: Attributes<'_>| {
            if is_master(user) {
                Ok(())
            } else {
                Err(attributes.refused(user))
            }
        };
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", HeaderValue::from_static("bob"));
        headers.insert("impersonate-group", HeaderValue::from_static("dev"));
        let admin = user("admin", &["system:masters", AUTHENTICATED]);
        let acting = impersonated(admin.clone(), &headers, &may).unwrap();
        assert_eq!(acting, user("bob", &["dev", AUTHENTICATED]));
        let visitor = user("visitor", &[AUTHENTICATED]);
        let refused = impersonated(visitor, &headers, &may).unwrap_err();
        assert_eq!(
            refused.message,
            "users \"bob\" is forbidden: User \"visitor\" cannot impersonate resource \"users\" \
             in API group \"\" at the cluster scope"
        );
        headers.insert(
            "impersonate-user",
            HeaderValue::from_static("system:serviceaccount:shop:web"),
        );
        headers.remove("impersonate-group");
        let acting = impersonated(admin.clone(), &headers, &may).unwrap();
        assert_eq!(
            acting.groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:shop",
                AUTHENTICATED
            ]
        );
        // Permission to impersonate the account includes its groups.
        let only_accounts = |_: &User, attributes: Attributes<'_>| match attributes {
            Attributes::Resource {
                resource: "serviceaccounts",
                namespace: "shop",
                name: "web",
                ..
            } => Ok(()),
            other => Err(other.refused(&user("visitor", &[]))),
        };
        let visitor = user("visitor", &[AUTHENTICATED]);
        let acting = impersonated(visitor.clone(), &headers, &only_accounts).unwrap();
        assert_eq!(acting.groups[1], "system:serviceaccounts:shop");
        headers.insert("impersonate-group", HeaderValue::from_static("dev"));
        let refused = impersonated(visitor, &headers, &only_accounts).unwrap_err();
        assert!(refused.message.starts_with("groups \"dev\" is forbidden"));
        headers.remove("impersonate-user");
        assert_eq!(impersonated(admin, &headers, &may).unwrap_err().code, 500);
    }

    #[test]
    fn named_users_are_in_system_authenticated() {
        let mut named_user = user("a", &[]);
        add_authenticated_group(&mut named_user);
        add_authenticated_group(&mut named_user);
        assert_eq!(named_user.groups, [AUTHENTICATED]);
        let mut unnamed = anonymous();
        add_authenticated_group(&mut unnamed);
        assert_eq!(unnamed.groups, [UNAUTHENTICATED]);
    }
}
