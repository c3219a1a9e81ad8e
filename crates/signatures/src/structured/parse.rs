//! Reading: RFC 8941, 4.2.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use super::{BareItem, Dictionary, InnerList, Item, List, MAX_INNER, MAX_MEMBERS, Member};
use super::{Parameters, set};

/// Why a field has no reading. Names what was expected and where, never what was
/// there instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no structured field: {expected} expected at byte {at}")]
pub struct ParseError {
    expected: &'static str,
    at: usize,
}

/// Padding may be missing (4.2.7 asks readers to be lenient there and to refuse
/// nothing else that decodes); bits that no encoder leaves behind are refused, so
/// that one value has one encoding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Digits of an integer, and of a decimal with its point (4.2.4).
const MAX_INTEGER: usize = 15;
const MAX_DECIMAL: usize = 16;
const MAX_WHOLE: usize = 12;

impl List {
    /// Reads a field; several lines of it are joined by commas first.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(text);
        let mut members = Vec::new();
        reader.members(|reader| {
            if members.len() == MAX_MEMBERS {
                return Err(reader.expected("an end of the list"));
            }
            members.push(reader.member()?);
            Ok(())
        })?;
        Ok(Self(members))
    }
}

impl Dictionary {
    /// Reads a field; several lines of it are joined by commas first.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(text);
        let mut members = Vec::new();
        reader.members(|reader| {
            if members.len() == MAX_MEMBERS {
                return Err(reader.expected("an end of the dictionary"));
            }
            let key = reader.key()?;
            let member = if reader.take(b'=') {
                reader.member()?
            } else {
                Member::Item(Item {
                    value: BareItem::Boolean(true),
                    parameters: reader.parameters()?,
                })
            };
            set(&mut members, key, member);
            Ok(())
        })?;
        Ok(Self(members))
    }
}

impl Item {
    /// Reads a field.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(text);
        reader.skip(b" ");
        let item = reader.item()?;
        reader.skip(b" ");
        reader.end()?;
        Ok(item)
    }
}

