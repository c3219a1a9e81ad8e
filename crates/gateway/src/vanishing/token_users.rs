//! The users of bearer tokens. The bridge forwards tokens to kube-apiserver, which does not report
//! their users: a `TokenReview` does, which another task sends after the call. Tokens are kept only
//! until then.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use skewbridge_k8s_api::secret::SecretString;
use tokio::sync::mpsc;

use super::table::WatchedCall;

/// The number of calls that wait for a review. Further ones are counted without a user.
const MAX_UNREVIEWED: usize = 256;

/// A longer token is not reviewed. Those of service accounts have about 1 kB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// The number of stored users of tokens, 200 bytes each.
const MAX_USERS: usize = 4096;

/// How long the user of a token is stored: service account tokens are renewed every hour.
const USER_TTL: Duration = Duration::from_hours(1);

/// How long it is stored that the review of a token has failed.
const FAILURE_TTL: Duration = Duration::from_mins(1);

/// A digest of a token: the cache contains no secrets.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TokenDigest([u8; 32]);

impl TokenDigest {
    fn of(token: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
        Self(bytes)
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenDigest")
    }
}

/// A call whose user is not known yet.
#[derive(Debug)]
pub(crate) struct UnreviewedCall {
    pub(crate) token: SecretString,
    pub(crate) digest: TokenDigest,
    pub(super) impersonated_user: Option<String>,
    pub(super) user_agent: String,
    pub(super) call: WatchedCall,
}

/// What is known of the user of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenUser {
    Named(String),
    /// The review has failed, or kube-apiserver does not accept the token any more.
    Unknown,
}

/// The users of recently reviewed tokens.
#[derive(Debug, Default)]
struct Users {
    by_token: HashMap<TokenDigest, (TokenUser, Instant)>,
    /// The oldest first.
    order: VecDeque<TokenDigest>,
}

impl Users {
    fn get(&self, token: &TokenDigest, now: Instant) -> Option<TokenUser> {
        let (user, at) = self.by_token.get(token)?;
        let ttl = match user {
            TokenUser::Named(_) => USER_TTL,
            TokenUser::Unknown => FAILURE_TTL,
        };
        (now.saturating_duration_since(*at) < ttl).then(|| user.clone())
    }

    fn put(&mut self, token: TokenDigest, user: TokenUser, now: Instant) {
        if self.by_token.insert(token, (user, now)).is_some() {
            return;
        }
        self.order.push_back(token);
        if self.order.len() > MAX_USERS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_token.remove(&oldest);
        }
    }
}

#[derive(Debug)]
pub(super) struct TokenUsers {
    users: Mutex<Users>,
    unreviewed: mpsc::Sender<Box<UnreviewedCall>>,
}

impl TokenUsers {
    pub(super) fn new() -> (Self, mpsc::Receiver<Box<UnreviewedCall>>) {
        let (unreviewed, receiver) = mpsc::channel(MAX_UNREVIEWED);
        let users = Self {
            users: Mutex::default(),
            unreviewed,
        };
        (users, receiver)
    }

    pub(super) fn get(&self, token: &TokenDigest, now: Instant) -> Option<TokenUser> {
        let users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.get(token, now)
    }

    pub(super) fn put(&self, token: TokenDigest, user: TokenUser, now: Instant) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.put(token, user, now);
    }

    pub(super) fn digest(token: &str) -> TokenDigest {
        TokenDigest::of(token)
    }

    /// Queues a call for the review of its token. Returns the call if the queue is full or the token is
    /// too long.
    pub(super) fn review(&self, call: Box<UnreviewedCall>) -> Result<(), Box<UnreviewedCall>> {
        if call.token.expose().len() > MAX_TOKEN_BYTES {
            return Err(call);
        }
        self.unreviewed.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(call) | mpsc::error::TrySendError::Closed(call) => call,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_stored_for_a_time_and_failures_for_a_shorter_one() {
        let (mut users, now) = (Users::default(), Instant::now());
        let (a, b) = (TokenDigest::of("a"), TokenDigest::of("b"));
        let alice = TokenUser::Named("alice".to_owned());
        users.put(a, alice.clone(), now);
        users.put(b, TokenUser::Unknown, now);
        let shortly_before = |ttl: Duration| ttl.saturating_sub(Duration::from_secs(1));
        for (token, after, expected) in [
            (a, Duration::ZERO, Some(alice.clone())),
            (a, shortly_before(USER_TTL), Some(alice)),
            (a, USER_TTL, None),
            (b, shortly_before(FAILURE_TTL), Some(TokenUser::Unknown)),
            (b, FAILURE_TTL, None),
            (TokenDigest::of("c"), Duration::ZERO, None),
        ] {
            assert_eq!(users.get(&token, now + after), expected, "{after:?}");
        }
    }

    #[test]
    fn the_number_of_stored_users_is_bounded() {
        let (mut users, now) = (Users::default(), Instant::now());
        for number in 0..=MAX_USERS {
            let token = TokenDigest::of(&number.to_string());
            users.put(token, TokenUser::Unknown, now);
            users.put(token, TokenUser::Unknown, now);
        }
        assert_eq!(
            (users.by_token.len(), users.order.len()),
            (MAX_USERS, MAX_USERS)
        );
        assert_eq!(users.get(&TokenDigest::of("0"), now), None);
        assert!(users.get(&TokenDigest::of("1"), now).is_some());
    }
}
