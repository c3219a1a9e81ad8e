//! Structured fields: what has a reading has one form, and that form the same
//! reading. And the headers of signatures, which strangers send.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use skewbridge_signatures::http_signature::{ExpectedDigest, SignatureInput};
use skewbridge_signatures::structured::{Dictionary, Item, List, Member};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(item) = Item::parse(bytes) {
        assert_eq!(Item::parse(item.to_string().as_bytes()), Ok(item));
    }
    if let Ok(list) = List::parse(bytes) {
        assert_eq!(List::parse(list.to_string().as_bytes()), Ok(list));
    }
    if let Ok(dictionary) = Dictionary::parse(bytes) {
        assert!(dictionary.check().is_ok());
        for (_, member) in dictionary.iter() {
            if let Member::InnerList(list) = member {
                let _ = SignatureInput::read(list);
            }
        }
        let written = dictionary.to_string();
        assert_eq!(Dictionary::parse(written.as_bytes()), Ok(dictionary));
    }
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("content-digest"), value);
        let _ = ExpectedDigest::of(&headers);
    }
});
