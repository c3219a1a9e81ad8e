//! Detects the exit of the client: it holds a lock on a file while it is alive (KEP-2718, "Proxy
//! Shutdown"), and the kernel releases the lock however the client ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use crate::Error;
use crate::same_file::is_same_file;

/// Waits for the release of a client's lock.
#[derive(Debug)]
pub(crate) struct ClientLockWatcher {
    /// `None` once the lock has been released.
    released: Option<oneshot::Receiver<()>>,
}

impl ClientLockWatcher {
    /// Starts a thread that waits for the lock. Nothing stops the thread: the process exits
    /// with the client, or, if it is shared, the thread removes the client's lock file.
    pub(crate) fn start(path: &Path) -> Result<Self, Error> {
        let failed = |cause: io::Error| Error::LockFile {
            path: path.to_owned(),
            cause,
        };
        let file = open(path).map_err(failed)?;
        let (sender, released) = oneshot::channel();
        let path = path.to_owned();
        std::thread::Builder::new()
            .name("client-lock".to_owned())
            .spawn(move || {
                wait_and_remove(&file, &path);
                let _ = sender.send(());
            })
            .map_err(failed)?;
        Ok(Self {
            released: Some(released),
        })
    }

    /// Returns when the client has released its lock.
    pub(crate) async fn released(&mut self) {
        if let Some(released) = &mut self.released {
            // If the thread has ended for another reason, the lock is no longer watched.
            let _ = released.await;
            self.released = None;
        }
    }
}

/// Opens the client's lock file: it must exist, be a regular file and belong to this user. It is
/// never created here, because a new file would look like a lock that has been released.
fn open(path: &Path) -> io::Result<File> {
    if !path.is_absolute() {
        return Err(io::Error::other("its path is not absolute"));
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    Ok(file)
}

/// Blocks until no other process holds the lock, and then removes the files that the client has
/// left behind.
fn wait_and_remove(file: &File, path: &Path) {
    while let Err(error) = file.lock() {
        if error.kind() != io::ErrorKind::Interrupted {
            tracing::warn!(path = %path.display(), %error, "cannot wait for the client's lock; its exit will not be detected");
            // The idle timeout still ends the plugin.
            loop {
                std::thread::park();
            }
        }
    }
    if is_same_file(file, path) && fs::remove_file(path).is_ok() {
        remove_private_parent(path);
    }
}

/// Removes the directory that a Skewbridge client has created for the lock file, if it is empty.
fn remove_private_parent(path: &Path) {
    let parent: Option<PathBuf> = path.parent().map(Path::to_owned);
    if let Some(parent) = parent
        && (parent.file_name())
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"skewbridge-"))
    {
        let _ = fs::remove_dir(parent);
    }
}
