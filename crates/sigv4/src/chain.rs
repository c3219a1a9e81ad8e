//! The sources of credentials: the environment, the keys of the profile, the
//! `credential_process` of the profile. The other sources of AWS' chain need a network.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;
use zeroize::{Zeroize as _, Zeroizing};

use super::profile::{FileKind, Profile};
use super::{Credentials, process};
use crate::{Error, Secret};

/// The largest file of profiles. Files are read as a whole.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Seconds after which keys in files are read again: keys are rotated rarely, and requests are
/// many.
const FILE_REFRESH_SECONDS: u64 = 60;

/// Seconds before its expiration at which a temporary credential is replaced. AWS' programs replace
/// it earlier; a request takes seconds.
const REFRESH_BEFORE_EXPIRY_SECONDS: u64 = 60;

/// The minimum of seconds between two executions of a program, whatever it prints.
const MIN_PROCESS_INTERVAL_SECONDS: u64 = 10;

/// The environment variables that the chain reads.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `AWS_ACCESS_KEY_ID`
    pub access_key_id: Option<String>,
    /// `AWS_SECRET_ACCESS_KEY`
    pub secret_access_key: Option<Secret>,
    /// `AWS_SESSION_TOKEN`
    pub session_token: Option<Secret>,
    /// `AWS_PROFILE`, or the older `AWS_DEFAULT_PROFILE`.
    pub profile: Option<String>,
    /// `AWS_SHARED_CREDENTIALS_FILE`
    pub credentials_file: Option<PathBuf>,
    /// `AWS_CONFIG_FILE`
    pub config_file: Option<PathBuf>,
    /// `AWS_REGION`, or the older `AWS_DEFAULT_REGION`.
    pub region: Option<String>,
    /// `HOME`
    pub home: Option<PathBuf>,
}

impl Environment {
    /// The environment of this process.
    pub fn current() -> Self {
        Self::of(|name| std::env::var_os(name))
    }

    /// Any environment. Empty variables count as absent.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let os = |name: &str| variable(name).filter(|it| !it.is_empty());
        let text = |name: &str| os(name)?.into_string().ok();
        Self {
            access_key_id: text("AWS_ACCESS_KEY_ID"),
            secret_access_key: text("AWS_SECRET_ACCESS_KEY").map(Secret::new),
            session_token: text("AWS_SESSION_TOKEN").map(Secret::new),
            profile: text("AWS_PROFILE").or_else(|| text("AWS_DEFAULT_PROFILE")),
            credentials_file: os("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from),
            config_file: os("AWS_CONFIG_FILE").map(PathBuf::from),
            region: text("AWS_REGION").or_else(|| text("AWS_DEFAULT_REGION")),
            home: os("HOME").map(PathBuf::from),
        }
    }
}

/// Finds credentials, and caches them while they are valid.
#[derive(Debug)]
pub struct Chain {
    environment: Environment,
    /// A profile that was requested by name. The keys of the environment are then ignored.
    profile: Option<String>,
    cached: Mutex<Option<CachedCredentials>>,
}

#[derive(Debug)]
struct CachedCredentials {
    credentials: Arc<Credentials>,
    /// When to search again, in seconds since 1970.
    until: u64,
}

impl Chain {
    /// Searches this environment, and this profile if one is requested.
    pub fn new(environment: Environment, profile: Option<String>) -> Self {
        Self {
            environment,
            profile,
            cached: Mutex::new(None),
        }
    }

    /// The cached credentials, if they need not be searched again at this time (seconds since
    /// 1970).
    pub async fn cached(&self, now: u64) -> Option<Arc<Credentials>> {
        let cached = self.cached.lock().await;
        let cached = cached.as_ref().filter(|cached| now < cached.until);
        cached.map(|cached| cached.credentials.clone())
    }

    /// The credentials that are valid at this time (seconds since 1970). Concurrent callers wait
    /// for one search. A running program is killed when the future that searches is dropped: a
    /// caller that others wait for runs it in a task of its own.
    pub async fn credentials(&self, now: u64) -> Result<Arc<Credentials>, Error> {
        let mut cached = self.cached.lock().await;
        if let Some(cached) = &*cached
            && now < cached.until
        {
            return Ok(cached.credentials.clone());
        }
        let found = match self.find(now).await {
            Ok(found) => found,
            Err(error) => {
                // The cached credentials may still be valid for a while.
                let Some(cached) = &mut *cached else {
                    return Err(error);
                };
                let is_valid = |it: &Credentials| it.expires.is_some_and(|at| now < at);
                if !is_valid(&cached.credentials) {
                    return Err(error);
                }
                cached.until = now + MIN_PROCESS_INTERVAL_SECONDS;
                return Ok(cached.credentials.clone());
            }
        };
        Ok(cached.insert(found).credentials.clone())
    }

    /// The region of the environment, or else of the profile.
    pub fn region(&self) -> Result<Option<String>, Error> {
        if let Some(region) = &self.environment.region {
            return Ok(Some(region.clone()));
        }
        let (profile, _) = self.read()?;
        Ok(profile.get("region").map(str::to_owned))
    }

    fn name(&self) -> &str {
        let name = self.profile.as_ref().or(self.environment.profile.as_ref());
        name.map_or("default", String::as_str)
    }

