//! Whether a server has dropped fields of an object in protobuf, whose fields have numbers and no names.
//!
//! The bridge does not know which number a field has, so it compares a request with the result of its dry
//! run: a field of the request that the result does not have has been dropped.

use std::collections::BTreeMap;

use skewbridge_k8s_api::protobuf::{Field, Fields};

use super::precondition::object_in_envelope;

/// The number of `metadata`, which servers change, in every object.
const METADATA: u64 = 1;

/// The number of `status`, which only writes to its subresource change, in the objects that have one.
const STATUS: u64 = 3;

/// Messages within messages that are compared. Built-in kinds have fewer.
const MAX_DEPTH: usize = 40;

/// Whether the result of a write lacks a field of the object in its body. Empty values do not count: most
/// encoders write them. `None` if one of both is not a plain object in protobuf, or if it is not known what a
/// write to the subresource changes.
pub(super) fn has_dropped(request: &[u8], result: &[u8], subresource: &str) -> Option<bool> {
    let (request, result) = (object_in_envelope(request)?, object_in_envelope(result)?);
    let is_written = |number: u64| match subresource {
        "" => Some(number != METADATA && number != STATUS),
        "status" => Some(number == STATUS),
        _ => None,
    };
    is_written(METADATA)?;
    let mut request = contents(&[request])?;
    request.retain(|number, _| is_written(*number) == Some(true));
    Some(lacks(&request, &contents(&[result])?, MAX_DEPTH))
}

/// The values of each field of messages, by number: those of lists, and of the lists of all items.
type Contents<'a> = BTreeMap<u64, Vec<&'a [u8]>>;

/// The fields of messages that are not empty. `None` if one is not a message, but a text.
fn contents<'a>(messages: &[&'a [u8]]) -> Option<Contents<'a>> {
    let mut contents = Contents::new();
    for message in messages {
        for field in Fields::of(message) {
            match field.ok()? {
                Field::Bytes(_, []) | Field::Number(_, 0) => {}
                Field::Bytes(number, value) => contents.entry(number).or_default().push(value),
                Field::Number(number, _) | Field::Other(number) => {
                    contents.entry(number).or_default();
                }
            }
        }
    }
    Some(contents)
}

/// Whether a field of the request is missing in the result, at any depth. Items of lists are compared
/// together, because a webhook may add some.
fn lacks(request: &Contents<'_>, result: &Contents<'_>, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    request.iter().any(|(number, values)| {
        let Some(results) = result.get(number) else {
            return true;
        };
        // What is equal lacks nothing.
        let changed = values.iter().filter(|it| !results.contains(it));
        let changed: Vec<_> = changed.copied().collect();
        match (contents(&changed), contents(results)) {
            (Some(request), Some(result)) => lacks(&request, &result, depth),
            // These are texts.
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use skewbridge_k8s_api::protobuf::{Writer, envelope};

    use super::*;

    fn object(spec: Writer, status: Writer) -> Vec<u8> {
        let metadata = Writer::default().text(1, "name").text(6, "7");
        let object = Writer::default().message(1, metadata);
        envelope("v1", "Pod", object.message(2, spec).message(3, status))
    }

    fn text(value: &str) -> Writer {
        Writer::default().text(1, value)
    }

    #[test]
    fn a_field_of_the_request_that_the_result_lacks_was_dropped() {
        let spec = |spec: Writer| object(spec, Writer::default());
        let none = Writer::default;
        let rows = [
            (spec(text("a")), spec(text("a")), false),
            // The server has added a field, and changed one.
            (spec(text("a")), spec(text("b").number(9, 1)), false),
            (spec(text("a").number(43, 1)), spec(text("a")), true),
            (spec(text("a").text(43, "x")), spec(text("a")), true),
            (
                spec(text("a").message(43, text("x"))),
                spec(text("a")),
                true,
            ),
            // Empty values are none.
            (
                spec(text("a").text(43, "").number(44, 0)),
                spec(text("a")),
                false,
            ),
            // In a message, and in an item of a list beside one that a webhook has added.
            (
                spec(none().message(2, text("a").text(43, "x"))),
                spec(none().message(2, text("a"))),
                true,
            ),
            (
                spec(none().message(2, text("a").text(3, "x"))),
                spec(
                    none()
                        .message(2, text("added"))
                        .message(2, text("a").text(3, "x")),
                ),
                false,
            ),
            (
                spec(none().message(2, text("a").text(43, "x"))),
                spec(none().message(2, text("added")).message(2, text("a"))),
                true,
            ),
            // The whole spec.
            (spec(text("a")), spec(none()), true),
            // A status is not written.
            (
                object(text("a"), text("b")),
                object(text("a"), none()),
                false,
            ),
        ];
        for (number, (request, result, expected)) in rows.into_iter().enumerate() {
            assert_eq!(
                has_dropped(&request, &result, ""),
                Some(expected),
                "{number}"
            );
        }
        let (with, without) = (
            object(none(), text("a").text(43, "x")),
            object(none(), text("a")),
        );
        assert_eq!(has_dropped(&with, &without, "status"), Some(true));
        assert_eq!(has_dropped(&without, &without, "status"), Some(false));
        let (with, without) = (spec(text("a")), spec(none()));
        assert_eq!(has_dropped(&with, &without, "status"), Some(false));
        assert_eq!(has_dropped(&with, &without, "ephemeralcontainers"), None);
    }

    #[test]
    fn other_bodies_are_not_compared() {
        let pod = object(text("a"), text("b"));
        for other in [&b"{}"[..], b"", b"k8s\0", b"k8s\0\x12\xff"] {
            assert_eq!(has_dropped(other, &pod, ""), None, "{other:?}");
            assert_eq!(has_dropped(&pod, other, ""), None, "{other:?}");
        }
    }

    #[test]
    fn deep_messages_are_compared_to_a_limit() {
        let nested = |innermost: Writer| {
            (0..2 * MAX_DEPTH).fold(innermost, |below, _| Writer::default().message(2, below))
        };
        let (with, without) = (nested(text("a").text(43, "x")), nested(text("a")));
        let (with, without) = (object(with, text("")), object(without, text("")));
        assert_eq!(has_dropped(&with, &without, ""), Some(false));
    }
}
