//! Who may read a path of the secure admin port. kube-apiserver decides, and its permissions are
//! cached for some seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use skewbridge_k8s_api::identity::User;
use skewbridge_k8s_api::status::Status;

use crate::admin::health_endpoint;
use crate::authentication_limit::{Attempt, Outcome};
use crate::authn::{Caller, ClientCertState, bearer_token};
use crate::balancer::Backends;
use crate::client_connection::{ClientConnection, TokenLocation};
use crate::control::review::{self, Verdict};
use crate::control::reviewer::Reviewer;
use crate::discovery_view::{AuthzCache, CredentialDigest};
use crate::error_response::retry_later;
use crate::log_budget::LogBudget;
use crate::metrics::admin::Decision;
use crate::metrics::connections::Credential;

/// Lifetime of a permission while no kube-apiserver answers: otherwise a bridge whose server is
/// down could not be scraped. kube-apiserver itself trusts the answers of an authorization webhook for
/// equally long.
const OUTAGE_TTL: Duration = Duration::from_mins(5);

/// Limits log lines about reviews that kube-apiserver has not answered.
static FAILED_REVIEW_LOG: LogBudget = LogBudget::new(10);

/// What a request may read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Everything,
    /// Whether the bridge is healthy, without a list of checks.
    HealthStatus,
}

/// The reviews that a request needs.
#[derive(Debug, PartialEq, Eq)]
enum RequiredReview<'a> {
    None(Permission),
    Refuse(AccessRefusal),
    /// A `TokenReview`, then a `SubjectAccessReview` of its user.
    Token(&'a str),
    /// A `SubjectAccessReview` of this user.
    User(User),
}

/// Why a request is rejected without a review by kube-apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessRefusal {
    NoCredentials,
    InvalidCertificate,
    UnreadableToken,
}

/// The review that a request needs. Health checks are answered without credentials, as
/// kube-controller-manager and kube-scheduler answer them; a wrong credential is an error
/// nevertheless.
fn required_review<'a>(caller: &Caller, path: &str, headers: &'a HeaderMap) -> RequiredReview<'a> {
    match caller {
        Caller::Asserted(user) => RequiredReview::User(user.clone()),
        Caller::Certificate(certificate) => RequiredReview::User(certificate.user.clone()),
        Caller::Bearer => match headers.get(AUTHORIZATION).and_then(bearer_token) {
            Some(token) => RequiredReview::Token(token),
            None => RequiredReview::Refuse(AccessRefusal::UnreadableToken),
        },
        Caller::Anonymous if health_endpoint(path).is_some_and(|(_, check)| check.is_empty()) => {
            RequiredReview::None(Permission::HealthStatus)
        }
        // Signatures are verified only on the main port.
        Caller::Anonymous | Caller::Signed(_) => {
            RequiredReview::Refuse(AccessRefusal::NoCredentials)
        }
        Caller::Unauthorized => RequiredReview::Refuse(AccessRefusal::InvalidCertificate),
    }
}

fn refusal_status(refusal: AccessRefusal) -> Status {
    let message = match refusal {
        AccessRefusal::NoCredentials => {
            "this path needs credentials: a bearer token, or a client certificate"
        }
        AccessRefusal::InvalidCertificate => "the client certificate is not accepted",
        AccessRefusal::UnreadableToken => "the Authorization header has no readable bearer token",
    };
    unauthorized(message)
}

fn unauthorized(message: &str) -> Status {
    Status {
        message: message.to_owned(),
        ..Status::unauthorized()
    }
}

/// The wording of kube-apiserver.
fn forbidden(user: &str, path: &str, reason: &str) -> Status {
    let mut message = format!("forbidden: User {user:?} cannot get path {path:?}");
    if !reason.is_empty() {
        message = format!("{message}: {reason}");
    }
    Status::forbidden(message)
}

/// Why a request is not permitted, with its response.
#[derive(Debug)]
enum AccessDenied {
    Refused(Status),
    /// kube-apiserver did not answer.
    NotReviewed(Status),
}

/// Permissions of the secure admin port.
#[derive(Debug)]
pub(super) struct AccessControl {
    backends: Arc<Backends>,
    reviewer: Reviewer,
    permitted: AuthzCache,
}

impl AccessControl {
    pub(super) fn new(backends: Arc<Backends>) -> Self {
        Self {
            reviewer: Reviewer::new(backends.clone()),
            backends,
            permitted: AuthzCache::default(),
        }
    }

    pub(super) fn close_idle_connections(&self) {
        self.reviewer.close_idle_connections();
    }

