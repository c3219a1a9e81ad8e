//! AWS' published examples are reproduced, and altered ones are refused.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests

mod chain;
mod sigv4;
mod sigv4_front_proxy;
mod sigv4_suite;
