//! `skewbridge agent`, started as clients start it, between a fake client and a fake cluster over
//! loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/agent_fixture.rs"]
mod agent_fixture;
mod lifecycle;
#[path = "../support/prompt_fixture.rs"]
mod prompt_fixture;
mod prompts;
mod proxies;
mod secrets;
mod signers;
mod tokens;
