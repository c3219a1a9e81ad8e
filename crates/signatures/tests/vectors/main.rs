//! What the RFCs and AWS have printed, reproduced; and what is altered, refused.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

mod chain;
mod rfc9421;
mod sigv4;
mod sigv4_front_proxy;
mod sigv4_suite;
mod verifying;
