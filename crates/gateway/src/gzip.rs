//! Compression, where kube-apiserver would compress too.

use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue};

/// What is shorter is not compressed.
pub(crate) const WORTH_COMPRESSING: usize = 128 * 1024;

pub(crate) fn gzip(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail.
    let _ = encoder.write_all(plain);
    encoder.finish().unwrap_or_default().into()
}

/// Whether a client wants it, as kube-apiserver looks at it.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let said = headers.get(ACCEPT_ENCODING).map(HeaderValue::as_bytes);
    said.is_some_and(|said| {
        let mut words = said.split(|byte| *byte == b',');
        words.any(|word| {
            let word = word.split(|byte| *byte == b';').next().unwrap_or_default();
            word.trim_ascii() == b"gzip"
        })
    })
}
