//! CBOR as Kubernetes writes it (RFC 8949): the self-described tag before it,
//! strings as byte strings, the keys of a map by length and then by their bytes.

use serde_json::Value;

/// The tag that says of itself that this is CBOR (RFC 8949, 3.4.6).
const SELF_DESCRIBED: [u8; 3] = [0xd9, 0xd9, 0xf7];

/// Major types (RFC 8949, 3.1).
const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const ARRAY: u8 = 4;
const MAP: u8 = 5;

/// Writes an object.
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
            // -1 is 0, -2 is 1, and so on.
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

/// The type of an item, and a number in the shortest form (RFC 8949, 3).
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Rows of RFC 8949, appendix A, but for strings, which are byte strings here.
    #[test]
    fn items_are_written_as_the_rfc_has_them() {
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
        }
    }
}