impl InnerList {
    /// Reads parentheses with parameters, and nothing else.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let mut reader = Reader::new(text);
        let list = reader.inner_list()?;
        reader.end()?;
        Ok(list)
    }
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    fn expected(&self, expected: &'static str) -> ParseError {
        ParseError {
            expected,
            at: self.at,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn skip(&mut self, bytes: &[u8]) {
        self.run(|byte| bytes.contains(&byte));
    }

    /// As many bytes as are of a kind.
    fn run(&mut self, kind: impl Fn(u8) -> bool) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|it| !kind(*it));
        let run = &rest[..length.unwrap_or(rest.len())];
        self.at += run.len();
        run
    }

    fn end(&self) -> Result<(), ParseError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end")),
        }
    }

    /// Members between commas, each read by `one`.
    fn members(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<(), ParseError>,
    ) -> Result<(), ParseError> {
        self.skip(b" ");
        if self.peek().is_none() {
            return Ok(());
        }
        loop {
            one(self)?;
            self.skip(b" \t");
            if self.peek().is_none() {
                return Ok(());
            }
            if !self.take(b',') {
                return Err(self.expected("a comma"));
            }
            self.skip(b" \t");
            if self.peek().is_none() {
                return Err(self.expected("a member"));
            }
        }
    }

    fn member(&mut self) -> Result<Member, ParseError> {
        if self.peek() == Some(b'(') {
            self.inner_list().map(Member::InnerList)
        } else {
            self.item().map(Member::Item)
        }
    }

    fn inner_list(&mut self) -> Result<InnerList, ParseError> {
        if !self.take(b'(') {
            return Err(self.expected("a parenthesis"));
        }
        let mut items = Vec::new();
        loop {
            self.skip(b" ");
            if self.take(b')') {
                let parameters = self.parameters()?;
                return Ok(InnerList { items, parameters });
            }
            if items.len() == MAX_INNER {
                return Err(self.expected("an end of the inner list"));
            }
            items.push(self.item()?);
            if !matches!(self.peek(), Some(b' ' | b')')) {
                return Err(self.expected("a space or a parenthesis"));
            }
        }
    }

    fn item(&mut self) -> Result<Item, ParseError> {
        Ok(Item {
            value: self.bare_item()?,
            parameters: self.parameters()?,
        })
    }

    fn parameters(&mut self) -> Result<Parameters, ParseError> {
        let mut parameters = Parameters::default();
        while self.take(b';') {
            self.skip(b" ");
            let key = self.key()?;
            let value = if self.take(b'=') {
                self.bare_item()?
            } else {
                BareItem::Boolean(true)
            };
            if parameters.len() == MAX_INNER {
                return Err(self.expected("an end of the parameters"));
            }
            parameters.set(key, value);
        }
        Ok(parameters)
    }

    fn key(&mut self) -> Result<String, ParseError> {
        match self.peek() {
            Some(b'a'..=b'z' | b'*') => Ok(text(self.run(is_key))),
            _ => Err(self.expected("a key")),
        }
    }

    fn bare_item(&mut self) -> Result<BareItem, ParseError> {
        match self.peek() {
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b'"') => self.string(),
            Some(b':') => self.bytes(),
            Some(b'?') => self.boolean(),
            Some(b'*' | b'A'..=b'Z' | b'a'..=b'z') => Ok(BareItem::Token(text(self.run(is_token)))),
            _ => Err(self.expected("a value")),
        }
    }

    fn number(&mut self) -> Result<BareItem, ParseError> {
        let sign = if self.take(b'-') { -1 } else { 1 };
        let start = self.at;
        let whole = self.run(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > MAX_INTEGER {
            return Err(self.expected("fifteen digits at most"));
        }
        if self.peek() != Some(b'.') {
            return Ok(BareItem::Integer(sign * number(whole)));
        }
        if whole.len() > MAX_WHOLE {
            return Err(self.expected("twelve digits at most before the point"));
        }
        self.at += 1;
        let fraction = self.run(|byte| byte.is_ascii_digit());
        if !(1..=3).contains(&fraction.len()) || self.at - start > MAX_DECIMAL {
            return Err(self.expected("one to three digits after the point"));
        }
        let scale = [100, 10, 1][fraction.len() - 1];
        let thousandths = number(whole) * 1000 + number(fraction) * scale;
        Ok(BareItem::Decimal(sign * thousandths))
    }

    fn string(&mut self) -> Result<BareItem, ParseError> {
        self.at += 1;
        let mut string = String::new();
        loop {
            let run =
                self.run(|byte| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\');
            string.push_str(&text(run));
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(BareItem::String(string));
                }
                Some(b'\\') => {
                    self.at += 1;
                    let Some(escaped @ (b'"' | b'\\')) = self.peek() else {
                        return Err(self.expected("a quote or a backslash"));
                    };
                    self.at += 1;
                    string.push(char::from(escaped));
                }
                _ => return Err(self.expected("printable ASCII and a closing quote")),
            }
        }
    }

    fn bytes(&mut self) -> Result<BareItem, ParseError> {
        self.at += 1;
        let encoded =
            self.run(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
        let decoded = BASE64.decode(encoded);
        match (decoded, self.take(b':')) {
            (Ok(bytes), true) => Ok(BareItem::Bytes(bytes)),
            _ => Err(self.expected("base64 and a closing colon")),
        }
    }

    fn boolean(&mut self) -> Result<BareItem, ParseError> {
        self.at += 1;
        if self.take(b'1') {
            Ok(BareItem::Boolean(true))
        } else if self.take(b'0') {
            Ok(BareItem::Boolean(false))
        } else {
            Err(self.expected("0 or 1"))
        }
    }
}

pub(super) fn is_key(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.' | b'*')
}

pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

/// Of digits that are few enough.
fn number(digits: &[u8]) -> i64 {
    digits
        .iter()
        .fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// Of ASCII, which each caller has seen to.
fn text(ascii: &[u8]) -> String {
    ascii.iter().map(|byte| char::from(*byte)).collect()
}
