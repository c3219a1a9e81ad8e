//! Copies files and trees to and from pods, with the container's own `tar`.
//!
//! [`copy_to`], [`copy_from`] and [`copy_between`] run commands in a [`Container`], usually a
//! [`Pod`] with an executor. Archives from a container are not trusted: whatever their names,
//! nothing is written outside of the target ([`path_containment`]). `docs/copy.md` has the
//! rules.
//!
//! ```no_run
//! use std::path::Path;
//! use std::sync::Arc;
//! use skewbridge_client::copy::{self, Options, Pod, Progress};
//! use skewbridge_client::remote_command::FallbackExecutor;
//!
//! # async fn example(endpoint: skewbridge_client::Endpoint) -> Result<(), copy::Error> {
//! let pod = Pod {
//!     executor: Arc::new(FallbackExecutor::new(endpoint)),
//!     namespace: "default".to_owned(),
//!     pod: "web".to_owned(),
//!     container: None,
//! };
//! let (options, progress) = (Options::default(), Arc::new(Progress::default()));
//! copy::copy_from(&pod, "/var/log/app", Path::new("logs"), &options, &progress).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # A complete program
//!
//! The program is in `examples`, and the tests run it.
//!
//! ```no_run
#![doc = include_str!("../../examples/copy_a_file.rs")]
//! ```

mod archive_builder;
mod backoff;
mod cancellation;
mod cat_download;
mod cat_upload;
mod cksum;
mod commands;
mod container_exec;
mod copy_spec;
mod dir_stack;
mod disk_budget;
mod download;
mod error;
mod extract;
mod extract_stream;
mod options;
pub mod path_containment;
mod pod_to_pod;
mod progress;
mod remote_inventory;
mod remote_writer;
mod resume;
pub mod tar;
mod target_tree;
mod upload;
mod upload_plan;

pub use cancellation::CancellationToken;
pub use container_exec::{Container, Pod, Process, RunFuture, Stdin};
pub use copy_spec::CopySpec;
pub use download::copy_from;
pub use error::{Attempts, Error, Skipped};
pub use options::{CopyEvent, Options, Preserve, ResumePoint, Retries};
pub use pod_to_pod::copy_between;
pub use progress::Progress;
pub use upload::copy_to;
