//! Calls to APIs that the next minor version does not serve, or that are deprecated, by caller.
//!
//! The bridge compares each request with the APIs that the target release does not serve (`apis`), and reads the `Warning` headers
//! in which a server reports a deprecated API (`deprecation`). The `ledger` counts these calls by
//! caller, without names of objects and without bodies.

pub(crate) mod apis;
mod caller_identity;
mod deprecation;
pub(crate) mod ledger;
pub(crate) mod observation;
pub mod report;
mod table;
pub(crate) mod token_users;

pub use self::apis::Reason;
pub use self::report::{Call, CallStats, Report};
