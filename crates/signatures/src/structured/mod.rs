//! Structured Field Values for HTTP (RFC 8941): what `Signature-Input`,
//! `Signature` and `Content-Digest` are written in.
//!
//! Only what has one reading is read, and what is written is the one form that
//! the RFC's serialisation gives: a signature covers that form.
//!
//! ```
//! use skewbridge_signatures::structured::{Dictionary, Member};
//! let digests = Dictionary::parse(b"sha-256=:AQI=:,  weak;q=1").unwrap();
//! assert!(matches!(digests.get("weak"), Some(Member::Item(_))));
//! assert_eq!(digests.to_string(), "sha-256=:AQI=:, weak;q=1");
//! ```

mod parse;
mod serialize;

pub use parse::ParseError;
pub use serialize::Unwritable;

/// Members of a list or a dictionary: what the RFC asks every reader to take
/// (RFC 8941, 3.1 and 3.2), and no more.
pub const MAX_MEMBERS: usize = 1024;

/// Items of an inner list, and parameters of anything, likewise.
pub const MAX_INNER: usize = 256;

/// A value without parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BareItem {
    /// Fifteen digits at most.
    Integer(i64),
    /// In thousandths: three digits after the point at most.
    Decimal(i64),
    /// Printable ASCII.
    String(String),
    /// A word.
    Token(String),
    /// Any bytes.
    Bytes(Vec<u8>),
    /// Yes or no.
    Boolean(bool),
}

/// Parameters in their order, each key once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters(Vec<(String, BareItem)>);

/// A value with parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The value.
    pub value: BareItem,
    /// What is said of it.
    pub parameters: Parameters,
}

/// Items in parentheses, with parameters of their own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InnerList {
    /// In order.
    pub items: Vec<Item>,
    /// What is said of the list.
    pub parameters: Parameters,
}

/// A member of a list or of a dictionary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// A value.
    Item(Item),
    /// Several.
    InnerList(InnerList),
}

/// A field that is a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List(pub Vec<Member>);

/// A field that is a dictionary: members in their order, each key once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dictionary(Vec<(String, Member)>);

impl Parameters {
    /// The one of this key.
    pub fn get(&self, key: &str) -> Option<&BareItem> {
        self.0.iter().find(|it| it.0 == key).map(|it| &it.1)
    }

    /// Sets one; a key that is there already keeps its place (RFC 8941, 4.2.3.2).
    pub fn set(&mut self, key: impl Into<String>, value: BareItem) {
        set(&mut self.0, key.into(), value);
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &BareItem)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Dictionary {
    /// The member of this key.
    pub fn get(&self, key: &str) -> Option<&Member> {
        self.0.iter().find(|it| it.0 == key).map(|it| &it.1)
    }

    /// Sets one; a key that is there already keeps its place.
    pub fn set(&mut self, key: impl Into<String>, member: Member) {
        set(&mut self.0, key.into(), member);
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Member)> {
        self.0.iter().map(|(key, member)| (key.as_str(), member))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Item {
    /// A value without parameters.
    pub fn new(value: BareItem) -> Self {
        Self {
            value,
            parameters: Parameters::default(),
        }
    }
}

fn set<T>(pairs: &mut Vec<(String, T)>, key: String, value: T) {
    match pairs.iter_mut().find(|it| it.0 == key) {
        Some(pair) => pair.1 = value,
        None => pairs.push((key, value)),
    }
}

#[cfg(test)]
mod tests;
