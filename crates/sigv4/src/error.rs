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
        /// Its name.
        profile: String,
        /// What is wrong with it, and what to do.
        cause: String,
    },
    /// A file of AWS settings cannot be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// A program that was to print a credential has not.
    #[error("credential_process of the AWS profile {profile:?}: {cause}")]
    Process {
        /// Whose it is.
        profile: String,
        /// What went wrong.
        cause: String,
    },
}
