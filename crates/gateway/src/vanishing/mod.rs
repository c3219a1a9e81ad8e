//! Calls to APIs that the next minor version does not serve, or that are deprecated: who sends them.
//!
//! The bridge compares each request with the APIs that go (`apis`), and reads the `Warning` headers
//! in which a server reports a deprecated API (`deprecation`). The `ledger` counts these calls by
//! caller. It has no names of objects, and no bodies.

pub(crate) mod apis;
mod deprecation;
pub(crate) mod ledger;
pub(crate) mod observation;
pub mod report;
mod sender;
mod table;
pub(crate) mod token_users;

pub use self::apis::Reason;
pub use self::report::{Call, Report, Tally};
