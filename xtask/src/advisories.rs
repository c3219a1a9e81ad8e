//! `cargo xtask advisories`: known vulnerabilities in the dependencies. Apart from the test
//! command because its answer depends on the day and on the network.

use crate::step::{self, Failed, cargo};
use crate::test::ensure_cargo_deny;

pub(crate) fn run() -> Result<(), Failed> {
    ensure_cargo_deny()?;
    step::run(&mut cargo("deny --locked check advisories")).map_err(|Failed(why)| {
        Failed(format!(
            "{why}; where it says that the advisory database could not be fetched, \
             the network or its proxy is in the way, not a dependency"
        ))
    })
}
