//! The authorization cache of discovery: callers that the local server has recently permitted to
//! read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{Context, SHA256};
use http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use http::request::Parts;
use http::{HeaderMap, HeaderName};
use skewbridge_k8s_api::identity::User;

use crate::authn::Caller;

/// How long an entry is valid. Only permissions are cached.
const ENTRY_TTL: Duration = Duration::from_secs(10);

/// The maximum number of entries. The local server checks callers without an entry.
const MAX_ENTRIES: usize = 4_096;

/// The times at which the local server has permitted callers to read a path.
#[derive(Debug, Default)]
pub(crate) struct AuthzCache(Mutex<HashMap<CredentialDigest, Instant>>);

/// A digest of a caller and a path: the cache contains no secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CredentialDigest([u8; 32]);

impl CredentialDigest {
    /// The digest of all inputs of the local server's decision: the caller, the impersonated user
    /// and the target. `None` if the caller is rejected anyway.
    pub(crate) fn of(caller: &Caller, head: &Parts) -> Option<Self> {
        let headers = &head.headers;
        let mut digest = Fields(Context::new(&SHA256));
        digest.add(head.method.as_str().as_bytes());
        digest.add(head.uri.path().as_bytes());
        match caller {
            Caller::Unauthorized => return None,
            Caller::Anonymous => digest.add(b"anonymous"),
            Caller::Bearer => digest.add(b"bearer"),
            Caller::Certificate(user) => {
                // The headers that are asserted to upstream, with the fingerprint.
                let mut asserted = HeaderMap::new();
                user.with_credential.apply(&mut asserted);
                digest.headers(&asserted, |_| true);
            }
            Caller::Signed(user) => {
                let mut asserted = HeaderMap::new();
                user.headers.apply(&mut asserted);
                digest.headers(&asserted, |_| true);
            }
            Caller::Asserted(user) => digest.user(user),
        }
        digest.headers(headers, |name| {
            // A WebSocket subprotocol can also carry a token.
            [AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL].contains(name)
                || name.as_str().starts_with("impersonate-")
        });
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.0.finish().as_ref());
        Some(Self(bytes))
    }
}

/// A digest over length-prefixed fields, so that adjacent fields cannot be confused.
struct Fields(Context);

impl Fields {
    fn add(&mut self, field: &[u8]) {
        self.0.update(&(field.len() as u64).to_be_bytes());
        self.0.update(field);
    }

    fn headers(&mut self, headers: &HeaderMap, counts: impl Fn(&HeaderName) -> bool) {
        for (name, value) in headers.iter().filter(|(name, _)| counts(name)) {
            self.add(name.as_str().as_bytes());
            self.add(value.as_bytes());
        }
    }

    fn user(&mut self, user: &User) {
        self.add(b"user");
        self.add(user.name.as_bytes());
        self.add(user.uid.as_bytes());
        self.add(&(user.groups.len() as u64).to_be_bytes());
        for group in &user.groups {
            self.add(group.as_bytes());
        }
        for (key, values) in &user.extra {
            self.add(key.as_bytes());
            self.add(&(values.len() as u64).to_be_bytes());
            for value in values {
                self.add(value.as_bytes());
            }
        }
    }
}

impl AuthzCache {
    /// Whether there is a valid entry.
    pub(crate) fn is_permitted(&self, credential: &CredentialDigest, now: Instant) -> bool {
        self.was_permitted(credential, ENTRY_TTL, now)
    }

    /// Whether there is an entry that is younger than this: for use while the local server cannot
    /// be asked. Older entries than [`ENTRY_TTL`] exist as long as there is room.
    pub(crate) fn was_permitted(
        &self,
        credential: &CredentialDigest,
        within: Duration,
        now: Instant,
    ) -> bool {
        let permits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let given = permits.get(credential);
        given.is_some_and(|at| now.saturating_duration_since(*at) < within)
    }

    /// Adds an entry: the local server has permitted the request.
    pub(crate) fn permit(&self, credential: CredentialDigest, now: Instant) {
        let mut permits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if permits.len() >= MAX_ENTRIES && !permits.contains_key(&credential) {
            permits.retain(|_, at| now.saturating_duration_since(*at) < ENTRY_TTL);
            if permits.len() >= MAX_ENTRIES {
                return;
            }
        }
        permits.insert(credential, now);
    }

