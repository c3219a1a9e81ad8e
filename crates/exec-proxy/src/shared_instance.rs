//! One plugin instance for several clients. They find it at a path in the user's runtime
//! directory, and the instance issues a client certificate to each.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use skewbridge_k8s_api::exec_credential::{ExecCredential, Version};
use skewbridge_k8s_api::secret::SecretString;
use skewbridge_private_files::{create_private_dir, is_private_dir};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::forward::{Activity, is_same_user};
use crate::same_file::is_same_file;
use crate::{Error, socket, stdio};

/// The line that an instance prints when it accepts requests.
pub(crate) const READY_LINE: &[u8] = b"ready\n";

/// For a credential request: both ends are on this machine, and respond quickly.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// More than any credential needs.
const MAX_RESPONSE_BYTES: u64 = 256 * 1024;

/// More than most credentials need: a buffer that grows leaves copies of secrets behind.
const RESPONSE_CAPACITY_BYTES: usize = 32 * 1024;

/// The longest request: an API version.
const MAX_REQUEST_BYTES: usize = 64;

/// Further clients wait in the accept backlog.
const MAX_CONCURRENT_REQUESTS: usize = 64;

/// How often the lock file may have been removed by the time it is locked: an instance removes
/// it when it ends, which happens once per instance.
const MAX_LOCK_ATTEMPTS: usize = 64;

/// The path at which clients find the instance of one configuration.
#[derive(Debug, Clone)]
pub struct InstancePath {
    path: PathBuf,
}

