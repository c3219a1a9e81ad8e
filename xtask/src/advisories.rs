//! `cargo xtask advisories`: known vulnerabilities in the dependencies. It is not part of the
//! test command, because its result depends on the date and on the network.

use crate::step::{self, StepError, cargo};
use crate::test::ensure_cargo_deny;

pub(crate) fn run() -> Result<(), StepError> {
    ensure_cargo_deny()?;
    // A separate step: `check` exits with the same code when it cannot fetch the database and
    // when it finds a vulnerability.
    step::run(&mut cargo("deny --locked fetch db")).map_err(|_| {
        StepError(
            "could not check: the advisory database cannot be fetched (no network?). \
             The dependencies were not checked."
                .into(),
        )
    })?;
    step::run(&mut cargo("deny --locked check advisories"))
}
