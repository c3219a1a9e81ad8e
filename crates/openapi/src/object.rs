//! JSON objects and lists whose values are not parsed.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A name and the JSON text of its value.
pub(crate) type Member<'a> = (Cow<'a, str>, &'a str);

/// Parses an object, in order. `null` is an empty object, as in Go. A duplicate name is an
/// error: parsers would disagree on which counts.
pub(crate) fn read(text: &str) -> Result<Vec<Member<'_>>, serde_json::Error> {
    let members: Members<'_> = serde_json::from_str(text)?;
    let names: BTreeSet<&str> = members.0.iter().map(|(name, _)| &**name).collect();
    if names.len() < members.0.len() {
        return Err(de::Error::custom("a duplicate name in an object"));
    }
    Ok(members.0)
}

/// Parses a list in the same way.
pub(crate) fn read_list(text: &str) -> Result<Vec<&str>, serde_json::Error> {
    // serde's own error would quote the string, and copy it into a log.
    if text.starts_with('"') {
        return Err(de::Error::custom("invalid type: string, expected a list"));
    }
    let items: Option<Vec<&RawValue>> = serde_json::from_str(text)?;
    Ok(items.into_iter().flatten().map(RawValue::get).collect())
}

/// The JSON text of a member.
pub(crate) fn get<'a>(members: &[Member<'a>], name: &str) -> Option<&'a str> {
    let found = members.iter().find(|(found, _)| found == name);
    found.map(|(_, text)| *text)
}

/// Appends a string as JSON.
pub(crate) fn write_string(text: &str, to: &mut Vec<u8>) {
    // Writing a string to memory cannot fail.
    let _ = serde_json::to_writer(to, text);
}

struct Members<'a>(Vec<Member<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((Name(name), value)) = map.next_entry::<Name<'_>, &RawValue>()? {
            members.push((name, value.get()));
        }
        Ok(Members(members))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(Members(Vec::new()))
    }

    // serde's own error would quote the string, and copy it into a log.
    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self::Value, E> {
        Err(E::custom("invalid type: string, expected an object"))
    }
}

/// A name that is copied only if it has escapes; serde's `Cow` is always copied.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Name(Cow::Borrowed(text)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Name(Cow::Owned(text.to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_verbatim() {
        let members = read(r#" {"b" : [1 ,2], "\u0061":{"c":"\u003c"} } "#).unwrap();
        let expected: [Member<'_>; 2] = [("b".into(), "[1 ,2]"), ("a".into(), r#"{"c":"\u003c"}"#)];
        assert_eq!(members, expected);
        assert!(matches!(&members[0].0, Cow::Borrowed(_)));
        assert_eq!(get(&members, "b"), Some("[1 ,2]"));
        assert_eq!(get(&members, "c"), None);
        assert!(read("null").unwrap().is_empty());
    }

    #[test]
    fn other_values_are_rejected_without_quoting_them() {
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        for text in [
            "",
            "{",
            "[]",
            "1",
            r#""secret""#,
            r#"{"secret":1,"secret":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":1} {}"#,
            r#"{"a"}"#,
            r"{1:2}",
            &deep,
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
