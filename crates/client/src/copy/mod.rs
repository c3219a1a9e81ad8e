//! Files and trees into pods and out of them, by the container's own `tar`.

pub mod contained;
mod error;
mod extract;
mod options;
mod place;
mod tally;
pub mod tar;
mod tree;

pub use error::{Error, Skipped, Tries};
pub use options::{Again, Notice, Options, Preserve, Retries};
pub use place::Place;
pub use tally::Tally;
