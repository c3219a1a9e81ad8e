//! Parses request and response heads, and determines the framing of the body.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version};
use httparse::{Header, ParserConfig};

use super::body::Framing;
use super::line_ending::has_bare_lf;

/// Maximum size of a head: Go's `http.DefaultMaxHeaderBytes`, which kube-apiserver uses.
pub const MAX_HEAD_BYTES: usize = 1 << 20;

/// The longest request target that is read: [`Uri`] holds no more.
pub const MAX_TARGET_BYTES: usize = u16::MAX as usize - 1;

/// Heads with more fields are parsed again with storage on the heap.
const MAX_FIELDS_ON_STACK: usize = 64;

/// The most fields that are read: `HeaderMap` holds at most 24,576 names, and
/// no client sends a third of that.
pub const MAX_FIELDS: usize = 8192;

/// The start of a request.
#[derive(Debug)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// Origin-form, or absolute-form as it came.
    pub uri: Uri,
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
    /// All fields, in order of arrival per name.
    pub headers: HeaderMap,
    /// How long the body is.
    pub framing: Framing,
    /// Whether the connection may be reused for another request.
    pub keep_alive: bool,
}

/// The start of a response.
#[derive(Debug)]
pub struct ResponseHead {
    /// The status, also 1xx.
    pub status: StatusCode,
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
    /// All fields.
    pub headers: HeaderMap,
    /// How long the body is.
    pub framing: Framing,
    /// Whether the connection can carry another request afterwards.
    pub keep_alive: bool,
}

/// Why a head is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The syntax is wrong.
    #[error("malformed HTTP/1.1 message: {0}")]
    Malformed(&'static str),
    /// A request target of more than [`MAX_TARGET_BYTES`].
    #[error("the request target is longer than {MAX_TARGET_BYTES} bytes")]
    TargetTooLong,
    /// More than [`MAX_HEAD_BYTES`], or too many fields.
    #[error("the message head is larger than {MAX_HEAD_BYTES} bytes")]
    TooLarge,
}

/// Searches for the end of a head incrementally, each byte once, so that a head that is received
/// byte by byte is not parsed repeatedly.
#[derive(Debug, Default)]
pub struct HeadTerminator {
    scanned: usize,
}

impl HeadTerminator {
    /// Whether `buffer` contains a complete head, or exceeds the size limit.
    pub fn reached(&mut self, buffer: &[u8]) -> bool {
        // A blank line may be split between reads: search from three bytes back.
        let from = self.scanned.saturating_sub(3);
        self.scanned = buffer.len();
        buffer.len() > MAX_HEAD_BYTES
            || buffer[from..].iter().enumerate().any(|(at, byte)| {
                let rest = &buffer[from + at + 1..];
                *byte == b'\n' && (rest.starts_with(b"\n") || rest.starts_with(b"\r\n"))
            })
    }
}

/// Parses a request head at the front of `buffer` and removes it; `None` means that more bytes are
/// needed.
pub fn parse_request(buffer: &mut BytesMut) -> Result<Option<RequestHead>, HeadError> {
    // RFC 9112, 2.2: ignore at least one empty line before the request line.
    while buffer.starts_with(b"\r\n") {
        let _ = buffer.split_to(2);
    }
    if buffer.is_empty() {
        return Ok(None);
    }
    // httparse would skip any number of these, and would have to parse them again on each call.
    if buffer.starts_with(b"\n") {
        return Err(HeadError::Malformed("invalid line ending"));
    }
    if line_too_long(buffer) {
        return Err(HeadError::TargetTooLong);
    }
    let Some((spans, line)) = with_fields(buffer, |buffer, fields| {
        let mut request = httparse::Request::new(&mut []);
        let status = ParserConfig::default()
            .parse_request_with_uninit_headers(&mut request, buffer, fields)
            .map_err(ParseFailure::from)?;
        Ok(match status {
            httparse::Status::Partial => None,
            httparse::Status::Complete(length) => {
                let (Some(method), Some(path), Some(minor)) =
                    (request.method, request.path, request.version)
                else {
                    return Err(HeadError::Malformed("incomplete request line").into());
                };
                let method = Method::from_bytes(method.as_bytes())
                    .map_err(|_| HeadError::Malformed("invalid method"))?;
                let target = span_of(buffer, path.as_bytes());
                Some((
                    Spans::of(buffer, request.headers, length),
                    (method, target, minor),
                ))
            }
        })
    })?
    else {
        return need_more(buffer);
    };
    let (method, target, minor) = line;
    let head = buffer.split_to(spans.length).freeze();
    if has_bare_lf(&head) {
        return Err(HeadError::Malformed("a line ends without CR"));
    }
    let headers = spans.into_map(&head)?;
    if target.1 - target.0 > MAX_TARGET_BYTES {
        return Err(HeadError::TargetTooLong);
    }
    let uri = Uri::from_maybe_shared(head.slice(target.0..target.1))
        .map_err(|_| HeadError::Malformed("invalid request target"))?;
    let version = version_of(minor);
    let framing = request_framing(&headers, version)?;
    host_is_single(&headers, version)?;
    let keep_alive = keeps_alive(&headers, version);
    Ok(Some(RequestHead {
        method,
        uri,
        version,
        headers,
        framing,
        keep_alive,
    }))
}

