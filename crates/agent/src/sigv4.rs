//! AWS Signature Version 4 on each request.

use std::sync::Arc;

use skewbridge_harness::forward::BoxFuture;
use skewbridge_harness::{ModifyError, NeedsBody, Outgoing, RequestModifier};
use skewbridge_signatures::Request;
use skewbridge_signatures::sigv4::{Chain, Credentials, Payload, Signer};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::FAILURE_AGE;

/// Signs requests with the credentials that a [`Chain`] finds.
#[derive(Debug)]
pub struct SigV4 {
    signer: Signer,
    chain: Chain,
    /// Why there were no credentials when they were looked for last, and when that was.
    failed: Mutex<Option<(Instant, String)>>,
}

impl SigV4 {
    /// With these.
    pub fn new(signer: Signer, chain: Chain) -> Self {
        Self {
            signer,
            chain,
            failed: Mutex::new(None),
        }
    }

    /// The credentials that are good now. However many ask, one looks, and all who have
    /// waited for it are told if that fails.
    async fn credentials(&self, now: u64) -> Result<Arc<Credentials>, String> {
        let asked = Instant::now();
        let mut failed = self.failed.lock().await;
        if let Some((at, cause)) = &*failed
            && (*at >= asked || at.elapsed() < FAILURE_AGE)
        {
            return Err(cause.clone());
        }
        let found = self.chain.credentials(now).await;
        let found = found.map_err(|error| error.to_string());
        *failed = found
            .as_ref()
            .err()
            .map(|cause| (Instant::now(), cause.clone()));
        found
    }
}

impl RequestModifier for SigV4 {
    fn name(&self) -> &'static str {
        "sigv4"
    }

    fn needs_body(&self) -> NeedsBody {
        NeedsBody::Whole
    }

    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
        Box::pin(async move {
            let failed = |error: skewbridge_signatures::Error| ModifyError::new(error.to_string());
            let now = crate::now();
            let credentials = self.credentials(now).await.map_err(ModifyError::new)?;
            let head = Request::of("https", request.method, request.url, request.headers)
                .ok_or_else(|| ModifyError::new("the request names no host"))?;
            let payload = Payload::Bytes(request.body.map_or(&[], |body| body));
            let to_set = self
                .signer
                .sign(&head, payload, &credentials, now)
                .map_err(failed)?;
            for (name, value) in to_set {
                request.headers.insert(name, value);
            }
            Ok(())
        })
    }
}
