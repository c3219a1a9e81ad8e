//! The PROXY protocol: a header does not depend on what follows it, is not longer than permitted, and
//! no prefix of it is one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use skewbridge_gateway::proxy_protocol::{MAX_HEADER_BYTES, Parsed, parse};

fuzz_target!(|bytes: &[u8]| {
    match parse(bytes) {
        Ok(Parsed::Incomplete) => assert!(bytes.len() < MAX_HEADER_BYTES),
        Ok(Parsed::Complete { bytes: length, .. }) => {
            assert!(length <= MAX_HEADER_BYTES);
            assert_eq!(parse(&bytes[..length]), parse(bytes));
            assert_eq!(parse(&bytes[..length - 1]), Ok(Parsed::Incomplete));
        }
        Err(_) => {}
    }
});