impl InstancePath {
    /// The path for a configuration, below `$XDG_RUNTIME_DIR`. `parts` must contain everything
    /// that distinguishes one instance from another. Only their digest is kept.
    pub fn from_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, Error> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let runtime = runtime.filter(|path| path.is_absolute() && is_private_dir(path));
        Self::below(&runtime.ok_or(Error::NoRuntimeDir)?, parts)
    }

    /// Like [`InstancePath::from_parts`], below another directory, which only this user can
    /// enter.
    pub fn below<'a>(
        runtime: &Path,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, Error> {
        let parts: Vec<&[u8]> = parts.into_iter().collect();
        // Reserves the whole size: a buffer that grows leaves copies of secrets behind.
        let capacity = parts.iter().map(|part| part.len() + 8).sum();
        let mut all = Zeroizing::new(Vec::with_capacity(capacity));
        for part in parts {
            all.extend_from_slice(&(part.len() as u64).to_be_bytes());
            all.extend_from_slice(part);
        }
        let directory = runtime.join("skewbridge-agent");
        match create_private_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::Shared {
                    path: directory,
                    cause: error.to_string(),
                });
            }
            _ if !is_private_dir(&directory) => {
                return Err(Error::Shared {
                    path: directory,
                    cause: "it is not a directory that only this user can enter".to_owned(),
                });
            }
            _ => {}
        }
        let digest = digest(&SHA256, &all);
        let mut name = String::new();
        // 128 bits are enough, because it is not a secret, and keep the path short.
        for byte in &digest.as_ref()[..16] {
            let _ = write!(name, "{byte:02x}");
        }
        Ok(Self {
            path: directory.join(name),
        })
    }

    fn socket(&self) -> PathBuf {
        self.path.with_extension("sock")
    }

    /// The file that a process keeps locked while it starts an instance.
    fn lock_file(&self) -> PathBuf {
        self.path.with_extension("lock")
    }

    fn failed(&self, cause: impl std::fmt::Display) -> Error {
        Error::Shared {
            path: self.socket(),
            cause: cause.to_string(),
        }
    }

    /// Requests a credential for a client from the instance at this path. If there is none,
    /// `instance` starts one: a command that calls
    /// [`ExecProxy::run_shared`](crate::ExecProxy::run_shared) with this path. Concurrent callers
    /// start only one.
    pub async fn request_credential(
        &self,
        version: Version,
        instance: Command,
    ) -> Result<SecretString, Error> {
        if let Some(credential) = self.request_from_running(version).await? {
            return Ok(credential);
        }
        let _lock = self.lock_startup().await?;
        if let Some(credential) = self.request_from_running(version).await? {
            return Ok(credential);
        }
        self.start(instance).await.inspect_err(|_| {
            // This process holds the lock, and there is no instance that would remove the file.
            let _ = fs::remove_file(self.lock_file());
        })?;
        let credential = self.request_from_running(version).await?;
        credential.ok_or_else(|| self.failed("the instance has ended already"))
    }

    /// Prints the result of [`InstancePath::request_credential`] for the client.
    pub fn print(credential: &SecretString) -> Result<(), Error> {
        let credential = ExecCredential::parse(credential.expose().as_bytes())?;
        stdio::print(&credential)
    }

    /// `None` if no instance is running.
    async fn request_from_running(&self, version: Version) -> Result<Option<SecretString>, Error> {
        let mut stream = match UnixStream::connect(self.socket()).await {
            Ok(stream) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(self.failed(error)),
        };
        if !is_same_user(&stream) {
            return Err(self.failed("it belongs to another user"));
        }
        let mut response = Zeroizing::new(Vec::with_capacity(RESPONSE_CAPACITY_BYTES));
        let request = async {
            stream.write_all(version.as_str().as_bytes()).await?;
            stream.shutdown().await?;
            let mut limited = stream.take(MAX_RESPONSE_BYTES);
            limited.read_to_end(&mut response).await
        };
        match timeout(REQUEST_TIMEOUT, request).await {
            Err(_) => Err(self.failed("the instance does not answer")),
            Ok(Err(error)) => Err(self.failed(error)),
            // The instance is about to end, and can be replaced by another one.
            Ok(Ok(0)) => Ok(None),
            Ok(Ok(_)) => match std::str::from_utf8(&response) {
                Ok(text) => Ok(Some(SecretString::new(text.to_owned()))),
                Err(_) => Err(self.failed("its response is not text")),
            },
        }
    }

    /// Waits for other processes that are starting an instance, and locks them out.
    async fn lock_startup(&self) -> Result<File, Error> {
        let path = self.lock_file();
        let locked = tokio::task::spawn_blocking(move || {
            for _ in 0..MAX_LOCK_ATTEMPTS {
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(&path)?;
                file.lock()?;
                if is_same_file(&file, &path) {
                    return Ok(file);
                }
            }
            Err(io::Error::other("its lock file is removed repeatedly"))
        });
        match locked.await {
            Ok(locked) => locked.map_err(|error| self.failed(error)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Starts an instance and waits until it accepts requests. There is no timeout, because the
    /// instance may prompt the user for a PIN.
    async fn start(&self, mut command: Command) -> Result<(), Error> {
        let started = tokio::task::spawn_blocking(move || {
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()?;
            let mut output = Vec::new();
            if let Some(stdout) = child.stdout.take() {
                stdout
                    .take(READY_LINE.len() as u64)
                    .read_to_end(&mut output)?;
            }
            if output == READY_LINE {
                return Ok(());
            }
            let status = child.wait()?;
            Err(io::Error::other(format!("it did not start: {status}")))
        });
        match started.await {
            Ok(started) => started.map_err(|error| self.failed(error)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Listens at this path. The socket of an instance that was killed is removed first. The
    /// process that started this instance holds the startup lock, so no other instance does the
    /// same.
    pub(crate) fn bind(&self) -> Result<(UnixListener, InstanceGuard), Error> {
        if let Some(directory) = self.path.parent() {
            sweep(directory);
        }
        let path = self.socket();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.failed(error));
            }
            _ => {}
        }
        let listener = socket::bind(&path)?;
        let guard = InstanceGuard {
            inode: fs::symlink_metadata(&path).map_or(0, |it| it.ino()),
            path,
            lock_file: self.lock_file(),
        };
        Ok((listener, guard))
    }
}

/// Removes the socket and the lock file of an instance when it is dropped.
#[derive(Debug)]
pub(crate) struct InstanceGuard {
    path: PathBuf,
    inode: u64,
    lock_file: PathBuf,
}

impl Drop for InstanceGuard {
    fn drop(&mut self) {
        // Unless another instance listens there now.
        if fs::symlink_metadata(&self.path).is_ok_and(|current| current.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
        // Unless a process is starting another instance.
        if let Ok(lock) = OpenOptions::new().write(true).open(&self.lock_file)
            && lock.try_lock().is_ok()
            && is_same_file(&lock, &self.lock_file)
        {
            let _ = fs::remove_file(&self.lock_file);
        }
    }
}

/// How many sockets one sweep checks: enough to keep up with crashes.
const MAX_SWEPT_SOCKETS: usize = 256;

/// Removes the files of killed instances of other configurations: sockets on which no process
/// listens, and for which no process is starting an instance.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let sockets = entries.filter_map(Result::ok).map(|entry| entry.path());
    let sockets = sockets.filter(|path| path.extension().is_some_and(|it| it == "sock"));
    for socket in sockets.take(MAX_SWEPT_SOCKETS) {
        let is_abandoned = || {
            let connected = std::os::unix::net::UnixStream::connect(&socket);
            connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        let path = socket.with_extension("lock");
        // Created by the process that started the instance.
        let lock = OpenOptions::new().write(true).open(&path);
        // The socket is checked last, when the lock keeps other processes from starting an
        // instance.
        let is_unused =
            |lock: &File| lock.try_lock().is_ok() && is_same_file(lock, &path) && is_abandoned();
        if lock.as_ref().is_ok_and(is_unused) {
            let _ = fs::remove_file(&socket);
            let _ = fs::remove_file(&path);
        }
    }
}

/// Issues a credential to each client that requests one. That counts as activity, because the
/// client is about to use the credential.
pub(crate) async fn serve_credentials(
    listener: UnixListener,
    activity: Activity,
    issue: impl Fn(Version) -> Result<ExecCredential, Error> + Clone + Send + 'static,
) {
    let mut requests = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if requests.len() < MAX_CONCURRENT_REQUESTS => {
                if let Ok((stream, _)) = accepted
                    && is_same_user(&stream)
                {
                    let request = serve_credential(stream, activity.clone(), issue.clone());
                    requests.spawn(timeout(REQUEST_TIMEOUT, request));
                }
            }
            Some(_) = requests.join_next() => {}
        }
    }
}

async fn serve_credential(
    mut stream: UnixStream,
    activity: Activity,
    issue: impl Fn(Version) -> Result<ExecCredential, Error>,
) -> io::Result<()> {
    let mut request = Vec::new();
    let mut limited = (&mut stream).take(MAX_REQUEST_BYTES as u64);
    limited.read_to_end(&mut request).await?;
    let version = std::str::from_utf8(&request).ok().and_then(Version::of);
    let Some(version) = version else {
        return Ok(());
    };
    // Until the response has been sent.
    let _busy = activity.begin();
    let Ok(credential) = issue(version) else {
        return Ok(());
    };
    let json = credential.to_json();
    stream.write_all(json.expose().as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn issuing_a_credential_is_activity_and_an_invalid_request_is_not() {
        let dir = ScratchDir::new();
        let path = dir.path().join("instance");
        let activity = Activity::default();
        let issue = |version| {
            let status = skewbridge_k8s_api::exec_credential::Status::default();
            Ok(ExecCredential::response(version, status))
        };
        let listener = socket::bind(&path).unwrap();
        let _serving = JoinSet::from_iter([serve_credentials(listener, activity.clone(), issue)]);
        let start = tokio::time::Instant::now();
        for (after, request, is_answered) in [(40, Version::V1.as_str(), true), (70, "x", false)] {
            tokio::time::sleep_until(start + Duration::from_secs(after)).await;
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).await.unwrap();
            assert_eq!(!response.is_empty(), is_answered, "{request}");
        }
        activity.wait_until_idle(Duration::from_mins(1)).await;
        assert_eq!(start.elapsed().as_secs(), 100);
    }

    #[tokio::test]
    async fn only_the_files_of_killed_instances_are_removed() {
        let dir = ScratchDir::new();
        let instance = |name: &str| {
            let lock = File::create(dir.path().join(name).with_extension("lock")).unwrap();
            let socket = dir.path().join(name).with_extension("sock");
            (socket::bind(&socket).unwrap(), lock)
        };
        let _alive = instance("alive");
        let (listener, being_started) = instance("being-started");
        being_started.lock().unwrap();
        drop((listener, instance("dead")));
        sweep(dir.path());
        let entries = fs::read_dir(dir.path()).unwrap();
        let mut remaining: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        remaining.sort();
        let expected = [
            "alive.lock",
            "alive.sock",
            "being-started.lock",
            "being-started.sock",
        ];
        assert_eq!(remaining, expected);
    }
}
