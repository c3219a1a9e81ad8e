//! The authentication of a request: what its connection and its headers prove, the limit of failed
//! attempts, and signatures.

use std::sync::Arc;

use http::StatusCode;
use http::request::Parts;
use skewbridge_http_engine::body::RequestBody;
use skewbridge_http_signature::VerifyError;
use skewbridge_k8s_api::status::Status;

use super::{ConnectionHandler, ConnectionState};
use crate::authentication_limit::{Attempt, TokenHash};
use crate::authn::{AuthnResult, Caller, TrustConfig};
use crate::metrics::connections::Credential;
use crate::signatures::{self, SignatureError, Signatures};

/// An authenticated request.
pub(super) struct AuthenticatedRequest<'a> {
    pub(super) authn: AuthnResult,
    pub(super) body: RequestBody,
    /// The attempt, if kube-apiserver has to verify the credential.
    pub(super) attempt: Option<Attempt<'a>>,
}

impl ConnectionHandler {
    /// Authenticates a request. The body of a signed request is complete afterwards.
    pub(super) async fn authenticate(
        &self,
        trust: &Arc<TrustConfig>,
        head: &mut Parts,
        body: RequestBody,
    ) -> Result<AuthenticatedRequest<'_>, Status> {
        let authn = self.0.client_cert.authenticate(trust, &head.headers);
        let signatures = self.0.bridge.signatures.as_ref();
        let signatures = signatures.filter(|_| signatures::must_verify(&authn.caller, head));
        let credential = match (&authn.caller, signatures) {
            (_, Some(_)) => Some(Credential::Signature),
            (Caller::Bearer, None) => Some(Credential::Token),
            (Caller::Unauthorized, None) => Some(Credential::Certificate),
            _ => None,
        };
        let attempt = match credential {
            Some(credential) => self.attempt(&authn.caller, credential, head)?,
            None => None,
        };
        let Some(signatures) = signatures else {
            if credential == Some(Credential::Certificate) {
                self.note_failure(Credential::Certificate, attempt.as_ref());
            }
            return Ok(AuthenticatedRequest {
                authn,
                body,
                attempt,
            });
        };
        // Boxed: few requests are signed, and the future of watches should be small.
        let verified = Box::pin(self.verify_signature(signatures, authn, head, body)).await;
        match verified {
            Ok((authn, body)) => Ok(AuthenticatedRequest {
                authn,
                body,
                // The signature is verified, so the response of kube-apiserver proves nothing more.
                attempt: None,
            }),
            Err(error) => {
                let status = error.status();
                if status.code == StatusCode::UNAUTHORIZED {
                    self.note_failure(Credential::Signature, attempt.as_ref());
                }
                Err(status)
            }
        }
    }

    fn note_failure(&self, credential: Credential, attempt: Option<&Attempt<'_>>) {
        let ConnectionState { bridge, client, .. } = &*self.0;
        bridge.note_authentication_failure(client, credential, attempt);
    }

    /// Rejects a credential of a source that had too many failures. Connections that have
    /// authenticated are not limited.
    fn attempt(
        &self,
        caller: &Caller,
        credential: Credential,
        head: &Parts,
    ) -> Result<Option<Attempt<'_>>, Status> {
        let ConnectionState { bridge, client, .. } = &*self.0;
        if client.is_authenticated() {
            return Ok(None);
        }
        let (source, token) = (
            client.source().ip(),
            self.unauthenticated_token(caller, head),
        );
        let (limit, failed) = (&bridge.authentication_limit, client.has_failed());
        let begun = limit.begin(source, credential, token, failed, bridge.next_lb_seed());
        begun.map(Some).inspect_err(|_| {
            let metrics = bridge.metrics.connections();
            metrics.authentication_limited(credential);
        })
    }

    /// The token of a request on a connection that has not authenticated.
    pub(super) fn unauthenticated_token(&self, caller: &Caller, head: &Parts) -> Option<TokenHash> {
        (matches!(caller, Caller::Bearer) && !self.0.client.is_authenticated())
            .then(|| self.0.bridge.authentication_limit.token(&head.headers))
    }

    async fn verify_signature(
        &self,
        signatures: &Signatures,
        authn: AuthnResult,
        head: &mut Parts,
        body: RequestBody,
    ) -> Result<(AuthnResult, RequestBody), SignatureError> {
        let AuthnResult {
            caller,
            from_front_proxy,
        } = authn;
        let bridge = &*self.0.bridge;
        // Signatures are verified only if keys are configured.
        let keys = bridge.live.signature_keys.load_full();
        let keys = keys.ok_or(VerifyError::UnknownKey)?;
        let metrics = bridge.metrics.signatures();
        let verified = signatures.verify(&keys, &caller, head, body, metrics);
        let (user, body) = verified.await?;
        let authn = AuthnResult {
            caller: Caller::Signed(user),
            from_front_proxy,
        };
        Ok((authn, body))
    }
}