    /// What this request may read, or the error response.
    pub(super) async fn check(
        &self,
        client: &ClientConnection,
        certificate: &ClientCertState,
        head: &Parts,
    ) -> Result<Permission, Status> {
        let bridge = self.backends.client_facing();
        let (decision, result) = match self.decide(client, certificate, head).await {
            Ok(permission) => (Decision::Allowed, Ok(permission)),
            Err(status) => {
                let decision = match status.code {
                    401 => Decision::Unauthenticated,
                    403 => Decision::Forbidden,
                    429 => Decision::Limited,
                    _ => Decision::Failed,
                };
                tracing::debug!(client = %client.source(), path = head.uri.path(), code = status.code, "a request to the admin port was refused: {}", status.message);
                (decision, Err(status))
            }
        };
        bridge.metrics.admin().decided(decision);
        result
    }

    async fn decide(
        &self,
        client: &ClientConnection,
        certificate: &ClientCertState,
        head: &Parts,
    ) -> Result<Permission, Status> {
        let bridge = self.backends.client_facing();
        let trust = bridge.live.trust.load_full();
        let caller = certificate.authenticate(&trust, &head.headers).caller;
        client.note_caller(&caller);
        let path = head.uri.path();
        let token = match required_review(&caller, path, &head.headers) {
            RequiredReview::None(permission) => return Ok(permission),
            RequiredReview::Refuse(refusal) => {
                if refusal == AccessRefusal::InvalidCertificate {
                    let attempt = self.attempt(client, Credential::Certificate, head)?;
                    let attempt = attempt.as_ref();
                    bridge.note_authentication_failure(client, Credential::Certificate, attempt);
                }
                return Err(refusal_status(refusal));
            }
            RequiredReview::Token(token) => Ok(token),
            RequiredReview::User(user) => Err(user),
        };
        let digest = CredentialDigest::of(&caller, head);
        let is_permitted = |it: &CredentialDigest| self.permitted.is_permitted(it, Instant::now());
        if digest.as_ref().is_some_and(is_permitted) {
            note_permitted(client, token.is_ok());
            return Ok(Permission::Everything);
        }
        let has_token = token.is_ok();
        let reviewed = self.review_request(token, client, head).await;
        match (reviewed, digest) {
            (Ok(()), Some(digest)) => self.permitted.permit(digest, Instant::now()),
            (Ok(()), None) => {}
            (Err(AccessDenied::Refused(status)), digest) => {
                if let Some(digest) = digest {
                    self.permitted.revoke(&digest);
                }
                return Err(status);
            }
            (Err(AccessDenied::NotReviewed(status)), digest) => {
                let now = Instant::now();
                let before = |it| self.permitted.was_permitted(&it, OUTAGE_TTL, now);
                if !digest.is_some_and(before) {
                    return Err(status);
                }
                note_permitted(client, has_token);
            }
        }
        Ok(Permission::Everything)
    }

    /// Sends the reviews for a token, or for a user who is already authenticated.
    async fn review_request(
        &self,
        token: Result<&str, User>,
        client: &ClientConnection,
        head: &Parts,
    ) -> Result<(), AccessDenied> {
        let user = match token {
            Ok(token) => self.user_of(token, client, head).await?,
            Err(user) => user,
        };
        let path = head.uri.path();
        let review = review::access_review(&user, path);
        let answer = self.reviewer.send(review::ACCESS_REVIEWS, review).await;
        let verdict = answer.and_then(|it| review::verdict(&it));
        match verdict.map_err(|error| failed("authorized", &error))? {
            Verdict::Allowed => Ok(()),
            Verdict::Denied(reason) => {
                Err(AccessDenied::Refused(forbidden(&user.name, path, &reason)))
            }
        }
    }

    /// The user of a token, by a `TokenReview` within the limit of failed authentications.
    async fn user_of(
        &self,
        token: &str,
        client: &ClientConnection,
        head: &Parts,
    ) -> Result<User, AccessDenied> {
        let attempt = self.attempt(client, Credential::Token, head);
        let attempt = attempt.map_err(AccessDenied::Refused)?;
        if let Some(attempt) = &attempt {
            attempt.sent();
        }
        let settle = |outcome| {
            if let Some(attempt) = &attempt {
                attempt.settle(outcome);
            }
        };
        let review = review::token_review(token);
        let answer = self.reviewer.send(review::TOKEN_REVIEWS, review).await;
        match answer.and_then(|it| review::user_of_token(&it)) {
            Ok(Some(user)) => {
                settle(Outcome::Accepted);
                client.note_answer(Some(TokenLocation::Header), StatusCode::OK);
                Ok(user)
            }
            Ok(None) => {
                let bridge = self.backends.client_facing();
                bridge.note_authentication_failure(client, Credential::Token, attempt.as_ref());
                let message = "kube-apiserver does not accept the bearer token";
                Err(AccessDenied::Refused(unauthorized(message)))
            }
            Err(error) => {
                settle(Outcome::Undecided);
                Err(failed("authenticated", &error))
            }
        }
    }

