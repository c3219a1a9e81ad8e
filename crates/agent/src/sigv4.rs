//! AWS Signature Version 4 on each request.

use skewbridge_harness::forward::BoxFuture;
use skewbridge_harness::{ModifyError, NeedsBody, Outgoing, RequestModifier};
use skewbridge_signatures::Request;
use skewbridge_signatures::sigv4::{Chain, Payload, Signer};

/// Signs requests with the credentials that a [`Chain`] finds.
#[derive(Debug)]
pub struct SigV4 {
    signer: Signer,
    chain: Chain,
}

impl SigV4 {
    /// With these.
    pub fn new(signer: Signer, chain: Chain) -> Self {
        Self { signer, chain }
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
            let credentials = self.chain.credentials(now).await.map_err(failed)?;
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
