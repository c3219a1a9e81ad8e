//! The examples of RFC 9421 are reproduced, and altered ones are refused.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

mod rfc9421;
mod verifying;
