//! From flags to signers.

use std::sync::Arc;

use http::HeaderName;
use skewbridge_exec_proxy::{ClientKey, ExecInfo, ExecProxy, Listen};
use skewbridge_exec_proxy_signers::{FileKey, Headers, HttpSignature, KeyFile, SigV4, Source};
use skewbridge_http_signature as http_signature;
use skewbridge_pkcs11::{PinSource, Selection, TokenConfig, TokenKey};
use skewbridge_sigv4 as sigv4;

use super::AgentError;
use super::flags::{self, Flags, Signer};

/// A proxy, and the checks and keys that its signers need before it starts.
pub(super) struct Signers {
    proxy: ExecProxy,
    token: Option<TokenConfig>,
    sigv4: Option<SigV4>,
}

impl Signers {
    /// Resolves the credentials that requests will be signed with. Without them every request
    /// fails, and kubectl does not show the reason.
    pub(super) async fn check_credentials(&self) -> Result<(), AgentError> {
        let Some(sigv4) = &self.sigv4 else {
            return Ok(());
        };
        let checked = sigv4.check().await;
        checked.map_err(|cause| AgentError::Failed(format!("--signer=sigv4: {cause}")))
    }

    /// The proxy with all of its signers. This is the last step, because it may prompt for a
    /// PIN.
    pub(super) fn open(self) -> Result<ExecProxy, AgentError> {
        match self.token {
            None => Ok(self.proxy),
            Some(config) => {
                let key = TokenKey::open(config);
                let key = key.map_err(|error| AgentError::Failed(error.to_string()))?;
                Ok(self.proxy.key(Arc::new(key)))
            }
        }
    }
}

