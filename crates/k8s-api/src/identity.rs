//! The headers in which a front proxy sends the identity of a caller.
//!
//! Reading follows kube-apiserver's requestheader authenticator; writing follows client-go's
//! authenticating proxy transport.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The prefix of the default identity headers.
const DEFAULT_PREFIX: &str = "x-remote-";

/// The header names that carry an identity (`--requestheader-*`).
#[derive(Debug, Clone)]
pub struct IdentityHeaders {
    /// The first of these headers that is present and not empty is the user name.
    pub username: Vec<HeaderName>,
    /// The first of these headers that is present and not empty is the user's UID.
    pub uid: Vec<HeaderName>,
    /// Each value of each of these headers is a group.
    pub group: Vec<HeaderName>,
    /// Prefixes of the headers with extra fields, in lower case.
    pub extra_prefix: Vec<String>,
}

impl Default for IdentityHeaders {
    fn default() -> Self {
        Self {
            username: vec![HeaderName::from_static("x-remote-user")],
            uid: vec![HeaderName::from_static("x-remote-uid")],
            group: vec![HeaderName::from_static("x-remote-group")],
            extra_prefix: vec!["x-remote-extra-".to_owned()],
        }
    }
}

/// A user, as in kube-apiserver's `user.Info`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// The user name; never empty.
    pub name: String,
    /// The UID; empty if there is none.
    pub uid: String,
    /// Groups, in order.
    pub groups: Vec<String>,
    /// Extra fields by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The user cannot be encoded in headers without a change.
#[derive(Debug, thiserror::Error)]
#[error("the caller's identity cannot be written in headers: {0}")]
pub struct EncodeError(String);

impl IdentityHeaders {
    /// Decodes the identity in these headers, if there is one. An identity that is not
    /// UTF-8 is ignored: a lossy conversion could yield the name of another user.
    pub fn read(&self, headers: &HeaderMap) -> Option<User> {
        let first = |names: &[HeaderName]| {
            names
                .iter()
                .filter_map(|name| headers.get(name))
                .find(|value| !value.is_empty())
        };
        let mut user = User {
            name: decode_value(first(&self.username)?)?,
            uid: match first(&self.uid) {
                Some(uid) => decode_value(uid)?,
                None => String::new(),
            },
            ..User::default()
        };
        for name in &self.group {
            for value in headers.get_all(name).iter().filter(|it| !it.is_empty()) {
                user.groups.push(decode_value(value)?);
            }
        }
        for name in headers.keys() {
            let Some(encoded) = self.extra_key(name) else {
                continue;
            };
            let values = user.extra.entry(unescape(encoded)?).or_default();
            for value in headers.get_all(name) {
                values.push(decode_value(value)?);
            }
        }
        Some(user)
    }

    /// The key of an extra field, still percent-encoded.
    fn extra_key<'a>(&self, name: &'a HeaderName) -> Option<&'a str> {
        self.extra_prefix
            .iter()
            .find_map(|prefix| name.as_str().strip_prefix(prefix.as_str()))
    }

    /// Removes every header that could be interpreted as an identity: the configured names, and the
    /// default `X-Remote-*` names because the upstream may trust those too. Names are matched in
    /// any spelling.
    pub fn remove(&self, headers: &mut HeaderMap) {
        if !headers.keys().any(|name| self.is_identity_header(name)) {
            return;
        }
        let names: Vec<_> = headers
            .keys()
            .filter(|name| self.is_identity_header(name))
            .cloned()
            .collect();
        for name in names {
            headers.remove(name);
        }
    }

    pub(crate) fn is_identity_header(&self, name: &HeaderName) -> bool {
        let name = name.as_str();
        let mut configured = [&self.username, &self.uid, &self.group]
            .into_iter()
            .flatten();
        has_prefix(name, DEFAULT_PREFIX)
            || configured.any(|it| same_name(name, it.as_str()))
            || self
                .extra_prefix
                .iter()
                .any(|prefix| has_prefix(name, prefix))
    }

    /// Adds the identity of the caller. Existing identity headers have to be removed first.
    pub fn write(&self, headers: &mut HeaderMap, user: &User) -> Result<(), EncodeError> {
        self.prepare(user)?.apply(headers);
        Ok(())
    }

    /// Encodes the identity once, for repeated use.
    pub fn prepare(&self, user: &User) -> Result<PreparedIdentity, EncodeError> {
        let mut fields = Vec::with_capacity(user.groups.len() + user.extra.len() + 2);
        let mut add = |name: &HeaderName, text: &str| -> Result<(), EncodeError> {
            let value = encode_value(text).map_err(|_| EncodeError(format!("{name}: {text:?}")))?;
            fields.push((name.clone(), value));
            Ok(())
        };
        let missing = |what: &str| EncodeError(format!("no header is configured for the {what}"));
        let username = self.username.first().ok_or_else(|| missing("user name"))?;
        add(username, &user.name)?;
        if let (false, Some(uid)) = (user.uid.is_empty(), self.uid.first()) {
            add(uid, &user.uid)?;
        }
        if !user.groups.is_empty() {
            let group = self.group.first().ok_or_else(|| missing("groups"))?;
            for name in &user.groups {
                add(group, name)?;
            }
        }
        if !user.extra.is_empty() {
            let prefix = self.extra_prefix.first().ok_or_else(|| missing("extra"))?;
            for (key, values) in &user.extra {
                let name = format!("{prefix}{}", escape(key));
                let name =
                    HeaderName::from_bytes(name.as_bytes()).map_err(|_| EncodeError(name))?;
                for text in values {
                    add(&name, text)?;
                }
            }
        }
        Ok(PreparedIdentity(fields))
    }
}

