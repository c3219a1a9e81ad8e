//! The signature base: the text that is signed (RFC 9421, 2.5).

use std::fmt::Write as _;

use super::SignatureInput;
use crate::structured::serialize;
use crate::{Error, Request};

/// The signature base of a request.
pub fn signature_base(request: &Request<'_>, input: &SignatureInput) -> Result<String, Error> {
    let mut base = String::with_capacity(512);
    for identifier in &input.components {
        // Writing to a String does not fail.
        let _ = writeln!(
            base,
            "{}: {}",
            serialize(identifier.item()),
            identifier.value(request)?
        );
    }
    let _ = write!(base, "\"@signature-params\": {}", input.written());
    Ok(base)
}
