//! `cargo xtask advisories`: known vulnerabilities in the dependencies. Apart from the test
//! command because its answer depends on the day and on the network.

use crate::step::{self, Failed, cargo};
use crate::test::ensure_cargo_deny;

pub(crate) fn run() -> Result<(), Failed> {
    ensure_cargo_deny()?;
    // Fetched apart, for `check` ends alike when it cannot fetch and when it finds something.
    step::run(&mut cargo("deny --locked fetch db")).map_err(|_| {
        Failed(
            "could not check: the advisory database cannot be fetched (no network?). \
             This says nothing about the dependencies."
                .into(),
        )
    })?;
    step::run(&mut cargo("deny --locked check advisories"))
}
