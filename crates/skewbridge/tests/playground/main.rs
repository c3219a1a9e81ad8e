//! `skewbridge playground`, run as its users run it.

#![expect(clippy::unwrap_used, reason = "a test ends where it cannot go on")]

mod life;
mod rig;
mod shown;
mod tour;
