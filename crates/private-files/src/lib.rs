//! Files and directories that only this user can read: sockets, locks and kubeconfigs of running
//! processes, and state that is stored for the next start.
//!
//! ```
//! use skewbridge_private_files::{PrivateDir, replace_file};
//!
//! # fn main() -> std::io::Result<()> {
//! let directory = PrivateDir::create_locked("skewbridge-example-")?;
//! let file = directory.path().join("state");
//! replace_file(&file, b"old")?;
//! // A reader gets the old content or the new.
//! replace_file(&file, b"new")?;
//! assert_eq!(std::fs::read(&file)?, b"new");
//! // Dropping it removes it and its content.
//! drop(directory);
//! assert!(!file.exists());
//! # Ok(())
//! # }
//! ```

mod atomic_file;
mod private_dir;

pub use atomic_file::{check_writable, replace_file};
pub use private_dir::{
    DirUse, PrivateDir, create_private_dir, create_private_file, ensure_private_dir,
    is_private_dir, is_same_file, open_no_follow, runtime_directories, sweep,
};
