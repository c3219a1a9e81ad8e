//! Who asks, and on whose behalf.

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

use crate::rbac::Deed;

/// The user whom nobody knows.
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const AUTHENTICATED: &str = "system:authenticated";

/// How browsers bring a token on a WebSocket, where they can set no other header.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Whom a server believes.
pub(super) struct Authenticator {
    trust: Arc<TrustConfig>,
    tokens: Tokens,
    version: Option<Version>,
}

/// Users by their tokens, of which only digests are kept: looking one up tells nothing
/// of the others by the time that it takes.
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

    /// Who sent a request, in kube-apiserver's order; 401 for those who show something
    /// that is not good.
    pub(super) fn user(
        &self,
        presented: &ClientCertState,
        headers: &HeaderMap,
    ) -> Result<User, Status> {
        let mut user = match presented.caller(&self.trust, headers).caller {
            Caller::Peer(user) => user,
            Caller::Certificate(user) => {
                // What a bridge would say of the certificate is what a server makes of it.
                let mut said = HeaderMap::new();
                user.headers(self.version.as_ref()).apply(&mut said);
                let read = self.trust.headers().read(&said);
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
        join_the_known(&mut user);
        Ok(user)
    }

    /// Whose token it is.
    pub(super) fn of_token(&self, token: &str) -> Option<User> {
        let mut user = self.tokens.0.get(&fingerprint(token)).cloned()?;
        join_the_known(&mut user);
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

/// Everybody whose name is known is in one group.
fn join_the_known(user: &mut User) {
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

/// Takes away what only the server had to see.
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

/// On whose behalf a request is made (`Impersonate-*`): the caller's own, or somebody
/// else's if the caller may do so.
pub(super) fn impersonated(
    user: User,
    headers: &HeaderMap,
    may: &dyn Fn(&User, Deed<'_>) -> Result<(), Status>,
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
    let ask = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let deed = Deed::Resource {
            verb: "impersonate",
            group,
            resource,
            subresource,
            namespace,
            name,
        };
        may(&user, deed)
    };
    let account = service_account(&wanted.name);
    match account {
        Some((namespace, name)) => ask("", "serviceaccounts", "", namespace, name)?,
        None => ask("", "users", "", "", &wanted.name)?,
    }
    for group in &wanted.groups {
        ask("", "groups", "", "", group)?;
    }
    if let (Some((namespace, _)), true) = (account, wanted.groups.is_empty()) {
        // Those that every one has, for which nobody has to ask.
        wanted.groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    for (key, values) in &wanted.extra {
        for value in values {
            ask("authentication.k8s.io", "userextras", key, "", value)?;
        }
    }
    if !wanted.uid.is_empty() {
        ask("authentication.k8s.io", "uids", "", "", &wanted.uid)?;
    }
    if wanted.name == ANONYMOUS && wanted.groups.is_empty() {
        wanted.groups.push(UNAUTHENTICATED.to_owned());
    }
    join_the_known(&mut wanted);
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

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|it| (*it).to_owned()).collect(),
            ..User::default()
        }
    }

    #[test]
    fn tokens_are_found_where_clients_put_them() {
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
    fn tokens_go_from_whichever_line_they_are_on() {
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
    fn only_those_who_may_act_for_others() {
        let authorizer = crate::rbac::Authorizer::playground();
        let may = |user: &User, deed: Deed<'_>| authorizer.authorize(user, deed);
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
        // Whoever may act for the account need not be allowed to act for its groups.
        let only_accounts = |_: &User, deed: Deed<'_>| match deed {
            Deed::Resource {
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
    fn whoever_has_a_name_is_among_the_known() {
        let mut someone = user("a", &[]);
        join_the_known(&mut someone);
        join_the_known(&mut someone);
        assert_eq!(someone.groups, [AUTHENTICATED]);
        let mut nobody = anonymous();
        join_the_known(&mut nobody);
        assert_eq!(nobody.groups, [UNAUTHENTICATED]);
    }
}
