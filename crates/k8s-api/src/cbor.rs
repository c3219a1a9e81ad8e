//! CBOR as Kubernetes encodes it (RFC 8949): with the self-described tag, strings as byte
//! strings, map keys sorted by length and then by bytes.

use serde_json::Value;

/// The self-described CBOR tag (RFC 8949, 3.4.6).
const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// Major types (RFC 8949, 3.1).
const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;

/// Encodes an object.
pub fn write(object: &Value) -> Vec<u8> {
    let mut out = SELF_DESCRIBED.to_vec();
    item(&mut out, object);
    out
}

fn item(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(no) if !no => out.push(0xf4),
        Value::Bool(_) => out.push(0xf5),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => head(out, UNSIGNED, number),
            // -1 is encoded as 0, -2 as 1, and so on.
            (None, Some(negative)) => head(out, NEGATIVE, !negative.cast_unsigned()),
            (None, None) => {
                out.push(0xfb);
                let float = number.as_f64().unwrap_or_default();
                out.extend_from_slice(&float.to_be_bytes());
            }
        },
        Value::String(text) => bytes(out, text),
        Value::Array(items) => {
            head(out, ARRAY, items.len() as u64);
            for value in items {
                item(out, value);
            }
        }
        Value::Object(fields) => {
            head(out, MAP, fields.len() as u64);
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| (key.len(), *key));
            for (key, value) in fields {
                bytes(out, key);
                item(out, value);
            }
        }
    }
}

fn bytes(out: &mut Vec<u8>, text: &str) {
    head(out, BYTES, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Writes the type of an item with an argument in its shortest form (RFC 8949, 3).
fn head(out: &mut Vec<u8>, major: u8, value: u64) {
    let major = major << 5;
    if let Ok(byte) = u8::try_from(value) {
        match byte {
            0..=23 => out.push(major | byte),
            _ => out.extend_from_slice(&[major | 0x18, byte]),
        }
    } else if let Ok(short) = u16::try_from(value) {
        out.push(major | 0x19);
        out.extend_from_slice(&short.to_be_bytes());
    } else if let Ok(word) = u32::try_from(value) {
        out.push(major | 0x1a);
        out.extend_from_slice(&word.to_be_bytes());
    } else {
        out.push(major | 0x1b);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// The bytes are not an object in CBOR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an object in the CBOR encoding of Kubernetes")]
pub struct DecodeError;

/// More nesting than any API object has.
const MAX_DEPTH: usize = 64;

/// Decodes an object from a server: definite-length items, strings as byte strings or text
/// strings.
pub fn read(bytes: &[u8]) -> Result<Value, DecodeError> {
    let mut rest = bytes.strip_prefix(&SELF_DESCRIBED).ok_or(DecodeError)?;
    let value = take_item(&mut rest, MAX_DEPTH)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(DecodeError)
    }
}

fn take_item(rest: &mut &[u8], depth: usize) -> Result<Value, DecodeError> {
    let depth = depth.checked_sub(1).ok_or(DecodeError)?;
    let first = take(rest, 1)?[0];
    match first {
        0xf4 => return Ok(Value::Bool(false)),
        0xf5 => return Ok(Value::Bool(true)),
        0xf6 => return Ok(Value::Null),
        0xfb => {
            let bytes = take(rest, 8)?.try_into().map_err(|_| DecodeError)?;
            return Ok(f64::from_be_bytes(bytes).into());
        }
        _ => {}
    }
    let argument = match first & 0x1f {
        small @ 0..=23 => u64::from(small),
        size @ 24..=27 => {
            let bytes = take(rest, 1 << (size - 24))?;
            (bytes.iter()).fold(0, |value, byte| value << 8 | u64::from(*byte))
        }
        _ => return Err(DecodeError),
    };
    let length = || usize::try_from(argument).map_err(|_| DecodeError);
    match first >> 5 {
        UNSIGNED => Ok(argument.into()),
        NEGATIVE => {
            let value = i64::try_from(argument).map_err(|_| DecodeError)?;
            Ok((!value).into())
        }
        BYTES | TEXT => take_text(rest, length()?).map(Value::String),
        ARRAY => {
            let items = (0..argument).map(|_| take_item(rest, depth));
            items.collect::<Result<_, _>>().map(Value::Array)
        }
        MAP => {
            let fields = (0..argument).map(|_| {
                let Value::String(key) = take_item(rest, depth)? else {
                    return Err(DecodeError);
                };
                Ok((key, take_item(rest, depth)?))
            });
            fields.collect::<Result<_, _>>().map(Value::Object)
        }
        _ => Err(DecodeError),
    }
}

fn take_text(rest: &mut &[u8], length: usize) -> Result<String, DecodeError> {
    let bytes = take(rest, length)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], DecodeError> {
    let (taken, after) = rest.split_at_checked(length).ok_or(DecodeError)?;
    *rest = after;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Examples of RFC 8949, appendix A, except that strings are byte strings.
    #[test]
    fn items_are_encoded_as_in_the_rfc() {
        let rows: &[(Value, &[u8])] = &[
            (json!(0), &[0x00]),
            (json!(23), &[0x17]),
            (json!(24), &[0x18, 0x18]),
            (json!(1000), &[0x19, 0x03, 0xe8]),
            (json!(1_000_000), &[0x1a, 0x00, 0x0f, 0x42, 0x40]),
            (
                json!(1_000_000_000_000_u64),
                &[0x1b, 0x00, 0x00, 0x00, 0xe8, 0xd4, 0xa5, 0x10, 0x00],
            ),
            (json!(-1), &[0x20]),
            (json!(-100), &[0x38, 0x63]),
            (
                json!(1.1),
                &[0xfb, 0x3f, 0xf1, 0x99, 0x99, 0x99, 0x99, 0x99, 0x9a],
            ),
            (json!(false), &[0xf4]),
            (json!(true), &[0xf5]),
            (json!(null), &[0xf6]),
            (json!("a"), &[0x41, 0x61]),
            (json!([1, [2]]), &[0x82, 0x01, 0x81, 0x02]),
            (
                json!({"bb": 1, "c": 2, "a": {}}),
                &[
                    0xa3, 0x41, 0x61, 0xa0, 0x41, 0x63, 0x02, 0x42, 0x62, 0x62, 0x01,
                ],
            ),
        ];
        for (value, expected) in rows {
            let written = write(value);
            assert_eq!(written[..3], SELF_DESCRIBED);
            assert_eq!(&written[3..], *expected, "{value}");
            assert_eq!(read(&written), Ok(value.clone()), "{value}");
        }
    }

    #[test]
    fn invalid_objects_are_rejected() {
        let nested = [SELF_DESCRIBED.as_slice(), &vec![0x81; 100_000]].concat();
        let rows: &[&[u8]] = &[
            b"",
            b"\x00",
            b"\xd9\xd9\xf7",
            b"\xd9\xd9\xf7\x00\x00",
            b"\xd9\xd9\xf7\x42a",
            b"\xd9\xd9\xf7\x41\xff",
            b"\xd9\xd9\xf7\x5b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xd9\xd9\xf7\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\xd9\xd9\xf7\xa1\x00\x00",
            b"\xd9\xd9\xf7\x5f\x41a\xff",
            b"\xd9\xd9\xf7\xc0\x00",
            &nested,
        ];
        for bytes in rows {
            assert_eq!(
                read(bytes),
                Err(DecodeError),
                "{:?}",
                &bytes[..bytes.len().min(9)]
            );
        }
    }
}
