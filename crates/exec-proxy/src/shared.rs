//! One instance for several clients: they find it at a seat in the user's own
//! runtime directory, and each is given a certificate of its own.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use skewbridge_client::private_dir::{create_private_dir, is_private_dir};
use skewbridge_k8s_api::exec_credential::{ExecCredential, Version};
use skewbridge_k8s_api::secret::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::forward::{Activity, is_same_user};
use crate::{Error, socket};

/// What an instance says when it can be asked.
pub(crate) const READY: &[u8] = b"ready\n";

/// Questions and answers at a seat: both ends are here, and are quick.
const PATIENCE: Duration = Duration::from_secs(10);

/// More than any answer.
const MAX_ANSWER: u64 = 256 * 1024;

/// More than most answers: a buffer that grows leaves copies behind.
const ROOM: usize = 32 * 1024;

/// The longest question: a version.
const MAX_QUESTION: usize = 64;

/// Clients that ask at one moment. More wait.
const MAX_ASKING: usize = 64;

/// How often the lock of a turn may be gone when it is ours: an instance that ends takes it
/// along, and ends once.
const TURNS: usize = 64;

/// Where an instance of one configuration is found.
#[derive(Debug, Clone)]
pub struct Seat {
    path: PathBuf,
}

impl Seat {
    /// The seat for a configuration: everything that makes an instance differ from
    /// another one has to be in `parts`. They are kept as a digest only.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, Error> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let runtime = runtime.filter(|path| path.is_absolute() && is_private_dir(path));
        Self::below(&runtime.ok_or(Error::NoSeat)?, parts)
    }

    /// The same, below a directory of this user alone.
    pub fn below<'a>(
        runtime: &Path,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, Error> {
        let parts: Vec<&[u8]> = parts.into_iter().collect();
        // Room for all of it: a buffer that grows leaves copies behind.
        let room = parts.iter().map(|part| part.len() + 8).sum();
        let mut all = Zeroizing::new(Vec::with_capacity(room));
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
                    cause: "it is not a directory of this user alone".to_owned(),
                });
            }
            _ => {}
        }
        let digest = digest(&SHA256, &all);
        let mut name = String::new();
        // 128 bits are enough for what is no secret, and leave room for a path.
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

    /// Held by who starts an instance.
    fn lock(&self) -> PathBuf {
        self.path.with_extension("lock")
    }

    fn failed(&self, cause: impl std::fmt::Display) -> Error {
        Error::Shared {
            path: self.socket(),
            cause: cause.to_string(),
        }
    }

    /// A credential for a client, from the instance at this seat. If there is none,
    /// `instance` starts one: a command that comes to
    /// [`Harness::run_shared`](crate::Harness::run_shared) with this seat. However
    /// many ask at once, one is started.
    pub async fn ask(&self, version: Version, instance: Command) -> Result<SecretString, Error> {
        if let Some(answer) = self.ask_running(version).await? {
            return Ok(answer);
        }
        let _turn = self.turn().await?;
        if let Some(answer) = self.ask_running(version).await? {
            return Ok(answer);
        }
        self.start(instance).await.inspect_err(|_| {
            // It is ours, and nobody is there who would take it along.
            let _ = fs::remove_file(self.lock());
        })?;
        let answer = self.ask_running(version).await?;
        answer.ok_or_else(|| self.failed("it has ended already"))
    }

    /// Prints what [`Seat::ask`] gives, for the client.
    pub fn print(answer: &SecretString) -> Result<(), Error> {
        let credential = ExecCredential::parse(answer.expose().as_bytes())?;
        crate::harness::print(&credential)
    }

    async fn ask_running(&self, version: Version) -> Result<Option<SecretString>, Error> {
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
            return Err(self.failed("it is of another user"));
        }
        // Room for all of it, as a rule.
        let mut answer = Zeroizing::new(Vec::with_capacity(ROOM));
        let asked = async {
            stream.write_all(version.as_str().as_bytes()).await?;
            stream.shutdown().await?;
            let mut limited = stream.take(MAX_ANSWER);
            limited.read_to_end(&mut answer).await
        };
        match timeout(PATIENCE, asked).await {
            Err(_) => Err(self.failed("it does not answer")),
            Ok(Err(error)) => Err(self.failed(error)),
            // It is about to end: another one takes its place.
            Ok(Ok(0)) => Ok(None),
            Ok(Ok(_)) => match std::str::from_utf8(&answer) {
                Ok(text) => Ok(Some(SecretString::new(text.to_owned()))),
                Err(_) => Err(self.failed("it answers what is not text")),
            },
        }
    }

    /// Waits for those who are just starting an instance.
    async fn turn(&self) -> Result<File, Error> {
        let path = self.lock();
        let locked = tokio::task::spawn_blocking(move || {
            for _ in 0..TURNS {
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(&path)?;
                file.lock()?;
                if is_at(&file, &path) {
                    return Ok(file);
                }
            }
            Err(io::Error::other("its lock is gone again and again"))
        });
        match locked.await {
            Ok(locked) => locked.map_err(|error| self.failed(error)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Starts an instance, and waits until it can be asked. It may ask its user for a
    /// PIN in the meantime, so there is no limit but theirs.
    async fn start(&self, mut command: Command) -> Result<(), Error> {
        let started = tokio::task::spawn_blocking(move || {
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::inherit())
                .spawn()?;
            let mut said = Vec::new();
            if let Some(stdout) = child.stdout.take() {
                stdout.take(READY.len() as u64).read_to_end(&mut said)?;
            }
            if said == READY {
                return Ok(());
            }
            let ended = child.wait()?;
            Err(io::Error::other(format!("it did not start: {ended}")))
        });
        match started.await {
            Ok(started) => started.map_err(|error| self.failed(error)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Sits down. What an instance that was killed has left is removed; the turn of
    /// whoever started us keeps others from doing the same.
    pub(crate) fn take(&self) -> Result<(UnixListener, Seated), Error> {
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
        let seated = Seated {
            inode: fs::symlink_metadata(&path).map_or(0, |it| it.ino()),
            path,
            lock: self.lock(),
        };
        Ok((listener, seated))
    }
}

/// The seat is taken; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Seated {
    path: PathBuf,
    inode: u64,
    lock: PathBuf,
}

impl Drop for Seated {
    fn drop(&mut self) {
        // Unless another has taken it since.
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
        // Unless somebody is about to start another.
        if let Ok(lock) = OpenOptions::new().write(true).open(&self.lock)
            && lock.try_lock().is_ok()
            && is_at(&lock, &self.lock)
        {
            let _ = fs::remove_file(&self.lock);
        }
    }
}

/// How many seats are looked at: enough to keep up with crashes.
const SWEPT: usize = 256;

/// Removes what instances of other configurations left that were killed: seats that nobody
/// has, and that nobody is about to take.
fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let sockets = entries.filter_map(Result::ok).map(|entry| entry.path());
    let sockets = sockets.filter(|path| path.extension().is_some_and(|it| it == "sock"));
    for socket in sockets.take(SWEPT) {
        let is_left = || {
            let connected = std::os::unix::net::UnixStream::connect(&socket);
            connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        let path = socket.with_extension("lock");
        // Made by whoever took the seat.
        let turn = OpenOptions::new().write(true).open(&path);
        // Looked at when nobody can take it any more.
        let is_free = |turn: &File| turn.try_lock().is_ok() && is_at(turn, &path) && is_left();
        if turn.as_ref().is_ok_and(is_free) {
            let _ = fs::remove_file(&socket);
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether it is this very file that is at this path.
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    (file.metadata().ok())
        .zip(fs::symlink_metadata(path).ok())
        .is_some_and(|(ours, there)| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
}

/// Gives each client that asks a credential of its own. That is activity: whoever has just
/// got one is about to use it.
pub(crate) async fn answer_all(
    listener: UnixListener,
    activity: Activity,
    issue: impl Fn(Version) -> Result<ExecCredential, Error> + Clone + Send + 'static,
) {
    let mut asking = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if asking.len() < MAX_ASKING => {
                if let Ok((stream, _)) = accepted
                    && is_same_user(&stream)
                {
                    let answer = answer(stream, activity.clone(), issue.clone());
                    asking.spawn(timeout(PATIENCE, answer));
                }
            }
            Some(_) = asking.join_next() => {}
        }
    }
}

async fn answer(
    mut stream: UnixStream,
    activity: Activity,
    issue: impl Fn(Version) -> Result<ExecCredential, Error>,
) -> io::Result<()> {
    let mut question = Vec::new();
    let mut limited = (&mut stream).take(MAX_QUESTION as u64);
    limited.read_to_end(&mut question).await?;
    let version = std::str::from_utf8(&question).ok().and_then(Version::of);
    let Some(version) = version else {
        return Ok(());
    };
    // Until it has been told.
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
    async fn giving_a_credential_is_activity_and_nonsense_is_not() {
        let dir = ScratchDir::new();
        let path = dir.path().join("seat");
        let activity = Activity::default();
        let issue = |version| {
            let status = skewbridge_k8s_api::exec_credential::Status::default();
            Ok(ExecCredential::response(version, status))
        };
        let listener = socket::bind(&path).unwrap();
        let _answering = JoinSet::from_iter([answer_all(listener, activity.clone(), issue)]);
        let begun = tokio::time::Instant::now();
        for (after, question, is_answered) in [(40, Version::V1.as_str(), true), (70, "x", false)] {
            tokio::time::sleep_until(begun + Duration::from_secs(after)).await;
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream.write_all(question.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert_eq!(!answer.is_empty(), is_answered, "{question}");
        }
        activity.idle(Duration::from_mins(1)).await;
        assert_eq!(begun.elapsed().as_secs(), 100);
    }

    #[tokio::test]
    async fn seats_of_instances_that_were_killed_are_given_back_and_no_others() {
        let dir = ScratchDir::new();
        let seat = |name: &str| {
            let lock = File::create(dir.path().join(name).with_extension("lock")).unwrap();
            let socket = dir.path().join(name).with_extension("sock");
            (socket::bind(&socket).unwrap(), lock)
        };
        let _alive = seat("alive");
        let (listener, being_started) = seat("being-started");
        being_started.lock().unwrap();
        drop((listener, seat("dead")));
        sweep(dir.path());
        let entries = fs::read_dir(dir.path()).unwrap();
        let mut left: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let expected = [
            "alive.lock",
            "alive.sock",
            "being-started.lock",
            "being-started.sock",
        ];
        assert_eq!(left, expected);
    }
}
