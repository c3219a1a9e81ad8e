//! Whether the client lives: it holds a lock on a file for as long as it does
//! (KEP-2718, "Proxy Shutdown"), whatever ends it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use crate::Error;
use crate::shared::is_at;

/// A client that lives, as far as is known.
#[derive(Debug)]
pub(crate) struct ClientLife {
    /// Until it has been heard.
    gone: Option<oneshot::Receiver<()>>,
}

impl ClientLife {
    /// Watches a client by its lock, on a thread that waits for it. The thread has
    /// no other end: it is a part of the process that is to quit with the client, or, where
    /// that is shared, removes what the client leaves.
    pub(crate) fn watch(path: &Path) -> Result<Self, Error> {
        let wrong = |cause: io::Error| Error::LockFile {
            path: path.to_owned(),
            cause,
        };
        let file = open(path).map_err(wrong)?;
        let (tell, gone) = oneshot::channel();
        let path = path.to_owned();
        std::thread::Builder::new()
            .name("client-lock".to_owned())
            .spawn(move || {
                wait(&file, &path);
                let _ = tell.send(());
            })
            .map_err(wrong)?;
        Ok(Self { gone: Some(gone) })
    }

    /// Returns when the client is gone.
    pub(crate) async fn ended(&mut self) {
        if let Some(gone) = &mut self.gone {
            // A thread that has ended otherwise has nothing to wait for either.
            let _ = gone.await;
            self.gone = None;
        }
    }
}

/// The file as the client made it: there, a file, and of our own user. It is never
/// made here, or a client that is gone would never be missed.
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

/// Blocks until nobody else has the lock, and then takes away what the client
/// could not.
fn wait(file: &File, path: &Path) {
    while let Err(error) = file.lock() {
        if error.kind() != io::ErrorKind::Interrupted {
            tracing::warn!(path = %path.display(), %error, "cannot wait for the client's lock; its end will not be noticed");
            // Idle quit is left.
            loop {
                std::thread::park();
            }
        }
    }
    if is_at(file, path) && fs::remove_file(path).is_ok() {
        remove_private_parent(path);
    }
}

/// The directory that a client of ours has made for nothing but the lock. Only an
/// empty one goes.
fn remove_private_parent(path: &Path) {
    let parent: Option<PathBuf> = path.parent().map(Path::to_owned);
    if let Some(parent) = parent
        && (parent.file_name())
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"skewbridge-"))
    {
        let _ = fs::remove_dir(parent);
    }
}
