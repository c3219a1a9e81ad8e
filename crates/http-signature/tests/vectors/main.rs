//! The examples of RFC 9421 are reproduced, and altered ones are refused.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

mod rfc9421;
mod verifying;
