//! A discovery document in all encodings. The common encoding is written when the document is
//! built, the others with the first request for them.

use std::sync::OnceLock;

use aws_lc_rs::digest::{SHA512, digest};
use bytes::Bytes;
use http::HeaderValue;
use skewbridge_discovery::document::Schema;
use skewbridge_discovery::{Document, DocumentEncoding, Layout, Object as _};
use skewbridge_k8s_api::content_negotiation::Format;

use crate::gzip::{MIN_COMPRESSED_BYTES, gzip};

/// A document and its encodings.
#[derive(Debug)]
pub(crate) struct EncodedDocument {
    pub(crate) document: Document,
    pub(crate) etag: HeaderValue,
    pub(crate) json: Bytes,
    json_gzip: OnceLock<Bytes>,
    json_beta: OnceLock<EncodedForm>,
    protobuf: OnceLock<EncodedForm>,
    protobuf_beta: OnceLock<EncodedForm>,
}

/// An encoding that is written with the first request for it.
#[derive(Debug)]
struct EncodedForm {
    plain: Bytes,
    gzip: OnceLock<Bytes>,
}

/// The body of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EncodedBody {
    pub(crate) bytes: Bytes,
    pub(crate) gzipped: bool,
}

impl EncodedDocument {
    pub(crate) fn of(document: Document) -> Self {
        let json = document.write(Format::Json, Layout::Compact);
        Self {
            etag: etag(&document),
            document,
            json: json.into(),
            json_gzip: OnceLock::new(),
            json_beta: OnceLock::new(),
            protobuf: OnceLock::new(),
            protobuf_beta: OnceLock::new(),
        }
    }

    /// The document in this encoding.
    pub(crate) fn encoded(&self, encoding: DocumentEncoding, may_gzip: bool) -> EncodedBody {
        let beta = || Document {
            schema: Schema::V2Beta1,
            items: self.document.items.clone(),
        };
        let encoded = match (encoding.format, encoding.layout, encoding.schema) {
            (Format::Json, Layout::Compact, Schema::V2) => {
                return choose(&self.json, &self.json_gzip, may_gzip);
            }
            (Format::Json, Layout::Compact, Schema::V2Beta1) => (self.json_beta)
                .get_or_init(|| EncodedForm::of(beta().write(Format::Json, Layout::Compact))),
            (Format::Protobuf, _, Schema::V2) => (self.protobuf).get_or_init(|| {
                EncodedForm::of(self.document.write(encoding.format, encoding.layout))
            }),
            (Format::Protobuf, _, Schema::V2Beta1) => (self.protobuf_beta)
                .get_or_init(|| EncodedForm::of(beta().write(encoding.format, encoding.layout))),
            // Indented JSON and YAML are requested rarely, so they are not stored.
            (Format::Json | Format::Yaml | Format::Cbor, _, Schema::V2) => {
                return EncodedForm::of(self.document.write(encoding.format, encoding.layout))
                    .sent(may_gzip);
            }
            (Format::Json | Format::Yaml | Format::Cbor, _, Schema::V2Beta1) => {
                return EncodedForm::of(beta().write(encoding.format, encoding.layout))
                    .sent(may_gzip);
            }
        };
        encoded.sent(may_gzip)
    }
}

impl EncodedForm {
    fn of(bytes: Vec<u8>) -> Self {
        Self {
            plain: bytes.into(),
            gzip: OnceLock::new(),
        }
    }

    fn sent(&self, may_gzip: bool) -> EncodedBody {
        choose(&self.plain, &self.gzip, may_gzip)
    }
}

impl EncodedBody {
    /// A body that is encoded for one response.
    pub(crate) fn of(bytes: &Bytes, may_gzip: bool) -> Self {
        choose(bytes, &OnceLock::new(), may_gzip)
    }
}

fn choose(plain: &Bytes, gzipped: &OnceLock<Bytes>, may_gzip: bool) -> EncodedBody {
    if may_gzip && plain.len() > MIN_COMPRESSED_BYTES {
        return EncodedBody {
            bytes: gzipped.get_or_init(|| gzip(plain)).clone(),
            gzipped: true,
        };
    }
    EncodedBody {
        bytes: plain.clone(),
        gzipped: false,
    }
}

/// The `ETag` as kube-apiserver computes it: from the document without its kind.
fn etag(document: &Document) -> HeaderValue {
    let json = serde_json::to_vec(document).unwrap_or_default();
    quoted_sha512(&json)
}

pub(crate) fn quoted_sha512(bytes: &[u8]) -> HeaderValue {
    use std::fmt::Write as _;
    let mut etag = String::with_capacity(130);
    etag.push('"');
    for byte in digest(&SHA512, bytes).as_ref() {
        // Writing to a String does not fail.
        let _ = write!(etag, "{byte:02X}");
    }
    etag.push('"');
    // Digits and letters are a valid header value.
    HeaderValue::try_from(etag).unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}
