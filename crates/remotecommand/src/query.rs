//! Values in the query of a request.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// All values of a key, decoded, in order.
pub(crate) fn values<'a>(query: &'a str, key: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(move |(name, _)| *name == key || (name.contains('%') && decode(name) == key))
        .map(|(_, value)| decode(value))
}

fn decode(text: &str) -> Cow<'_, str> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
    } else {
        percent_decode_str(text).decode_utf8_lossy()
    }
}
