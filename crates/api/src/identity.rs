//! The headers in which a front proxy says who a caller is.
//!
//! The rules are those of kube-apiserver's requestheader authenticator, for
//! reading, and of client-go's authenticating proxy transport, for writing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::header::InvalidHeaderValue;
use http::{HeaderMap, HeaderName, HeaderValue};

/// What every name of the usual family begins with.
const FAMILY: &str = "x-remote-";

/// The names under which an identity travels (`--requestheader-*`).
#[derive(Debug, Clone)]
pub struct IdentityHeaders {
    /// The first that is there and not empty names the user.
    pub username: Vec<HeaderName>,
    /// The first that is there and not empty is the user's uid.
    pub uid: Vec<HeaderName>,
    /// Each value of each is a group.
    pub group: Vec<HeaderName>,
    /// What the names of extra fields begin with, in lower case.
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

/// A user, as kube-apiserver knows one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// The name; never empty.
    pub name: String,
    /// Empty where there is none.
    pub uid: String,
    /// In order.
    pub groups: Vec<String>,
    /// Further facts, by key.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A user that cannot be written in headers as it is, and must not be changed.
#[derive(Debug, thiserror::Error)]
#[error("the caller's identity cannot be written in headers: {0}")]
pub struct Unwritable(String);

impl IdentityHeaders {
    /// Who these headers speak for, if for anybody. An identity that is not
    /// UTF-8 is nobody's: read loosely, it could become somebody else's.
    pub fn read(&self, headers: &HeaderMap) -> Option<User> {
        let first = |names: &[HeaderName]| {
            names
                .iter()
                .filter_map(|name| headers.get(name))
                .find(|value| !value.is_empty())
        };
        let mut user = User {
            name: text(first(&self.username)?)?,
            uid: match first(&self.uid) {
                Some(uid) => text(uid)?,
                None => String::new(),
            },
            ..User::default()
        };
        for name in &self.group {
            for value in headers.get_all(name).iter().filter(|it| !it.is_empty()) {
                user.groups.push(text(value)?);
            }
        }
        for name in headers.keys() {
            let Some(encoded) = self.extra_key(name) else {
                continue;
            };
            let values = user.extra.entry(unescape(encoded)?).or_default();
            for value in headers.get_all(name) {
                values.push(text(value)?);
            }
        }
        Some(user)
    }

    /// The key of an extra field, still encoded.
    fn extra_key<'a>(&self, name: &'a HeaderName) -> Option<&'a str> {
        self.extra_prefix
            .iter()
            .find_map(|prefix| name.as_str().strip_prefix(prefix.as_str()))
    }

    /// Removes everything that could be taken for an identity: the configured
    /// names, and the usual family, since what is behind us may believe that
    /// one too; both in any spelling.
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
        begins_with(name, FAMILY)
            || configured.any(|it| same_name(name, it.as_str()))
            || self
                .extra_prefix
                .iter()
                .any(|prefix| begins_with(name, prefix))
    }

    /// Says who the caller is. Whatever was said before has to be removed
    /// first.
    pub fn write(&self, headers: &mut HeaderMap, user: &User) -> Result<(), Unwritable> {
        self.prepare(user)?.apply(headers);
        Ok(())
    }

    /// The same headers, ready to be written many times.
    pub fn prepare(&self, user: &User) -> Result<PreparedIdentity, Unwritable> {
        let mut fields = Vec::with_capacity(user.groups.len() + user.extra.len() + 2);
        let mut add = |name: &HeaderName, text: &str| -> Result<(), Unwritable> {
            let value = value(text).map_err(|_| Unwritable(format!("{name}: {text:?}")))?;
            fields.push((name.clone(), value));
            Ok(())
        };
        let missing = |what: &str| Unwritable(format!("no header is configured for the {what}"));
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
                let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Unwritable(name))?;
                for text in values {
                    add(&name, text)?;
                }
            }
        }
        Ok(PreparedIdentity(fields))
    }
}

/// An identity as headers.
#[derive(Debug, Clone)]
pub struct PreparedIdentity(Vec<(HeaderName, HeaderValue)>);

impl PreparedIdentity {
    /// Adds them.
    pub fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.append(name, value.clone());
        }
    }
}

/// Whether two names are the same to a server that takes `_` for `-`.
pub(crate) fn same_name(name: &str, other: &str) -> bool {
    name.len() == other.len() && begins_with(name, other)
}

/// Whether a name begins so to a server that takes `_` for `-`.
pub(crate) fn begins_with(name: &str, prefix: &str) -> bool {
    let dash = |byte: u8| byte == b'-' || byte == b'_';
    name.len() >= prefix.len()
        && name
            .bytes()
            .zip(prefix.bytes())
            .all(|(byte, expected)| byte == expected || (dash(byte) && dash(expected)))
}

fn text(value: &HeaderValue) -> Option<String> {
    std::str::from_utf8(value.as_bytes())
        .ok()
        .map(str::to_owned)
}

fn value(text: &str) -> Result<HeaderValue, InvalidHeaderValue> {
    // Go trims values when it reads them: an identity that would come out
    // different is refused.
    if text.trim_matches([' ', '\t']) != text {
        return HeaderValue::from_bytes(b"\n");
    }
    HeaderValue::from_bytes(text.as_bytes())
}

/// client-go's `headerKeyEscape`: every byte that is no token byte (RFC 9110,
/// 5.6.2), and `%`, as `%XX`. Upper-case letters too, which a header's name
/// would not keep.
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
            // Writing to a String does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    Cow::Owned(escaped)
}

/// Go's `url.PathUnescape`; a key with a broken escape is kept as it is.
fn unescape(key: &str) -> Option<String> {
    if !key.contains('%') || !escapes_are_whole(key.as_bytes()) {
        return Some(key.to_owned());
    }
    let decoded = percent_encoding::percent_decode_str(key).decode_utf8();
    decoded.map(Cow::into_owned).ok()
}

/// Whether every `%` is followed by two hexadecimal digits.
pub(crate) fn escapes_are_whole(text: &[u8]) -> bool {
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
    fn names_are_tried_in_order_and_empty_ones_passed_over() {
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
    fn an_identity_that_is_not_utf_8_is_nobodys() {
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
    fn what_is_written_is_read_again() {
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
    fn an_identity_that_would_change_on_the_way_is_refused() {
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
    fn every_spelling_of_the_family_is_removed() {
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
    fn configured_names_are_removed_with_the_family() {
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
