//! Structured fields: a field that parses has one form, and that form parses to the same
//! field. And the headers of signatures, which untrusted clients send.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use skewbridge_http_signature::{ExpectedDigest, SignatureInput};
use skewbridge_http_signature::structured::{
    ListEntry, parse_dictionary, parse_item, parse_list, serialize,
};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(item) = parse_item(bytes) {
        assert_eq!(parse_item(serialize(&item).as_bytes()).ok(), Some(item));
    }
    if let Ok(list) = parse_list(bytes) {
        assert_eq!(parse_list(serialize(&list).as_bytes()).ok(), Some(list));
    }
    if let Ok(dictionary) = parse_dictionary(bytes) {
        for member in dictionary.values() {
            if let ListEntry::InnerList(list) = member {
                let _ = SignatureInput::read(&list.clone().into());
            }
        }
        let written = serialize(&dictionary);
        assert_eq!(parse_dictionary(written.as_bytes()).ok(), Some(dictionary));
    }
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("content-digest"), value);
        let _ = ExpectedDigest::of(&headers);
    }
});