    /// Begins an attempt to authenticate, or returns 429 for a source that has failed too often.
    fn attempt(
        &self,
        client: &ClientConnection,
        credential: Credential,
        head: &Parts,
    ) -> Result<Option<Attempt<'_>>, Status> {
        if client.is_authenticated() {
            return Ok(None);
        }
        let bridge = self.backends.client_facing();
        let limit = &bridge.authentication_limit;
        let token = (credential == Credential::Token).then(|| limit.token(&head.headers));
        let (source, seed) = (client.source().ip(), bridge.next_lb_seed());
        let begun = limit.begin(source, credential, token, client.has_failed(), seed);
        begun.map(Some).inspect_err(|_| {
            let metrics = bridge.metrics.connections();
            metrics.authentication_limited(credential);
        })
    }
}

/// The response while kube-apiserver does not answer reviews. The cause is only logged: it may name
/// hosts, and the client is not authenticated.
fn failed(what: &str, cause: &str) -> AccessDenied {
    if let Some(suppressed) = FAILED_REVIEW_LOG.take(Instant::now()) {
        tracing::warn!(
            suppressed = (suppressed > 0).then_some(suppressed),
            "a request to the admin port was not {what}: {cause}; a 401 or 403 here means that the \
             user of the bridge lacks the rights of `skewbridge manifest rbac`"
        );
    }
    AccessDenied::NotReviewed(retry_later(format!(
        "the request could not be {what}: kube-apiserver did not answer a review; the log of the \
         bridge has the cause"
    )))
}

/// A permitted request with a token counts as a successful authentication of its connection.
fn note_permitted(client: &ClientConnection, has_token: bool) {
    if has_token {
        client.note_answer(Some(TokenLocation::Header), StatusCode::OK);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(authorization: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn credentials_decide_which_reviews_are_sent() {
        let alice = User {
            name: "alice".to_owned(),
            ..User::default()
        };
        let refused = RequiredReview::Refuse;
        let rows = [
            (
                Caller::Anonymous,
                "/metrics",
                refused(AccessRefusal::NoCredentials),
            ),
            (
                Caller::Anonymous,
                "/",
                refused(AccessRefusal::NoCredentials),
            ),
            (
                Caller::Anonymous,
                "/flagz",
                refused(AccessRefusal::NoCredentials),
            ),
            (
                Caller::Anonymous,
                "/readyz/registry",
                refused(AccessRefusal::NoCredentials),
            ),
            (
                Caller::Anonymous,
                "/readyz",
                RequiredReview::None(Permission::HealthStatus),
            ),
            (
                Caller::Anonymous,
                "/livez",
                RequiredReview::None(Permission::HealthStatus),
            ),
            (
                Caller::Anonymous,
                "/healthz",
                RequiredReview::None(Permission::HealthStatus),
            ),
            (
                Caller::Anonymous,
                "/healthz/",
                RequiredReview::None(Permission::HealthStatus),
            ),
            (
                Caller::Unauthorized,
                "/metrics",
                refused(AccessRefusal::InvalidCertificate),
            ),
            (
                Caller::Unauthorized,
                "/readyz",
                refused(AccessRefusal::InvalidCertificate),
            ),
            (Caller::Bearer, "/metrics", RequiredReview::Token("t")),
            // A request with a credential is for the verbose response.
            (Caller::Bearer, "/readyz", RequiredReview::Token("t")),
            (
                Caller::Asserted(alice.clone()),
                "/metrics",
                RequiredReview::User(alice.clone()),
            ),
        ];
        for (caller, path, expected) in rows {
            let headers = headers(matches!(caller, Caller::Bearer).then_some("Bearer t"));
            assert_eq!(
                required_review(&caller, path, &headers),
                expected,
                "{caller:?} {path}"
            );
        }
        // A token in a WebSocket subprotocol.
        let none = headers(None);
        let unreadable = refused(AccessRefusal::UnreadableToken);
        assert_eq!(
            required_review(&Caller::Bearer, "/metrics", &none),
            unreadable
        );
    }

    #[test]
    fn messages_name_user_and_path_but_not_the_cause_of_a_failure() {
        let status = forbidden("alice", "/metrics", "no rule");
        let expected = "forbidden: User \"alice\" cannot get path \"/metrics\": no rule";
        assert_eq!(status.message, expected);
        let failed = failed("authorized", "https://10.0.0.1: connection refused");
        let AccessDenied::NotReviewed(status) = failed else {
            panic!("{failed:?}");
        };
        assert_eq!(status.code, 503);
        assert!(!status.message.contains("10.0.0.1"));
    }
}
