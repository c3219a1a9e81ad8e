//! `Content-Digest` (RFC 9530): binds a body to a signed head.

use std::str::FromStr;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Algorithm, SHA256, SHA512, digest};
use http::{HeaderMap, HeaderValue};
use sfv::{DictSerializer, KeyRef, key_ref};

use super::CONTENT_DIGEST;
use crate::Error;
use crate::structured::{BareItem, Item, ListEntry, parse_dictionary};

/// The algorithms with status "active" in RFC 9530.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestAlgorithm {
    /// `sha-256`
    Sha256,
    /// `sha-512`
    Sha512,
}

const ALL: [DigestAlgorithm; 2] = [DigestAlgorithm::Sha256, DigestAlgorithm::Sha512];

impl DigestAlgorithm {
    /// The name in `Content-Digest`.
    pub fn as_str(self) -> &'static str {
        self.key().as_str()
    }

    fn key(self) -> &'static KeyRef {
        match self {
            Self::Sha256 => const { key_ref("sha-256") },
            Self::Sha512 => const { key_ref("sha-512") },
        }
    }

    fn function(self) -> &'static Algorithm {
        match self {
            Self::Sha256 => &SHA256,
            Self::Sha512 => &SHA512,
        }
    }

    /// The header value for this body.
    pub fn header(self, body: &[u8]) -> HeaderValue {
        let bytes = digest(self.function(), body);
        let mut dictionary = DictSerializer::new();
        dictionary.bare_item(self.key(), bytes.as_ref());
        // Base64 between colons is a header value.
        HeaderValue::try_from(dictionary.finish().unwrap_or_default())
            .unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

impl FromStr for DigestAlgorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        ALL.into_iter()
            .find(|it| it.as_str() == text)
            .ok_or(Error::Form {
                field: "Content-Digest",
                cause: "the algorithm is sha-256 or sha-512",
            })
    }
}

/// The digests that a body must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedDigest(Vec<(DigestAlgorithm, Vec<u8>)>);

impl ExpectedDigest {
    /// Parses the header; `None` if there is none. A header without a digest of a known
    /// algorithm is an error: it would bind nothing.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, Error> {
        const FIELD: &str = "Content-Digest";
        let lines: Vec<_> = headers
            .get_all(CONTENT_DIGEST)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        if lines.is_empty() {
            return Ok(None);
        }
        let dictionary = parse_dictionary(&lines.join(&b", "[..]));
        let dictionary = dictionary.map_err(|cause| Error::Field {
            field: FIELD,
            cause,
        })?;
        let wrong = |cause| Error::Form {
            field: FIELD,
            cause,
        };
        let mut expected = Vec::new();
        for algorithm in ALL {
            match dictionary.get(algorithm.as_str()) {
                None => {}
                Some(ListEntry::Item(Item {
                    bare_item: BareItem::ByteSequence(bytes),
                    ..
                })) => expected.push((algorithm, bytes.clone())),
                Some(_) => return Err(wrong("a digest is a byte sequence")),
            }
        }
        if expected.is_empty() {
            return Err(wrong("it has neither sha-256 nor sha-512"));
        }
        Ok(Some(Self(expected)))
    }

    /// Whether this body has all of these digests.
    pub fn matches(&self, body: &[u8]) -> bool {
        self.0.iter().all(|(algorithm, expected)| {
            let actual = digest(algorithm.function(), body);
            verify_slices_are_equal(actual.as_ref(), expected).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn expected(lines: &[&str]) -> Result<Option<ExpectedDigest>, Error> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CONTENT_DIGEST, line.parse().unwrap());
        }
        ExpectedDigest::of(&headers)
    }

    /// RFC 9530, 2 and Appendix B: bodies and their digests.
    #[test]
    fn the_digests_of_the_rfc_are_reproduced() {
        let rows: [(DigestAlgorithm, &[u8], &str); 5] = [
            (
                DigestAlgorithm::Sha256,
                b"{\"hello\": \"world\"}\n",
                "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:",
            ),
            (
                DigestAlgorithm::Sha512,
                b"{\"hello\": \"world\"}\n",
                "sha-512=:YMAam51Jz/jOATT6/zvHrLVgOYTGFy1d6GJiOHTohq4yP+pgk4vf2aCs\
                 yRZOtw8MjkM7iw7yZ/WkppmM44T3qg==:",
            ),
            (
                DigestAlgorithm::Sha256,
                b"",
                "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:",
            ),
            // RFC 9421, B.2: the same without its newline.
            (
                DigestAlgorithm::Sha512,
                b"{\"hello\": \"world\"}",
                "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrI\
                 iYllu7BNNyealdVLvRwEmTHWXvJwew==:",
            ),
            (
                DigestAlgorithm::Sha256,
                b"{\"hello\": \"world\"}",
                "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:",
            ),
        ];
        for (algorithm, body, header) in rows {
            assert_eq!(algorithm.header(body), header);
            let expected = expected(&[header]).unwrap().unwrap();
            assert!(expected.matches(body));
            assert!(!expected.matches(&[body, b" "].concat()));
        }
    }

    #[test]
    fn every_known_digest_must_match_and_at_least_one_is_required() {
        let body = b"body";
        let sha256 = DigestAlgorithm::Sha256.header(body);
        let sha512 = DigestAlgorithm::Sha512.header(body);
        let wrong = DigestAlgorithm::Sha512.header(b"other");
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        assert_eq!(expected(&[]).unwrap(), None);
        let both = expected(&[&text(&sha256), &text(&sha512)])
            .unwrap()
            .unwrap();
        assert!(both.matches(body));
        let half = expected(&[&text(&sha256), &text(&wrong)]).unwrap().unwrap();
        assert!(!half.matches(body) && !half.matches(b"other"));
        let with_unknown = format!("unixsum=:AA==:, {}", text(&sha256));
        assert!(expected(&[&with_unknown]).unwrap().unwrap().matches(body));
        for bad in ["unixsum=:AA==:", "sha-256=1", "sha-256", "", "sha-256=:"] {
            assert!(expected(&[bad]).is_err(), "{bad}");
        }
    }
}
