//! The initial dictionary of header compression in SPDY/3.
//!
//! The protocol defines it: both sides must have it byte for byte. First come words with their
//! length before them, as in a header block, then plain text.

/// The words.
#[rustfmt::skip] // one word per line would be two pages
const WORDS: [&str; 65] = [
    "options", "head", "post", "put", "delete", "trace", "accept", "accept-charset",
    "accept-encoding", "accept-language", "accept-ranges", "age", "allow", "authorization",
    "cache-control", "connection", "content-base", "content-encoding", "content-language",
    "content-length", "content-location", "content-md5", "content-range", "content-type", "date",
    "etag", "expect", "expires", "from", "host", "if-match", "if-modified-since", "if-none-match",
    "if-range", "if-unmodified-since", "last-modified", "location", "max-forwards", "pragma",
    "proxy-authenticate", "proxy-authorization", "range", "referer", "retry-after", "server", "te",
    "trailer", "transfer-encoding", "upgrade", "user-agent", "vary", "via", "warning",
    "www-authenticate", "method", "get", "status", "200 OK", "version", "HTTP/1.1", "url",
    "public", "set-cookie", "keep-alive", "origin",
];

/// The text.
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415\
    416417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad \
    Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not \
    Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 \
    Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,\
    deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

const DICTIONARY_BYTES: usize = {
    let mut length = TEXT.len();
    let mut index = 0;
    while index < WORDS.len() {
        length += 4 + WORDS[index].len();
        index += 1;
    }
    length
};

/// The whole dictionary.
pub(crate) static DICTIONARY: [u8; DICTIONARY_BYTES] = {
    let mut bytes = [0; DICTIONARY_BYTES];
    let mut at = 0;
    let mut index = 0;
    while index < WORDS.len() {
        let word = WORDS[index].as_bytes();
        // No word is longer than 255 bytes.
        #[allow(clippy::cast_possible_truncation)]
        let length = word.len() as u8;
        bytes[at + 3] = length;
        at = put(&mut bytes, at + 4, word);
        index += 1;
    }
    put(&mut bytes, at, TEXT.as_bytes());
    bytes
};

/// Copies `text` to `at`; returns the offset after it.
const fn put(bytes: &mut [u8; DICTIONARY_BYTES], at: usize, text: &[u8]) -> usize {
    let mut index = 0;
    while index < text.len() {
        bytes[at + index] = text[index];
        index += 1;
    }
    at + text.len()
}
