//! HTTP Message Signatures (RFC 9421) on each request.

use std::path::Path;

use skewbridge_exec_proxy::forward::BoxFuture;
use skewbridge_exec_proxy::{ModifyError, NeedsBody, Outgoing, RequestModifier};
use skewbridge_http_signature::{Content, Error, Request, Signer, SigningKey, random_nonce};

use crate::secret_file;

/// Signs requests. Bodies are covered by their digest.
#[derive(Debug)]
pub struct HttpSignature {
    signer: Signer,
}

/// The format of a key file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFile {
    /// A private key in PEM: Ed25519, or ECDSA with P-256 or P-384.
    Pem,
    /// A shared secret for HMAC: all bytes of the file except a newline at its end.
    Secret,
}

impl HttpSignature {
    /// Signs with this signer.
    pub fn new(signer: Signer) -> Self {
        Self { signer }
    }

    /// Reads a key from a file. An error names the file.
    pub fn read_key(path: &Path, kind: KeyFile) -> Result<SigningKey, String> {
        let bytes = secret_file::read(path)?;
        let key = match kind {
            KeyFile::Pem => SigningKey::from_pem(&bytes),
            KeyFile::Secret => {
                let secret = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
                SigningKey::hmac(secret)
            }
        };
        key.map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl RequestModifier for HttpSignature {
    fn name(&self) -> &'static str {
        "http-signature"
    }

    fn needs_body(&self) -> NeedsBody {
        NeedsBody::Whole
    }

    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
        Box::pin(async move {
            let failed = |error: Error| ModifyError::new(error.to_string());
            let head = Request::of("https", request.method, request.url, request.headers)
                .ok_or_else(|| ModifyError::new("the request names no host"))?;
            let content = match request.body {
                Some(body) if !body.is_empty() => Content::Bytes(body),
                _ => Content::None,
            };
            let nonce = random_nonce().map_err(failed)?;
            let to_set = self
                .signer
                .sign(&head, content, crate::unix_time::now(), &nonce)
                .map_err(failed)?;
            for (name, value) in to_set {
                request.headers.insert(name, value);
            }
            Ok(())
        })
    }
}
