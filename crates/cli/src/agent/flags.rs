//! The flags of `agent`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use skewbridge_pkcs11::Selection;

use crate::flag_values;

const HELP: &str = "\
A credential plugin that proxies the client's requests (KEP-2718). It is
configured in a kubeconfig, and started by clients:

  users:
  - name: jane
    user:
      exec:
        apiVersion: client.authentication.k8s.io/v1
        command: skewbridge
        args:
        - agent
        - --signer=pkcs11
        - --pkcs11-module=/usr/lib/softhsm/libsofthsm2.so
        - --pkcs11-uri=pkcs11:token=jane;object=kubernetes
        provideClusterInfo: true
        interactiveMode: IfAvailable

Clients without support for it (kubectl, helm, k9s) are started by `skewbridge run`:

  skewbridge run -- kubectl get pods

pkcs11 and file set the key of the TLS handshake; only one of them can be given. The
others change each request, in the given order.";

// The flags of `agent`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// How to authenticate the user; may be repeated
    #[arg(long, value_name = "NAME", required = true, value_enum)]
    pub(crate) signer: Vec<Signer>,

    /// pkcs11: the PKCS#11 library of the token
    #[arg(long, value_name = "FILE", help_heading = "Signer pkcs11")]
    pub(crate) pkcs11_module: Option<PathBuf>,
    /// pkcs11: token and key as a URI (RFC 7512), such as pkcs11:token=jane;object=kubernetes
    #[arg(long, value_name = "URI", help_heading = "Signer pkcs11")]
    pub(crate) pkcs11_uri: Option<Uri>,
    /// pkcs11: the label of the token
    #[arg(long, value_name = "LABEL", help_heading = "Signer pkcs11")]
    pub(crate) pkcs11_token: Option<String>,
    /// pkcs11: the serial number of the token
    #[arg(long, value_name = "NUMBER", help_heading = "Signer pkcs11")]
    pub(crate) pkcs11_serial: Option<String>,
    /// pkcs11: the label of key and certificate
    #[arg(long, value_name = "LABEL", help_heading = "Signer pkcs11")]
    pub(crate) pkcs11_object: Option<String>,
    /// pkcs11: the identifier of key and certificate, in hexadecimal
    #[arg(long, value_name = "HEX", value_parser = hex, help_heading = "Signer pkcs11")]
    pub(crate) pkcs11_id: Option<Id>,
    /// pkcs11: a file whose first line is the PIN; without it, the PIN is read from the terminal
    #[arg(long, value_name = "FILE", help_heading = "Signer pkcs11")]
    pub(crate) pkcs11_pin_file: Option<PathBuf>,
    /// pkcs11: a program that prints the PIN; its argument is the prompt
    #[arg(
        long,
        value_name = "PROGRAM",
        conflicts_with = "pkcs11_pin_file",
        help_heading = "Signer pkcs11"
    )]
    pub(crate) pkcs11_askpass: Option<OsString>,

    /// file: the client certificate, with its intermediates; pkcs11: the same, if it is not in
    /// the token
    #[arg(long, value_name = "FILE", help_heading = "Signer file")]
    pub(crate) client_certificate: Option<PathBuf>,
    /// file: the key of the certificate
    #[arg(long, value_name = "FILE", help_heading = "Signer file")]
    pub(crate) client_key: Option<PathBuf>,

    /// headers: a file with lines of NAME: VALUE; reloaded when it changes
    #[arg(long, value_name = "FILE", help_heading = "Signer headers")]
    pub(crate) headers_file: Option<PathBuf>,
    /// headers: a program that prints lines of NAME: VALUE
    #[arg(long, value_name = "PROGRAM", help_heading = "Signer headers")]
    pub(crate) headers_command: Option<OsString>,
    /// headers: an argument for the program; may be repeated
    #[arg(
        long,
        value_name = "ARG",
        allow_hyphen_values = true,
        help_heading = "Signer headers"
    )]
    pub(crate) headers_command_arg: Vec<OsString>,
    /// headers: how long the output of the program is cached
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = flag_values::duration, help_heading = "Signer headers")]
    pub(crate) headers_refresh: Duration,

    /// sigv4: the region [default: that of the environment or of the profile]
    #[arg(long, value_name = "NAME", help_heading = "Signer sigv4")]
    pub(crate) sigv4_region: Option<String>,
    /// sigv4: the service name in signatures
    #[arg(
        long,
        value_name = "NAME",
        default_value = "execute-api",
        help_heading = "Signer sigv4"
    )]
    pub(crate) sigv4_service: String,
    /// sigv4: the profile [default: the keys or the profile of the environment]
    #[arg(long, value_name = "NAME", help_heading = "Signer sigv4")]
    pub(crate) sigv4_profile: Option<String>,

    /// http-signature: a private key in PEM (Ed25519, ECDSA with P-256 or P-384)
    #[arg(long, value_name = "FILE", help_heading = "Signer http-signature")]
    pub(crate) http_signature_key: Option<PathBuf>,
    /// http-signature: a file with a shared secret instead, for HMAC
    #[arg(long, value_name = "FILE", help_heading = "Signer http-signature")]
    pub(crate) http_signature_secret: Option<PathBuf>,
    /// http-signature: the name of the key
    #[arg(long, value_name = "NAME", help_heading = "Signer http-signature")]
    pub(crate) http_signature_key_id: Option<String>,
    /// http-signature: an additional header to sign; may be repeated
    #[arg(long, value_name = "NAME", help_heading = "Signer http-signature")]
    pub(crate) http_signature_header: Vec<String>,

    /// Where clients connect
    #[arg(long, value_name = "WHERE", default_value = "unix", value_enum)]
    pub(crate) listen: Listen,
    /// How long to run without requests
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = flag_values::duration)]
    pub(crate) idle_timeout: Duration,
    /// Maximum size of a body that a signer reads, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = skewbridge_exec_proxy::forward::DEFAULT_MAX_BODY_BYTES)]
    pub(crate) max_signed_body: usize,
    /// Share one process between all clients of the same configuration; it outlives them
    #[arg(long)]
    pub(crate) shared: bool,
    /// Serve a client that has no lock file, until --idle-timeout
    #[arg(long)]
    pub(crate) without_lock_file: bool,
    /// Log verbosity on standard error
    #[arg(long, value_name = "LEVEL", default_value_t = 0)]
    pub(crate) v: u8,
    /// This is the shared process
    #[arg(long, hide = true)]
    pub(crate) shared_instance: bool,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// A way to authenticate the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Signer {
    /// A key in a PKCS#11 token (smart card, security key, HSM), in the TLS handshake
    Pkcs11,
    /// A certificate and its key in files, in the TLS handshake
    File,
    /// Headers from a file or a command, on each request
    Headers,
    /// AWS Signature Version 4, on each request
    Sigv4,
    /// HTTP Message Signatures (RFC 9421), on each request
    HttpSignature,
}

