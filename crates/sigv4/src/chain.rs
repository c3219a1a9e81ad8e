//! Where credentials are looked for: the environment, the profile's keys, the
//! profile's `credential_process`. The other links of AWS' chain need a network.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;
use zeroize::{Zeroize as _, Zeroizing};

use super::profile::{Kind, Profile};
use super::{Credentials, process};
use crate::{Error, Secret};

/// More than anybody's profiles; the file is read whole.
const MAX_FILE: u64 = 1024 * 1024;

/// Seconds after which keys in files are looked at again: they are rotated now and
/// then, and requests are many.
const LOOK_AGAIN: u64 = 60;

/// Seconds before its end at which a lent credential is replaced. AWS' programs
/// take longer; a request needs seconds.
const REPLACE_BEFORE: u64 = 60;

/// Seconds between two runs of a program, whatever it prints.
const RUN_AGAIN: u64 = 10;

/// What the environment says.
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
    /// That of this process.
    pub fn current() -> Self {
        Self::of(|name| std::env::var_os(name))
    }

    /// Any; empty variables count as absent.
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

/// Finds credentials, and keeps them as long as they are good.
#[derive(Debug)]
pub struct Chain {
    environment: Environment,
    /// Asked for by name: then the environment's keys do not count.
    profile: Option<String>,
    kept: Mutex<Option<Kept>>,
}

#[derive(Debug)]
struct Kept {
    credentials: Arc<Credentials>,
    /// Seconds since 1970: when to look again.
    until: u64,
}

impl Chain {
    /// Looks in this environment, and for this profile if one is asked for.
    pub fn new(environment: Environment, profile: Option<String>) -> Self {
        Self {
            environment,
            profile,
            kept: Mutex::new(None),
        }
    }

    /// What was found before, if it is good now (seconds since 1970) and need not be looked
    /// for again.
    pub async fn known(&self, now: u64) -> Option<Arc<Credentials>> {
        let kept = self.kept.lock().await;
        let kept = kept.as_ref().filter(|kept| now < kept.until);
        kept.map(|kept| kept.credentials.clone())
    }

    /// The credentials that are good now (seconds since 1970). However many ask,
    /// one looks. A program that is run is killed when whoever looks gives up: who has
    /// others wait for it looks in a task of its own.
    pub async fn credentials(&self, now: u64) -> Result<Arc<Credentials>, Error> {
        let mut kept = self.kept.lock().await;
        if let Some(kept) = &*kept
            && now < kept.until
        {
            return Ok(kept.credentials.clone());
        }
        let found = match self.find(now).await {
            Ok(found) => found,
            Err(error) => {
                // What was found before may be good for a while yet.
                let Some(kept) = &mut *kept else {
                    return Err(error);
                };
                let good = |it: &Credentials| it.expires.is_some_and(|at| now < at);
                if !good(&kept.credentials) {
                    return Err(error);
                }
                kept.until = now + RUN_AGAIN;
                return Ok(kept.credentials.clone());
            }
        };
        Ok(kept.insert(found).credentials.clone())
    }

    /// The region: the environment's, or else the profile's.
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

    async fn find(&self, now: u64) -> Result<Kept, Error> {
        if self.profile.is_none()
            && let Some(credentials) = self.environment.credentials()?
        {
            return Ok(Kept {
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
        let asked_for = self.profile.is_some() || self.environment.profile.is_some();
        if !exists && asked_for {
            return Err(wrong(&format!("it is not in {}", self.searched_files())));
        }
        match (
            profile.get("aws_access_key_id"),
            profile.get("aws_secret_access_key"),
        ) {
            (Some(id), Some(secret)) => {
                let token = profile.get("aws_session_token").map(Secret::new);
                return Ok(Kept {
                    credentials: Arc::new(Credentials {
                        access_key_id: id.to_owned(),
                        secret_access_key: Secret::new(secret),
                        session_token: token,
                        expires: None,
                    }),
                    until: now.saturating_add(LOOK_AGAIN),
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
            return kept(name, credentials, now);
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
        Err(Error::NoCredentials(self.nowhere()))
    }

    /// Where credentials were looked for in vain, and what to do.
    fn nowhere(&self) -> String {
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

    /// The profile as both files have it, and whether either has.
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
    fn files(&self) -> impl Iterator<Item = (Kind, PathBuf)> {
        let environment = &self.environment;
        let files = [
            (
                Kind::Credentials,
                &environment.credentials_file,
                "credentials",
            ),
            (Kind::Config, &environment.config_file, "config"),
        ];
        files.into_iter().filter_map(|(kind, told, usual)| {
            let usual = || Some(environment.home.as_ref()?.join(".aws").join(usual));
            Some((kind, told.clone().or_else(usual)?))
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

/// How long what a program has printed is kept.
fn kept(profile: &str, credentials: Credentials, now: u64) -> Result<Kept, Error> {
    let until = match credentials.expires {
        // AWS: without an end, it is not asked for again.
        None => u64::MAX,
        Some(end) if end <= now => {
            return Err(Error::Process {
                profile: profile.to_owned(),
                cause: "it prints a credential that has expired".to_owned(),
            });
        }
        Some(end) => (end.saturating_sub(REPLACE_BEFORE))
            .max(now.saturating_add(RUN_AGAIN))
            .min(end),
    };
    Ok(Kept {
        credentials: Arc::new(credentials),
        until,
    })
}

/// The text of a file; nothing where there is none.
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
    // A buffer that grows leaves copies behind.
    let room = usize::try_from(length.min(MAX_FILE) + 1).unwrap_or_default();
    let mut bytes = Vec::with_capacity(room);
    let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
    if read.is_err() || bytes.len() as u64 > MAX_FILE {
        bytes.zeroize();
        let cause = read.err().map_or_else(
            || format!("it is longer than {MAX_FILE} bytes"),
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