/// An identity encoded as headers.
#[derive(Debug, Clone)]
pub struct PreparedIdentity(Vec<(HeaderName, HeaderValue)>);

impl PreparedIdentity {
    /// Appends the identity headers.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.append(name, value.clone());
        }
    }
}

/// Whether two names are equal for a server that treats `_` as `-`.
pub(crate) fn same_name(name: &str, other: &str) -> bool {
    name.len() == other.len() && has_prefix(name, other)
}

/// Whether a name has this prefix for a server that treats `_` as `-`.
pub(crate) fn has_prefix(name: &str, prefix: &str) -> bool {
    let dash = |byte: u8| byte == b'-' || byte == b'_';
    name.len() >= prefix.len()
        && name
            .bytes()
            .zip(prefix.bytes())
            .all(|(byte, expected)| byte == expected || (dash(byte) && dash(expected)))
}

fn decode_value(value: &HeaderValue) -> Option<String> {
    std::str::from_utf8(value.as_bytes())
        .ok()
        .map(str::to_owned)
}

fn encode_value(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    // Go trims header values when it reads them: an identity that would change is rejected.
    if text.trim_matches([' ', '\t']) != text {
        return HeaderValue::from_bytes(b"\n");
    }
    HeaderValue::from_bytes(text.as_bytes())
}

