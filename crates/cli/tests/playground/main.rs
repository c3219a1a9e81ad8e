//! `skewbridge playground`, run as its users run it.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod doc_examples;
mod lifecycle;
#[path = "../support/playground_fixture.rs"]
mod playground_fixture;
mod tour;
