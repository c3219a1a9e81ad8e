//! Writing: RFC 8941, 4.1. What was read can be written; what was put together
//! by hand is checked first.

use std::fmt::{self, Display, Formatter};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::parse::{is_key, is_token};
use super::{BareItem, Dictionary, InnerList, Item, List, Member, Parameters};

/// A value that the syntax has no form for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} cannot be written in a structured field")]
pub struct Unwritable(&'static str);

/// The largest magnitude of an integer: fifteen digits.
const MAX_INTEGER: i64 = 999_999_999_999_999;

/// Twelve digits and three: the same number of thousandths.
const MAX_DECIMAL: i64 = MAX_INTEGER;

impl BareItem {
    fn check(&self) -> Result<(), Unwritable> {
        let (good, what) = match self {
            Self::Integer(number) => (
                (-MAX_INTEGER..=MAX_INTEGER).contains(number),
                "an integer of more than fifteen digits",
            ),
            Self::Decimal(thousandths) => (
                (-MAX_DECIMAL..=MAX_DECIMAL).contains(thousandths),
                "a decimal of more than twelve digits before the point",
            ),
            Self::String(text) => (
                text.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
                "a string that is not printable ASCII",
            ),
            Self::Token(text) => (
                text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '*')
                    && text.bytes().all(is_token),
                "a token with other bytes than a token's",
            ),
            Self::Bytes(_) | Self::Boolean(_) => (true, ""),
        };
        if good { Ok(()) } else { Err(Unwritable(what)) }
    }
}

fn check_key(key: &str) -> Result<(), Unwritable> {
    let good = key.starts_with(|first: char| first.is_ascii_lowercase() || first == '*')
        && key.bytes().all(is_key);
    if good {
        Ok(())
    } else {
        Err(Unwritable("a key that is not lower-case ASCII"))
    }
}

impl Parameters {
    fn check(&self) -> Result<(), Unwritable> {
        self.iter().try_for_each(|(key, value)| {
            check_key(key)?;
            value.check()
        })
    }
}

impl Item {
    /// Whether it can be written.
    pub fn check(&self) -> Result<(), Unwritable> {
        self.value.check()?;
        self.parameters.check()
    }
}

impl InnerList {
    /// Whether it can be written.
    pub fn check(&self) -> Result<(), Unwritable> {
        self.items.iter().try_for_each(Item::check)?;
        self.parameters.check()
    }
}

impl Member {
    /// Whether it can be written.
    pub fn check(&self) -> Result<(), Unwritable> {
        match self {
            Self::Item(item) => item.check(),
            Self::InnerList(list) => list.check(),
        }
    }
}

impl Dictionary {
    /// Whether it can be written.
    pub fn check(&self) -> Result<(), Unwritable> {
        self.iter().try_for_each(|(key, member)| {
            check_key(key)?;
            member.check()
        })
    }
}

impl Display for BareItem {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            Self::Decimal(thousandths) => {
                let sign = if *thousandths < 0 { "-" } else { "" };
                let (whole, fraction) = (thousandths.abs() / 1000, thousandths.abs() % 1000);
                let digits = format!("{fraction:03}");
                let digits = digits.trim_end_matches('0');
                let digits = if digits.is_empty() { "0" } else { digits };
                write!(f, "{sign}{whole}.{digits}")
            }
            Self::String(text) => {
                f.write_str("\"")?;
                for part in text.split_inclusive(['"', '\\']) {
                    match part.strip_suffix(['"', '\\']) {
                        Some(before) => write!(f, "{before}\\{}", &part[before.len()..])?,
                        None => f.write_str(part)?,
                    }
                }
                f.write_str("\"")
            }
            Self::Token(text) => f.write_str(text),
            Self::Bytes(bytes) => write!(f, ":{}:", STANDARD.encode(bytes)),
            Self::Boolean(yes) => f.write_str(if *yes { "?1" } else { "?0" }),
        }
    }
}

impl Display for Parameters {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (key, value) in self.iter() {
            match value {
                BareItem::Boolean(true) => write!(f, ";{key}")?,
                value => write!(f, ";{key}={value}")?,
            }
        }
        Ok(())
    }
}

impl Display for Item {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.value, self.parameters)
    }
}

impl Display for InnerList {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (at, item) in self.items.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{item}")?;
        }
        write!(f, "){}", self.parameters)
    }
}

impl Display for Member {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Item(item) => item.fmt(f),
            Self::InnerList(list) => list.fmt(f),
        }
    }
}

impl Display for List {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, member) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{member}")?;
        }
        Ok(())
    }
}

impl Display for Dictionary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (at, (key, member)) in self.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match member {
                Member::Item(Item {
                    value: BareItem::Boolean(true),
                    parameters,
                }) => write!(f, "{comma}{key}{parameters}")?,
                member => write!(f, "{comma}{key}={member}")?,
            }
        }
        Ok(())
    }
}