    /// Removes the entry: the local server has denied the request.
    pub(crate) fn revoke(&self, credential: &CredentialDigest) {
        let mut permits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        permits.remove(credential);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
            ..User::default()
        }
    }

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn head(method: &str, path: &str, headers: &HeaderMap) -> Parts {
        let request = http::Request::builder().method(method).uri(path);
        let (mut head, ()) = request.body(()).unwrap().into_parts();
        head.headers.clone_from(headers);
        head
    }

    #[test]
    fn all_inputs_of_the_authorization_decision_change_the_digest() {
        let asserted = Caller::Asserted;
        let none = headers(&[]);
        let callers = [
            (Caller::Anonymous, none.clone(), "/apis"),
            (Caller::Anonymous, none.clone(), "/api"),
            (
                Caller::Anonymous,
                headers(&[("impersonate-user", "a")]),
                "/apis",
            ),
            (
                Caller::Bearer,
                headers(&[("authorization", "Bearer a")]),
                "/apis",
            ),
            (
                Caller::Bearer,
                headers(&[("authorization", "Bearer b")]),
                "/apis",
            ),
            (
                Caller::Bearer,
                headers(&[("sec-websocket-protocol", "token-a")]),
                "/apis",
            ),
            (
                Caller::Bearer,
                headers(&[("sec-websocket-protocol", "token-b")]),
                "/apis",
            ),
            (asserted(user("a", &[])), none.clone(), "/apis"),
            (asserted(user("a", &["b"])), none.clone(), "/apis"),
            (asserted(user("a", &["b", "c"])), none.clone(), "/apis"),
            (asserted(user("a", &["bc"])), none.clone(), "/apis"),
            (asserted(user("ab", &[])), none.clone(), "/apis"),
            (
                asserted(user("a", &[])),
                headers(&[("impersonate-user", "b"), ("impersonate-group", "c")]),
                "/apis",
            ),
            (
                asserted(user("a", &[])),
                headers(&[("impersonate-user", "b"), ("impersonate-group", "d")]),
                "/apis",
            ),
        ];
        let mut digests = std::collections::HashSet::new();
        for (caller, headers, path) in &callers {
            for method in ["GET", "HEAD"] {
                let head = head(method, path, headers);
                let credential = CredentialDigest::of(caller, &head).unwrap();
                assert!(
                    digests.insert(credential),
                    "{method} {caller:?} {headers:?}"
                );
                assert_eq!(CredentialDigest::of(caller, &head), Some(credential));
            }
        }
        let head = head("GET", "/apis", &none);
        assert_eq!(CredentialDigest::of(&Caller::Unauthorized, &head), None);
    }

    #[test]
    fn a_permission_expires_and_can_be_revoked() {
        let permits = AuthzCache::default();
        let one = CredentialDigest([1; 32]);
        let now = Instant::now();
        assert!(!permits.is_permitted(&one, now));
        permits.permit(one, now);
        assert!(permits.is_permitted(&one, now));
        assert!(permits.is_permitted(&one, now + ENTRY_TTL / 2));
        assert!(!permits.is_permitted(&one, now + ENTRY_TTL));
        let long = ENTRY_TTL * 30;
        assert!(permits.was_permitted(&one, long, now + ENTRY_TTL));
        assert!(!permits.was_permitted(&one, long, now + long));
        permits.revoke(&one);
        assert!(!permits.is_permitted(&one, now));
        assert!(!permits.was_permitted(&one, long, now));
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let permits = AuthzCache::default();
        let now = Instant::now();
        let credential = |number: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&number.to_be_bytes());
            CredentialDigest(bytes)
        };
        for number in 0..MAX_ENTRIES + 10 {
            permits.permit(credential(number), now);
        }
        assert!(permits.is_permitted(&credential(0), now));
        assert!(!permits.is_permitted(&credential(MAX_ENTRIES), now));
        // Expired entries are removed.
        permits.permit(credential(MAX_ENTRIES), now + ENTRY_TTL);
        assert!(permits.is_permitted(&credential(MAX_ENTRIES), now + ENTRY_TTL));
        assert_eq!(permits.0.lock().unwrap().len(), 1);
    }
}
