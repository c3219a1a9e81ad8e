//! `skewbridge agent`, started as clients start it, between stand-ins over loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod life;
mod prompts;
mod proxies;
mod rig;
mod secrets;
mod signers;
mod tokens;
