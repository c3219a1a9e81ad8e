//! `skewbridge agent`, started as clients start it, with a fake client and a fake cluster over loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/agent_fixture.rs"]
mod agent_fixture;
mod lifecycle;
mod prompts;
mod proxies;
mod secrets;
mod signers;
mod tokens;
