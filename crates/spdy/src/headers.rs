//! The headers of a stream, and the block of names and values that encodes them.

use bytes::{Buf as _, BufMut as _};

/// Separates the values of one name.
const SEPARATOR: u8 = 0;

/// The most names in a block. Kubernetes sends at most four.
pub const MAX_HEADERS: usize = 128;

/// Names and values, in wire order.
///
/// Names are stored in lower case, as they are sent. A name may have several values, which are
/// encoded as one with NUL between them.
///
/// moby/spdystream closes a connection on which it receives `connection`, `host`,
/// `keep-alive`, `proxy-connection` or `transfer-encoding`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(Vec<(String, Vec<u8>)>);

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a value to a name.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.append(name, value);
        self
    }

    /// Adds a value to a name.
    pub fn append(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let name = name.to_ascii_lowercase();
        let value = value.as_ref();
        if let Some((_, values)) = self.0.iter_mut().find(|(known, _)| *known == name) {
            values.push(SEPARATOR);
            values.extend_from_slice(value);
        } else {
            self.0.push((name, value.to_vec()));
        }
    }

    /// The first value of a name, if it is UTF-8.
    pub fn get(&self, name: &str) -> Option<&str> {
        let first = self.get_all(name).next()?;
        std::str::from_utf8(first).ok()
    }

    /// All values of a name.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0
            .iter()
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name))
            .flat_map(|(_, values)| values.split(|byte| *byte == SEPARATOR))
    }

    /// Each name with each of its values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().flat_map(|(name, values)| {
            let values = values.split(|byte| *byte == SEPARATOR);
            values.map(|value| (name.as_str(), value))
        })
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The size of the encoded block.
    pub(crate) fn block_bytes(&self) -> usize {
        let fields = self.0.iter();
        4 + fields.map(|(n, v)| 8 + n.len() + v.len()).sum::<usize>()
    }

    pub(crate) fn encode(&self, block: &mut Vec<u8>) {
        put_length(block, self.0.len());
        for (name, values) in &self.0 {
            put_length(block, name.len());
            block.put_slice(name.as_bytes());
            put_length(block, values.len());
            block.put_slice(values);
        }
    }

    /// At least as lenient as moby/spdystream: no name is required, upper case is converted to
    /// lower case, and a repeated name has both values.
    pub(crate) fn parse(mut block: &[u8]) -> Result<Self, &'static str> {
        let count = take_length(&mut block)?;
        if count > MAX_HEADERS {
            return Err("too many headers");
        }
        let mut headers = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let name = take_field(&mut block)?;
            let name = std::str::from_utf8(name).map_err(|_| "a header's name is not text")?;
            headers.append(name, take_field(&mut block)?);
        }
        if block.is_empty() {
            Ok(headers)
        } else {
            Err("bytes after the last header")
        }
    }
}

fn put_length(block: &mut Vec<u8>, length: usize) {
    block.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn take_length(block: &mut &[u8]) -> Result<usize, &'static str> {
    let length = block
        .try_get_u32()
        .map_err(|_| "the headers are truncated")?;
    usize::try_from(length).map_err(|_| "a header that is too long")
}

fn take_field<'block>(block: &mut &'block [u8]) -> Result<&'block [u8], &'static str> {
    let length = take_length(block)?;
    block.split_off(..length).ok_or("the headers are truncated")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_case_insensitive_and_may_have_many_values() {
        let headers = Headers::new()
            .with("streamType", "stdin")
            .with("Port", "80")
            .with("port", "81");
        assert_eq!(headers.get("STREAMTYPE"), Some("stdin"));
        assert_eq!(headers.len(), 2);
        let ports: Vec<_> = headers.get_all("port").collect();
        assert_eq!(ports, [b"80", b"81"]);
        assert_eq!(headers.iter().count(), 3);
        let mut block = Vec::new();
        headers.encode(&mut block);
        assert_eq!(block.len(), headers.block_bytes());
        assert_eq!(Headers::parse(&block), Ok(headers));
    }

    #[test]
    fn blocks_are_parsed_leniently() {
        let block = b"\0\0\0\x02\0\0\0\x01A\0\0\0\x01x\0\0\0\x01a\0\0\0\0";
        let headers = Headers::parse(block).unwrap();
        assert_eq!(headers, Headers::new().with("a", "x").with("a", ""));
        assert_eq!(Headers::parse(b"\0\0\0\0"), Ok(Headers::new()));
    }

    #[test]
    fn malformed_blocks_are_rejected() {
        for block in [
            &b""[..],
            b"\0\0\0",
            b"\0\0\0\x01",
            b"\0\0\0\x01\xff\xff\xff\xff",
            b"\0\0\0\x01\0\0\0\x02a",
            b"\0\0\0\x01\0\0\0\x01a\0\0\0\x02b",
            b"\0\0\0\x01\0\0\0\x01\xff\0\0\0\0",
            b"\0\0\0\0x",
            b"\xff\xff\xff\xff",
        ] {
            assert!(Headers::parse(block).is_err(), "{block:?}");
        }
    }
}
