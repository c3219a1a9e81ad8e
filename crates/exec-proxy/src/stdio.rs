//! The standard streams of a plugin.

use std::os::fd::AsFd as _;

use skewbridge_k8s_api::exec_credential::ExecCredential;

use crate::Error;

/// Prints a credential for the client, in one line.
pub(crate) fn print(credential: &ExecCredential) -> Result<(), Error> {
    let json = credential.to_json();
    // Bypasses the buffer of `std::io::Stdout`, in which a key would remain.
    let write = || -> std::io::Result<()> {
        let stdout = std::io::stdout();
        let mut rest = json.expose().as_bytes();
        while !rest.is_empty() {
            let written = rustix::io::write(stdout.as_fd(), rest)?;
            rest = &rest[written..];
        }
        rustix::io::write(stdout.as_fd(), b"\n")?;
        Ok(())
    };
    write().map_err(Error::Output)
}

#[derive(Clone, Copy)]
pub(crate) enum StdStream {
    Stdin,
    Stdout,
    Stderr,
}

/// Replaces standard streams by `/dev/null`, so that a process that reads the other end until
/// EOF does not wait for this one to exit.
pub(crate) fn redirect_to_null(streams: &[StdStream]) {
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null");
    let Ok(null) = null else { return };
    for stream in streams {
        let _ = match stream {
            StdStream::Stdin => rustix::stdio::dup2_stdin(&null),
            StdStream::Stdout => rustix::stdio::dup2_stdout(&null),
            StdStream::Stderr => rustix::stdio::dup2_stderr(&null),
        };
    }
}