/// The signers of these flags, or all errors of the flags.
pub(super) fn signers(flags: &Flags, exec_info: &ExecInfo) -> Result<Signers, AgentError> {
    let mut problems = misplaced(flags);
    let mut proxy = ExecProxy::new()
        .listen(match flags.listen {
            flags::Listen::Unix => Listen::Unix,
            flags::Listen::Tcp => Listen::Tcp,
        })
        .idle_timeout(flags.idle_timeout)
        .body_limit(flags.max_signed_body);
    if flags.idle_timeout.is_zero() {
        problems.push("--idle-timeout: must be more than 0".to_owned());
    }
    let (mut token, mut aws) = (None, None);
    for signer in &flags.signer {
        let built = match signer {
            Signer::Pkcs11 => match token_config(flags, exec_info) {
                Ok(config) => {
                    token = Some(config);
                    continue;
                }
                Err(problem) => Err(problem),
            },
            Signer::File => file(flags).map(|key| SignerPart::Key(Arc::new(key))),
            Signer::Headers => headers(flags).map(|it| SignerPart::Modifier(Box::new(it))),
            Signer::Sigv4 => sigv4(flags).map(|it| {
                aws = Some(it.clone());
                SignerPart::Modifier(Box::new(it))
            }),
            Signer::HttpSignature => {
                http_signature(flags).map(|it| SignerPart::Modifier(Box::new(it)))
            }
        };
        match built {
            Ok(SignerPart::Key(key)) => proxy = proxy.key(key),
            Ok(SignerPart::Modifier(modifier)) => proxy = proxy.boxed_modifier(modifier),
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(AgentError::Usage(problems));
    }
    Ok(Signers {
        proxy,
        token,
        sigv4: aws,
    })
}

enum SignerPart {
    Key(Arc<dyn ClientKey>),
    Modifier(Box<dyn skewbridge_exec_proxy::RequestModifier>),
}

/// Flags of signers that are not selected, and incompatible signers.
fn misplaced(flags: &Flags) -> Vec<String> {
    let has = |signer| flags.signer.contains(&signer);
    let rows = [
        (
            "--pkcs11-module",
            flags.pkcs11_module.is_some(),
            Signer::Pkcs11,
            "pkcs11",
        ),
        (
            "--pkcs11-uri",
            flags.pkcs11_uri.is_some(),
            Signer::Pkcs11,
            "pkcs11",
        ),
        (
            "--pkcs11-pin-file",
            flags.pkcs11_pin_file.is_some(),
            Signer::Pkcs11,
            "pkcs11",
        ),
        (
            "--client-key",
            flags.client_key.is_some(),
            Signer::File,
            "file",
        ),
        (
            "--headers-file",
            flags.headers_file.is_some(),
            Signer::Headers,
            "headers",
        ),
        (
            "--headers-command",
            flags.headers_command.is_some(),
            Signer::Headers,
            "headers",
        ),
        (
            "--sigv4-region",
            flags.sigv4_region.is_some(),
            Signer::Sigv4,
            "sigv4",
        ),
        (
            "--sigv4-profile",
            flags.sigv4_profile.is_some(),
            Signer::Sigv4,
            "sigv4",
        ),
        (
            "--http-signature-key",
            flags.http_signature_key.is_some(),
            Signer::HttpSignature,
            "http-signature",
        ),
        (
            "--http-signature-secret",
            flags.http_signature_secret.is_some(),
            Signer::HttpSignature,
            "http-signature",
        ),
    ];
    let mut problems = Vec::new();
    for (flag, given, signer, name) in rows {
        if given && !has(signer) {
            problems.push(format!("{flag}: requires --signer={name}"));
        }
    }
    if flags.client_certificate.is_some() && !has(Signer::File) && !has(Signer::Pkcs11) {
        problems.push("--client-certificate: requires --signer=file or pkcs11".to_owned());
    }
    if has(Signer::File) && has(Signer::Pkcs11) {
        problems.push(
            "--signer: pkcs11 and file cannot be combined: a TLS handshake has one key".to_owned(),
        );
    }
    for (place, signer) in flags.signer.iter().enumerate() {
        if flags.signer[..place].contains(signer) {
            problems.push("--signer: each signer can be given only once".to_owned());
        }
    }
    problems
}

fn token_config(flags: &Flags, exec_info: &ExecInfo) -> Result<TokenConfig, String> {
    if !skewbridge_pkcs11::LOADS_MODULES {
        return Err(
            "--signer=pkcs11: this program is static, and cannot load a PKCS#11 module; install \
             the dynamic program (skewbridge-VERSION-linux-ARCH.tar.gz, or the Debian package)"
                .to_owned(),
        );
    }
    let named = Selection {
        token: flags.pkcs11_token.clone(),
        serial: flags.pkcs11_serial.clone(),
        object: flags.pkcs11_object.clone(),
        id: flags.pkcs11_id.clone().map(|id| id.0),
        module: flags.pkcs11_module.clone(),
        pin_file: flags.pkcs11_pin_file.clone(),
        ..Selection::default()
    };
    let uri = match &flags.pkcs11_uri {
        Some(uri) => uri
            .0
            .clone()
            .map_err(|wrong| format!("--pkcs11-uri: {wrong}"))?,
        None => Selection::default(),
    };
    let which = named.or(uri);
    let module = which.module.clone().ok_or(
        "--signer=pkcs11: requires --pkcs11-module=FILE, such as /usr/lib/x86_64-linux-gnu/\
         opensc-pkcs11.so",
    )?;
    let pin = match (&flags.pkcs11_askpass, &which.pin_file) {
        (Some(program), _) => PinSource::Askpass(program.clone()),
        (None, Some(path)) => PinSource::File(path.clone()),
        (None, None) if exec_info.interactive => PinSource::Prompt,
        (None, None) => PinSource::Unavailable,
    };
    let certificate = match &flags.client_certificate {
        Some(path) => Some(
            FileKey::read_certificate(path)
                .map_err(|cause| format!("--client-certificate: {cause}"))?,
        ),
        None => None,
    };
    Ok(TokenConfig {
        module,
        which,
        pin,
        certificate,
    })
}

fn file(flags: &Flags) -> Result<FileKey, String> {
    let (Some(certificate), Some(key)) = (&flags.client_certificate, &flags.client_key) else {
        return Err(
            "--signer=file: requires --client-certificate=FILE and --client-key=FILE".to_owned(),
        );
    };
    FileKey::new(certificate.clone(), key.clone())
        .map_err(|error| format!("--signer=file: {error}"))
}

fn headers(flags: &Flags) -> Result<Headers, String> {
    let source = match (&flags.headers_file, &flags.headers_command) {
        (Some(path), None) => Source::File(path.clone()),
        (None, Some(program)) => Source::Command {
            program: program.clone(),
            arguments: flags.headers_command_arg.clone(),
            max_age: flags.headers_refresh,
        },
        _ => {
            return Err("--signer=headers: requires one of --headers-file=FILE and \
                 --headers-command=PROGRAM"
                .to_owned());
        }
    };
    Ok(Headers::new(source))
}

fn sigv4(flags: &Flags) -> Result<SigV4, String> {
    let environment = sigv4::Environment::current();
    let chain = sigv4::Chain::new(environment, flags.sigv4_profile.clone());
    let region = match &flags.sigv4_region {
        Some(region) => Some(region.clone()),
        None => chain
            .region()
            .map_err(|error| format!("--signer=sigv4: {error}"))?,
    };
    let region = region
        .ok_or("--signer=sigv4: no region is configured; set --sigv4-region=NAME or $AWS_REGION")?;
    let signer = sigv4::Signer::new(region, &*flags.sigv4_service);
    Ok(SigV4::new(signer, chain))
}

fn http_signature(flags: &Flags) -> Result<HttpSignature, String> {
    let (path, kind, flag) = match (&flags.http_signature_key, &flags.http_signature_secret) {
        (Some(path), None) => (path, KeyFile::Pem, "--http-signature-key"),
        (None, Some(path)) => (path, KeyFile::Secret, "--http-signature-secret"),
        _ => {
            return Err(
                "--signer=http-signature: requires one of --http-signature-key=FILE and \
                        --http-signature-secret=FILE"
                    .to_owned(),
            );
        }
    };
    let id = flags.http_signature_key_id.as_ref().ok_or(
        "--signer=http-signature: requires --http-signature-key-id=NAME, the name of the key at \
         the server",
    )?;
    let key = HttpSignature::read_key(path, kind).map_err(|cause| format!("{flag}: {cause}"))?;
    let mut also = Vec::new();
    for name in &flags.http_signature_header {
        let name = HeaderName::try_from(name).map_err(|_| {
            format!("--http-signature-header: {name:?} is not the name of a header")
        })?;
        also.push(name);
    }
    let signer = http_signature::Signer::new(key, id)
        .map_err(|error| format!("--http-signature-key-id: {error}"))?;
    Ok(HttpSignature::new(signer.also_cover(also)))
}
