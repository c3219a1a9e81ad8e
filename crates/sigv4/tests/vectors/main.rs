//! AWS' published examples are reproduced, and altered ones are refused.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

mod chain;
mod sigv4;
mod sigv4_front_proxy;
mod sigv4_suite;
