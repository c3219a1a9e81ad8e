//! The canonical request: one form for all requests with the same meaning.

use std::borrow::Cow;
use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use http::HeaderName;
use http::header::HOST;
use percent_encoding::{
    AsciiSet, NON_ALPHANUMERIC, percent_decode, percent_decode_str, percent_encode,
};

use crate::Request;

/// Everything but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const ENCODED_PATH: &AsciiSet = &ENCODED.remove(b'/');

/// How a path is brought into its canonical form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PathStyle {
    /// Dots and double slashes are resolved, and the path of the wire is encoded once more: all
    /// services except S3.
    #[default]
    Standard,
    /// Encoded once, without resolving anything: S3.
    S3,
}

/// A canonical request, and the names of the headers in it.
#[derive(Debug)]
pub struct Canonical {
    /// The text that is hashed.
    pub text: Vec<u8>,
    /// The names in order, separated by semicolons.
    pub signed_headers: String,
}

/// Builds the canonical request from the headers that are to be signed and the hash of the body in
/// hexadecimal, or the constant that replaces the hash. `host` is always signed.
pub fn canonical_request(
    request: &Request<'_>,
    style: PathStyle,
    is_signed: impl Fn(&HeaderName) -> bool,
    payload: &str,
) -> Canonical {
    let mut headers: BTreeMap<&str, Vec<Cow<'_, [u8]>>> = BTreeMap::new();
    headers.insert("host", vec![collapse_spaces(request.authority.as_bytes())]);
    for (name, value) in request.headers {
        if *name != HOST && is_signed(name) {
            let values = headers.entry(name.as_str()).or_default();
            values.push(collapse_spaces(value.as_bytes()));
        }
    }
    let names: Vec<_> = headers.keys().copied().collect();
    let signed_headers = names.join(";");
    let mut text = Vec::with_capacity(512);
    let mut line = |part: &[u8]| {
        text.extend_from_slice(part);
        text.push(b'\n');
    };
    line(request.method.as_str().as_bytes());
    line(path(request.path, style).as_bytes());
    line(query(request.query.unwrap_or_default()).as_bytes());
    for (name, values) in &headers {
        line(&[name.as_bytes(), b":", &values.join(&b","[..])].concat());
    }
    line(b"");
    line(signed_headers.as_bytes());
    text.extend_from_slice(payload.as_bytes());
    Canonical {
        text,
        signed_headers,
    }
}

/// SHA-256 in hexadecimal.
pub fn hex_digest(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Removes spaces at both ends, and all but one of several in a row.
fn collapse_spaces(value: &[u8]) -> Cow<'_, [u8]> {
    let value = value.trim_ascii();
    if !value.windows(2).any(|it| it == b"  ") {
        return Cow::Borrowed(value);
    }
    let mut collapsed = value.to_vec();
    collapsed.dedup_by(|next, before| *next == b' ' && *before == b' ');
    Cow::Owned(collapsed)
}

fn path(path: &str, style: PathStyle) -> String {
    match style {
        PathStyle::Standard => percent_encode(normalize(path).as_bytes(), ENCODED_PATH).to_string(),
        PathStyle::S3 if path.is_empty() => "/".to_owned(),
        PathStyle::S3 => {
            let decoded: Vec<u8> = percent_decode_str(path).collect();
            percent_encode(&decoded, ENCODED_PATH).to_string()
        }
    }
}

/// Removes `.`, `..` and empty segments (RFC 3986, 5.2.4).
fn normalize(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut normalized = format!("/{}", segments.join("/"));
    let is_directory = ["/", "/.", "/.."].iter().any(|it| path.ends_with(it));
    if is_directory && normalized.len() > 1 {
        normalized.push('/');
    }
    normalized
}

/// Sorted, and decoded and encoded again.
fn query(query: &str) -> String {
    let reencode = |part: &str| {
        let part = part.replace('+', " ");
        let decoded: Vec<u8> = percent_decode(part.as_bytes()).collect();
        percent_encode(&decoded, ENCODED).to_string()
    };
    let mut pairs: Vec<_> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (reencode(key), reencode(value))
        })
        .collect();
    pairs.sort();
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join("&")
}
