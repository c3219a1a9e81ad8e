//! Errors of signing and of the credential chain.

use std::path::PathBuf;

/// Why a request cannot be signed, or a credential cannot be used. No text repeats a secret.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be signed as it is.
    #[error("the request cannot be signed: {0}")]
    Request(&'static str),
    /// The cryptographic library failed.
    #[error("signing failed")]
    Signing,
    /// No source has a credential.
    #[error("no AWS credentials: {0}")]
    NoCredentials(String),
    /// A profile cannot be used.
    #[error("the AWS profile {profile:?}: {cause}")]
    Profile {
        /// The name of the profile.
        profile: String,
        /// What is wrong with the profile, and what to do.
        cause: String,
    },
    /// A file of AWS settings cannot be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// Why it cannot be read.
        cause: String,
    },
    /// A program did not print a credential.
    #[error("credential_process of the AWS profile {profile:?}: {cause}")]
    Process {
        /// The profile that names the program.
        profile: String,
        /// What the program did instead.
        cause: String,
    },
}
