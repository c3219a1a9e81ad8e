//! Structured Field Values for HTTP (RFC 8941): the syntax of `Signature-Input`, `Signature`
//! and `Content-Digest`.
//!
//! The crate `sfv` parses and serializes. This module adds what it does not do: bounds on
//! the number of members, items and parameters; one encoding per byte sequence; inner lists
//! outside of a field.
//!
//! ```
//! use skewbridge_http_signature::structured::{ListEntry, parse_dictionary, serialize};
//! let digests = parse_dictionary(b"sha-256=:AQI=:,  weak;q=1").unwrap();
//! assert!(matches!(digests.get("weak"), Some(ListEntry::Item(_))));
//! assert_eq!(serialize(&digests), "sha-256=:AQI=:, weak;q=1");
//! ```

mod bounds;

use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sfv::{FieldType, ListSerializer, Parser, Version};

pub use bounds::{MAX_INNER_LIST_ITEMS, MAX_MEMBERS};
pub use sfv::{BareItem, Dictionary, Item, List, ListEntry};

use bounds::Bounds;

/// Why a field cannot be parsed. The text names what was expected and where, never the
/// content of the field.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// The syntax is wrong, or a bound is exceeded.
    #[error("not a structured field: {0}")]
    Syntax(#[from] sfv::Error),
    /// Base64 whose last character has bits that belong to no byte.
    #[error("not a structured field: base64 with unused bits that are not zero")]
    UnusedBits,
    /// The text is not one inner list.
    #[error("not an inner list")]
    NotAnInnerList,
}

/// Parses a field that is a dictionary. Several lines of it are joined by commas first.
pub fn parse_dictionary(text: &[u8]) -> Result<Dictionary, ParseError> {
    parser(text).parse_dictionary_with_visitor(Bounds::members())?;
    parse(text)
}

/// Parses a field that is a list. Several lines of it are joined by commas first.
pub fn parse_list(text: &[u8]) -> Result<List, ParseError> {
    parser(text).parse_list_with_visitor(Bounds::members())?;
    parse(text)
}

/// Parses a field that is an item.
pub fn parse_item(text: &[u8]) -> Result<Item, ParseError> {
    parser(text).parse_item_with_visitor(Bounds::inner())?;
    parse(text)
}

/// Serializes a field. A signature covers this form.
pub fn serialize(field: &impl FieldType) -> String {
    field.serialize().into().unwrap_or_default()
}

/// Serializes one member of a list or a dictionary, without its key.
pub fn serialize_member(member: &ListEntry) -> String {
    let mut list = ListSerializer::new();
    list.members([member]);
    list.finish().unwrap_or_default()
}

/// Items in parentheses, with parameters. `sfv` handles them only as members of a field;
/// RFC 9421 signs one on its own.
#[derive(Debug, Clone, PartialEq)]
pub struct InnerList(sfv::InnerList);

impl InnerList {
    /// Parses parentheses with parameters, and nothing else.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let list = parse_list(text)?;
        match <[ListEntry; 1]>::try_from(list) {
            Ok([ListEntry::InnerList(list)]) if is_trimmed(text) => Ok(Self(list)),
            _ => Err(ParseError::NotAnInnerList),
        }
    }
}

impl From<sfv::InnerList> for InnerList {
    fn from(list: sfv::InnerList) -> Self {
        Self(list)
    }
}

impl From<InnerList> for sfv::InnerList {
    fn from(list: InnerList) -> Self {
        list.0
    }
}

impl std::ops::Deref for InnerList {
    type Target = sfv::InnerList;

    fn deref(&self) -> &sfv::InnerList {
        &self.0
    }
}

impl fmt::Display for InnerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = ListSerializer::new();
        let mut inner = list.inner_list();
        inner.items(&self.items);
        inner.finish().parameters(&self.params);
        f.write_str(&list.finish().unwrap_or_default())
    }
}

/// RFC 9421 refers to RFC 8941: no dates, no display strings.
fn parser(text: &[u8]) -> Parser<'_> {
    Parser::new(text).with_version(Version::Rfc8941)
}

fn parse<T: FieldType>(text: &[u8]) -> Result<T, ParseError> {
    let field = parser(text).parse()?;
    if has_unused_bits(text) {
        return Err(ParseError::UnusedBits);
    }
    Ok(field)
}

fn is_trimmed(text: &[u8]) -> bool {
    text.trim_ascii().len() == text.len()
}

/// Padding may be missing (RFC 8941, 4.2.7); unused bits must be zero.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Whether a byte sequence of a field that `sfv` has parsed has unused bits that are not
/// zero. `sfv` ignores them; a value that is signed has to have one encoding.
fn has_unused_bits(field: &[u8]) -> bool {
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        rest = match first {
            b'"' => after_string(after),
            // Tokens may contain colons.
            b'*' | b'A'..=b'Z' | b'a'..=b'z' => {
                let end = after.iter().position(|byte| !is_token(*byte));
                &after[end.unwrap_or(after.len())..]
            }
            b':' => {
                let Some((encoded, after)) = split_once(after, b':') else {
                    return false;
                };
                if BASE64.decode(encoded).is_err() {
                    return true;
                }
                after
            }
            _ => after,
        };
    }
    false
}

fn after_string(mut text: &[u8]) -> &[u8] {
    loop {
        text = match text {
            [] => return text,
            [b'"', rest @ ..] => return rest,
            [b'\\', _, rest @ ..] | [_, rest @ ..] => rest,
        };
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == at)?;
    Some((&text[..end], &text[end + 1..]))
}

#[cfg(test)]
mod tests;