    async fn find(&self, now: u64) -> Result<CachedCredentials, Error> {
        if self.profile.is_none()
            && let Some(credentials) = self.environment.credentials()?
        {
            return Ok(CachedCredentials {
                credentials: Arc::new(credentials),
                until: u64::MAX,
            });
        }
        let (profile, exists) = self.read()?;
        let name = self.name();
        let wrong = |cause: &str| Error::Profile {
            profile: name.to_owned(),
            cause: cause.to_owned(),
        };
        let is_requested = self.profile.is_some() || self.environment.profile.is_some();
        if !exists && is_requested {
            return Err(wrong(&format!("it is not in {}", self.searched_files())));
        }
        match (
            profile.get("aws_access_key_id"),
            profile.get("aws_secret_access_key"),
        ) {
            (Some(id), Some(secret)) => {
                let token = profile.get("aws_session_token").map(Secret::new);
                return Ok(CachedCredentials {
                    credentials: Arc::new(Credentials {
                        access_key_id: id.to_owned(),
                        secret_access_key: Secret::new(secret),
                        session_token: token,
                        expires: None,
                    }),
                    until: now.saturating_add(FILE_REFRESH_SECONDS),
                });
            }
            (None, None) => {}
            _ => {
                return Err(wrong(
                    "it has only one of aws_access_key_id and aws_secret_access_key",
                ));
            }
        }
        if let Some(line) = profile.get("credential_process") {
            let credentials = process::run(name, line, None).await?;
            return cache_until_expiry(name, credentials, now);
        }
        for setting in [
            "role_arn",
            "sso_session",
            "sso_start_url",
            "web_identity_token_file",
        ] {
            if profile.get(setting).is_some() {
                return Err(Error::Profile {
                    profile: name.to_owned(),
                    cause: format!(
                        "{setting} needs the network; give it a credential_process, such as \
                         `aws configure export-credentials --format process --profile NAME`"
                    ),
                });
            }
        }
        Err(Error::NoCredentials(self.not_found_message()))
    }

    /// Where the search found no credentials, and what to do.
    fn not_found_message(&self) -> String {
        let variables = match &self.profile {
            None => "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
            Some(_) => "AWS_ACCESS_KEY_ID is not used, because a profile is given",
        };
        let (name, files) = (self.name(), self.searched_files());
        format!(
            "{variables}, and the profile {name:?} has neither keys nor a credential_process in \
             {files}; set the variables, run `aws configure`, or give another profile with \
             --sigv4-profile or AWS_PROFILE"
        )
    }

    /// The files that were searched, and which of them are missing.
    fn searched_files(&self) -> String {
        let mut files = Vec::new();
        for (_, path) in self.files() {
            let missing = if path.exists() { "" } else { " (no such file)" };
            files.push(format!("{}{missing}", path.display()));
        }
        if files.is_empty() {
            "any file, because HOME is not set".to_owned()
        } else {
            files.join(" or ")
        }
    }

    /// The profile as merged from both files, and whether one of them has it.
    fn read(&self) -> Result<(Profile, bool), Error> {
        let (mut profile, mut exists) = (Profile::default(), false);
        for (kind, path) in self.files() {
            if let Some(text) = read(&path)? {
                exists |= profile.read(&text, kind, self.name());
            }
        }
        Ok((profile, exists))
    }

    /// The files that profiles are read from.
    fn files(&self) -> impl Iterator<Item = (FileKind, PathBuf)> {
        let environment = &self.environment;
        let files = [
            (
                FileKind::Credentials,
                &environment.credentials_file,
                "credentials",
            ),
            (FileKind::Config, &environment.config_file, "config"),
        ];
        files.into_iter().filter_map(|(kind, configured, name)| {
            let default = || Some(environment.home.as_ref()?.join(".aws").join(name));
            Some((kind, configured.clone().or_else(default)?))
        })
    }
}

impl Environment {
    fn credentials(&self) -> Result<Option<Credentials>, Error> {
        match (&self.access_key_id, &self.secret_access_key) {
            (None, None) => Ok(None),
            (Some(id), Some(secret)) => Ok(Some(Credentials {
                access_key_id: id.clone(),
                secret_access_key: secret.clone(),
                session_token: self.session_token.clone(),
                expires: None,
            })),
            _ => Err(Error::NoCredentials(
                "only one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY is set".to_owned(),
            )),
        }
    }
}

/// Determines how long the credential that a program has printed is cached.
fn cache_until_expiry(
    profile: &str,
    credentials: Credentials,
    now: u64,
) -> Result<CachedCredentials, Error> {
    let until = match credentials.expires {
        // AWS: without an expiration, the program is not executed again.
        None => u64::MAX,
        Some(end) if end <= now => {
            return Err(Error::Process {
                profile: profile.to_owned(),
                cause: "it prints a credential that has expired".to_owned(),
            });
        }
        Some(end) => (end.saturating_sub(REFRESH_BEFORE_EXPIRY_SECONDS))
            .max(now.saturating_add(MIN_PROCESS_INTERVAL_SECONDS))
            .min(end),
    };
    Ok(CachedCredentials {
        credentials: Arc::new(credentials),
        until,
    })
}

/// The text of a file, or `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Zeroizing<String>>, Error> {
    let failed = |cause: String| Error::File {
        path: path.to_owned(),
        cause,
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    let length = file.metadata().map_err(|it| failed(it.to_string()))?.len();
    // A buffer that grows leaves copies in memory.
    let room = usize::try_from(length.min(MAX_FILE_BYTES) + 1).unwrap_or_default();
    let mut bytes = Vec::with_capacity(room);
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    if read.is_err() || bytes.len() as u64 > MAX_FILE_BYTES {
        bytes.zeroize();
        let cause = read.err().map_or_else(
            || format!("it is longer than {MAX_FILE_BYTES} bytes"),
            |error| error.to_string(),
        );
        return Err(failed(cause));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        Err(error) => {
            error.into_bytes().zeroize();
            Err(failed("it is not UTF-8".to_owned()))
        }
    }
}