/// Parses a response head at the front of `buffer` and removes it; `None` means that more bytes are
/// needed. The `method` of the request determines whether a body follows.
pub fn parse_response(
    buffer: &mut BytesMut,
    method: &Method,
) -> Result<Option<ResponseHead>, HeadError> {
    if buffer.is_empty() {
        return Ok(None);
    }
    let Some((spans, line)) = with_fields(buffer, |buffer, fields| {
        let mut response = httparse::Response::new(&mut []);
        let status = ParserConfig::default()
            .parse_response_with_uninit_headers(&mut response, buffer, fields)
            .map_err(ParseFailure::from)?;
        Ok(match status {
            httparse::Status::Partial => None,
            httparse::Status::Complete(length) => {
                let (Some(code), Some(minor)) = (response.code, response.version) else {
                    return Err(HeadError::Malformed("incomplete status line").into());
                };
                let code = StatusCode::from_u16(code)
                    .map_err(|_| HeadError::Malformed("invalid status code"))?;
                Some((Spans::of(buffer, response.headers, length), (code, minor)))
            }
        })
    })?
    else {
        return need_more(buffer);
    };
    let (status, minor) = line;
    let head = buffer.split_to(spans.length).freeze();
    let headers = spans.into_map(&head)?;
    let version = version_of(minor);
    let framing = response_framing(&headers, status, method)?;
    let keep_alive = keeps_alive(&headers, version) && framing != Framing::UntilClose;
    Ok(Some(ResponseHead {
        status,
        version,
        headers,
        framing,
        keep_alive,
    }))
}

/// Whether the request line alone exceeds the limit of a head, which only its target can cause.
fn line_too_long(buffer: &[u8]) -> bool {
    buffer.len() > MAX_HEAD_BYTES && !buffer[..MAX_HEAD_BYTES].contains(&b'\n')
}

/// More bytes are needed: allowed until the head would be too large.
fn need_more<T>(buffer: &BytesMut) -> Result<Option<T>, HeadError> {
    if buffer.len() > MAX_HEAD_BYTES {
        Err(HeadError::TooLarge)
    } else {
        Ok(None)
    }
}

enum ParseFailure {
    TooManyFields,
    Head(HeadError),
}

impl From<HeadError> for ParseFailure {
    fn from(error: HeadError) -> Self {
        Self::Head(error)
    }
}

impl From<httparse::Error> for ParseFailure {
    fn from(error: httparse::Error) -> Self {
        Self::Head(HeadError::Malformed(match error {
            httparse::Error::TooManyHeaders => return Self::TooManyFields,
            httparse::Error::HeaderName => "invalid header name",
            httparse::Error::HeaderValue => "invalid header value",
            httparse::Error::NewLine => "invalid line ending",
            httparse::Error::Status => "invalid status line",
            httparse::Error::Token => "invalid request line",
            httparse::Error::Version => "unsupported HTTP version",
        }))
    }
}

/// Runs the parser with storage for fields on the stack, or on the heap if there are many.
fn with_fields<'b, T>(
    buffer: &'b [u8],
    parse: impl Fn(&'b [u8], &mut [MaybeUninit<Header<'b>>]) -> Result<Option<T>, ParseFailure>,
) -> Result<Option<T>, HeadError> {
    match parse(
        buffer,
        &mut [const { MaybeUninit::uninit() }; MAX_FIELDS_ON_STACK],
    ) {
        Ok(parsed) => return Ok(parsed),
        Err(ParseFailure::Head(error)) => return Err(error),
        Err(ParseFailure::TooManyFields) => {}
    }
    let mut fields = Vec::new();
    fields.resize_with(MAX_FIELDS, MaybeUninit::uninit);
    match parse(buffer, &mut fields) {
        Ok(parsed) => Ok(parsed),
        Err(ParseFailure::Head(error)) => Err(error),
        Err(ParseFailure::TooManyFields) => Err(HeadError::TooLarge),
    }
}

type Span = (usize, usize);

fn span_of(buffer: &[u8], part: &[u8]) -> Span {
    let start = part.as_ptr().addr() - buffer.as_ptr().addr();
    (start, start + part.len())
}