/// Where clients connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listen {
    /// A socket in a private directory
    Unix,
    /// A port of 127.0.0.1
    Tcp,
}

/// A URI of RFC 7512, or why it is not one. clap repeats a value that does not parse, and the
/// value may contain a PIN; so parsing always succeeds, and the error is reported later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uri(pub(crate) Result<Selection, String>);

impl From<String> for Uri {
    fn from(text: String) -> Self {
        Self(text.parse())
    }
}

/// The identifier of an object in a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Id(pub(crate) Vec<u8>);

/// Pairs of digits, as `pkcs11-tool --id` has them.
fn hex(text: &str) -> Result<Id, String> {
    let wrong = || format!("{text:?} is not hexadecimal; write it like 01a0");
    let is_even = text.len().is_multiple_of(2) && !text.is_empty() && text.is_ascii();
    if !is_even {
        return Err(wrong());
    }
    let pairs = text.as_bytes().chunks_exact(2);
    let bytes = pairs.map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    bytes.collect::<Option<_>>().map(Id).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_hexadecimal() {
        assert_eq!(hex("01a0"), Ok(Id(vec![1, 0xa0])));
        for wrong in ["", "1", "0x", "zz", "é1"] {
            assert!(hex(wrong).is_err(), "{wrong}");
        }
    }
}