/// client-go's `headerKeyEscape`: every byte that is not a token byte (RFC 9110, 5.6.2),
/// and `%`, is written as `%XX`. Upper-case letters are escaped too because header names do
/// not preserve them.
fn escape(key: &str) -> Cow<'_, str> {
    use std::fmt::Write as _;
    let plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$&'*+-.^_`|~".contains(&byte)
    };
    if key.bytes().all(plain) {
        return Cow::Borrowed(key);
    }
    let mut escaped = String::with_capacity(key.len() + 8);
    for byte in key.bytes() {
        if plain(byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    Cow::Owned(escaped)
}

/// Go's `url.PathUnescape`; a key with an invalid escape is kept unchanged.
fn unescape(key: &str) -> Option<String> {
    if !key.contains('%') || !escapes_are_valid(key.as_bytes()) {
        return Some(key.to_owned());
    }
    let decoded = percent_encoding::percent_decode_str(key).decode_utf8();
    decoded.map(Cow::into_owned).ok()
}

/// Whether every `%` is followed by two hexadecimal digits.
pub(crate) fn escapes_are_valid(text: &[u8]) -> bool {
    text.iter().enumerate().all(|(at, byte)| {
        *byte != b'%'
            || text
                .get(at + 1..at + 3)
                .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        map
    }

    fn extra(pairs: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
        pairs
            .iter()
            .map(|(key, values)| {
                let values = values.iter().map(|value| (*value).to_owned()).collect();
                ((*key).to_owned(), values)
            })
            .collect()
    }

    #[test]
    fn header_names_are_tried_in_order_and_empty_values_skipped() {
        let names = IdentityHeaders {
            username: vec![
                HeaderName::from_static("x-first"),
                HeaderName::from_static("x-second"),
            ],
            group: vec![
                HeaderName::from_static("x-team"),
                HeaderName::from_static("x-remote-group"),
            ],
            ..IdentityHeaders::default()
        };
        let user = names
            .read(&headers(&[
                ("x-first", ""),
                ("x-second", "alice"),
                ("x-remote-group", "b"),
                ("x-team", "a"),
                ("x-team", ""),
            ]))
            .unwrap();
        assert_eq!(user.name, "alice");
        assert_eq!(user.groups, ["a", "b"]);
        assert!(names.read(&headers(&[("x-remote-user", "eve")])).is_none());
    }

    #[test]
    fn an_identity_that_is_not_utf_8_is_ignored() {
        let mut map = HeaderMap::new();
        map.insert(
            "x-remote-user",
            HeaderValue::from_bytes(b"adm\xffin").unwrap(),
        );
        assert_eq!(IdentityHeaders::default().read(&map), None);
    }

    #[test]
    fn extra_keys_are_decoded_as_kube_apiserver_decodes_them() {
        let user = IdentityHeaders::default()
            .read(&headers(&[
                ("x-remote-user", "u"),
                ("X-Remote-Extra-Scopes", "one"),
                ("X-Remote-Extra-Scopes", "two"),
                ("x-remote-extra-acme.com%2fproject", "p"),
                ("x-remote-extra-bad%2", "kept"),
            ]))
            .unwrap();
        let expected = extra(&[
            ("acme.com/project", &["p"]),
            ("bad%2", &["kept"]),
            ("scopes", &["one", "two"]),
        ]);
        assert_eq!(user.extra, expected);
    }

    #[test]
    fn a_written_identity_is_read_back_unchanged() {
        let user = User {
            name: "system:serviceaccount:a:b".to_owned(),
            uid: "42".to_owned(),
            groups: vec!["dev".to_owned(), "üñí".to_owned()],
            extra: extra(&[
                ("authentication.kubernetes.io/pod-name", &["x", "y"]),
                ("100%", &["z"]),
                ("Upper", &["u"]),
                ("with space", &[""]),
            ]),
        };
        let names = IdentityHeaders::default();
        let mut map = HeaderMap::new();
        names.write(&mut map, &user).unwrap();
        assert_eq!(names.read(&map), Some(user));
        assert!(map.contains_key("x-remote-extra-authentication.kubernetes.io%2fpod-name"));
        assert!(map.contains_key("x-remote-extra-100%25"));
    }

    #[test]
    fn an_identity_that_headers_would_change_is_rejected() {
        for name in ["a\nb", " padded", "padded\t", "nul\0"] {
            let user = User {
                name: name.to_owned(),
                ..User::default()
            };
            assert!(
                IdentityHeaders::default().prepare(&user).is_err(),
                "{name:?}"
            );
        }
    }

    #[test]
    fn every_spelling_of_the_default_headers_is_removed() {
        let mut map = headers(&[
            ("X-Remote-User", "a"),
            ("x_remote_user", "b"),
            ("X-REMOTE_Group", "c"),
            ("x-remote-extra-x", "d"),
            ("x-remote-anything", "e"),
            ("x-remot", "kept"),
            ("authorization", "kept"),
        ]);
        IdentityHeaders::default().remove(&mut map);
        assert_eq!(map.len(), 2);
        assert_eq!(map["x-remot"], "kept");
    }

    #[test]
    fn configured_headers_are_removed_with_the_default_ones() {
        let names = IdentityHeaders {
            username: vec![HeaderName::from_static("x-user")],
            extra_prefix: vec!["x-more-".to_owned()],
            ..IdentityHeaders::default()
        };
        let mut map = headers(&[
            ("x-user", "a"),
            ("X_User", "a"),
            ("x-more-x", "b"),
            ("x_more-x", "b"),
            ("x-remote-user", "c"),
        ]);
        names.remove(&mut map);
        assert!(map.is_empty());
    }
}