/// The positions of names and values in the head, so that values share its memory.
struct Spans {
    names: Vec<HeaderName>,
    values: Vec<Span>,
    length: usize,
    invalid: bool,
}

impl Spans {
    fn of(buffer: &[u8], fields: &[Header<'_>], length: usize) -> Self {
        let mut spans = Self {
            names: Vec::with_capacity(fields.len()),
            values: Vec::with_capacity(fields.len()),
            length,
            invalid: false,
        };
        for field in fields {
            match HeaderName::from_bytes(field.name.as_bytes()) {
                Ok(name) => spans.names.push(name),
                Err(_) => spans.invalid = true,
            }
            spans.values.push(span_of(buffer, field.value));
        }
        spans
    }

    fn into_map(self, head: &Bytes) -> Result<HeaderMap, HeadError> {
        if self.invalid {
            return Err(HeadError::Malformed("invalid header name"));
        }
        if self.length > MAX_HEAD_BYTES {
            return Err(HeadError::TooLarge);
        }
        // Capacity for the headers that a proxy adds, so that the map does not grow.
        let mut map = HeaderMap::with_capacity(self.names.len() + 8);
        for (name, (start, end)) in self.names.into_iter().zip(self.values) {
            let value = HeaderValue::from_maybe_shared(head.slice(start..end))
                .map_err(|_| HeadError::Malformed("invalid header value"))?;
            map.try_append(name, value)
                .map_err(|_| HeadError::TooLarge)?;
        }
        Ok(map)
    }
}

fn version_of(minor: u8) -> Version {
    if minor == 0 {
        Version::HTTP_10
    } else {
        Version::HTTP_11
    }
}

/// RFC 9112, 6.3, for requests. Ambiguous framing is rejected, not repaired.
fn request_framing(headers: &HeaderMap, version: Version) -> Result<Framing, HeadError> {
    if headers.contains_key(TRANSFER_ENCODING) {
        if headers.contains_key(CONTENT_LENGTH) {
            return Err(HeadError::Malformed(
                "both Transfer-Encoding and Content-Length",
            ));
        }
        if version == Version::HTTP_10 {
            return Err(HeadError::Malformed("Transfer-Encoding in HTTP/1.0"));
        }
        return only_chunked(headers).map(|()| Framing::Chunked);
    }
    Ok(match content_length(headers)? {
        None | Some(0) => Framing::Empty,
        Some(length) => Framing::Length(length),
    })
}

/// RFC 9112, 6.3, for responses.
fn response_framing(
    headers: &HeaderMap,
    status: StatusCode,
    method: &Method,
) -> Result<Framing, HeadError> {
    if status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
        || method == Method::HEAD
    {
        return Ok(Framing::Empty);
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        if headers.contains_key(CONTENT_LENGTH) {
            return Err(HeadError::Malformed(
                "both Transfer-Encoding and Content-Length",
            ));
        }
        return only_chunked(headers).map(|()| Framing::Chunked);
    }
    Ok(match content_length(headers)? {
        None => Framing::UntilClose,
        Some(0) => Framing::Empty,
        Some(length) => Framing::Length(length),
    })
}

fn only_chunked(headers: &HeaderMap) -> Result<(), HeadError> {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(HeadError::Malformed(
            "a Transfer-Encoding other than chunked",
        )),
    }
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, HeadError> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let digits = value.as_bytes();
    let invalid = HeadError::Malformed("invalid Content-Length");
    if values.next().is_some() {
        return Err(HeadError::Malformed("more than one Content-Length"));
    }
    // 18 digits fit in u64; larger bodies do not occur.
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(invalid);
    }
    Ok(Some(digits.iter().fold(0, |length, digit| {
        length * 10 + u64::from(digit - b'0')
    })))
}

/// RFC 9112, 3.2: a missing or repeated Host is rejected with 400.
fn host_is_single(headers: &HeaderMap, version: Version) -> Result<(), HeadError> {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => Err(HeadError::Malformed("more than one Host")),
        (None, None) if version == Version::HTTP_11 => Err(HeadError::Malformed("missing Host")),
        _ => Ok(()),
    }
}

fn keeps_alive(headers: &HeaderMap, version: Version) -> bool {
    let mut keep = version == Version::HTTP_11;
    for value in headers.get_all(CONNECTION) {
        for token in value.as_bytes().split(|byte| *byte == b',') {
            let token = token.trim_ascii();
            if token.eq_ignore_ascii_case(b"close") {
                return false;
            }
            keep |= token.eq_ignore_ascii_case(b"keep-alive");
        }
    }
    keep
}

#[cfg(test)]
mod tests;
