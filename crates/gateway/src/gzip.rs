//! Gzip compression of responses, under the same conditions as in kube-apiserver.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};

/// Shorter responses are not compressed.
pub(crate) const MIN_COMPRESSED_BYTES: usize = 128 * 1024;

pub(crate) fn gzip(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(plain);
    encoder.finish().unwrap_or_default().into()
}

/// Whether the client accepts gzip, by the rules of kube-apiserver.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).map(HeaderValue::as_bytes);
    accepted.is_some_and(|accepted| {
        let mut codings = accepted.split(|byte| *byte == b',');
        codings.any(|coding| {
            let name = coding
                .split(|byte| *byte == b';')
                .next()
                .unwrap_or_default();
            name.trim_ascii() == b"gzip"
        })
    })
}
