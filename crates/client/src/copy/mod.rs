//! Files and trees into pods and out of them, by the container's own `tar`.
//!
//! [`copy_to`], [`copy_from`] and [`copy_between`] run commands in a [`Container`], which
//! is a [`Pod`] with an executor. What comes from a container is not trusted: whatever
//! its archive says, nothing is written outside of the target ([`contained`]).
//! `docs/copy.md` has the rules.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use skewbridge_client::copy::{self, Options, Pod, Tally};
//! use skewbridge_client::streams::FallbackExecutor;
//!
//! # async fn example(endpoint: skewbridge_client::Endpoint) -> Result<(), copy::Error> {
//! let pod = Pod {
//!     executor: Arc::new(FallbackExecutor::new(endpoint)),
//!     namespace: "default".to_owned(),
//!     pod: "web".to_owned(),
//!     container: None,
//! };
//! let (options, tally) = (Options::default(), Arc::new(Tally::default()));
//! copy::copy_from(&pod, "/var/log/app", Path::new("logs"), &options, &tally).await?;
//! # Ok(())
//! # }
//! ```

mod append;
mod between;
mod cat;
mod cat_out;
mod cksum;
mod commands;
pub mod contained;
mod container;
mod download;
mod error;
mod extract;
mod gather;
mod levels;
mod options;
mod place;
mod retry;
mod room;
mod stop;
mod tally;
pub mod tar;
mod there;
mod tree;
mod upload;
mod way;
mod worker;

pub use between::copy_between;
pub use container::{Container, Pod, Process, Running, Stdin};
pub use download::copy_from;
pub use error::{Error, Skipped, Tries};
pub use options::{Again, Notice, Options, Preserve, Retries};
pub use place::Place;
pub use stop::Stop;
pub use tally::Tally;
pub use upload::copy_to;
