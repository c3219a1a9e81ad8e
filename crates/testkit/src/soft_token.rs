//! `SoftHSM2` tokens, if it is installed: keys that exist only in a token.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rcgen::PublicKeyData;
use rustls_pki_types::CertificateDer;

use crate::files::ScratchDir;

/// The library paths of Debian and other distributions.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib/x86_64-linux-gnu/softhsm/libsofthsm2.so",
    "/usr/lib64/softhsm/libsofthsm2.so",
    "/usr/local/lib/softhsm/libsofthsm2.so",
];

/// The programs that create tokens and keys.
const PROGRAMS: [&str; 2] = ["softhsm2-util", "pkcs11-tool"];

/// A token in its own directory.
#[derive(Debug)]
pub struct SoftToken {
    dir: ScratchDir,
    library: PathBuf,
    label: String,
    pin: String,
}

/// The public half of a key in a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenPublicKey {
    /// A point on P-256.
    P256(Vec<u8>),
    /// A point on P-384.
    P384(Vec<u8>),
    /// An `RSAPublicKey` in DER.
    Rsa(Vec<u8>),
}

impl PublicKeyData for TokenPublicKey {
    fn der_bytes(&self) -> &[u8] {
        let (Self::P256(bytes) | Self::P384(bytes) | Self::Rsa(bytes)) = self;
        bytes
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        match self {
            Self::P256(_) => &rcgen::PKCS_ECDSA_P256_SHA256,
            Self::P384(_) => &rcgen::PKCS_ECDSA_P384_SHA384,
            Self::Rsa(_) => &rcgen::PKCS_RSA_SHA256,
        }
    }
}

impl SoftToken {
    /// Creates a token; `None` if `SoftHSM2` is not installed.
    ///
    /// # Panics
    /// In CI, where it must be installed.
    pub fn new(label: &str, pin: &str) -> Option<Self> {
        let library = LIBRARIES.iter().map(PathBuf::from).find(|it| it.exists());
        let runs = |program: &&str| Command::new(program).arg("--help").output().is_ok();
        let Some(library) = library.filter(|_| PROGRAMS.iter().all(runs)) else {
            let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
            assert!(!ci, "softhsm2 and opensc are not installed");
            eprintln!("skipped: softhsm2 and opensc are not installed");
            return None;
        };
        let dir = ScratchDir::new();
        fs::create_dir(dir.path().join("tokens")).unwrap();
        let directory = dir.path().join("tokens");
        dir.write(
            "softhsm2.conf",
            format!(
                "directories.tokendir = {}\nlog.level = ERROR\n",
                directory.display()
            ),
        );
        let token = Self {
            dir,
            library,
            label: label.to_owned(),
            pin: pin.to_owned(),
        };
        token.initialize(label, pin);
        Some(token)
    }

    fn initialize(&self, label: &str, pin: &str) {
        let arguments = ["--init-token", "--free", "--label", label, "--pin", pin];
        let arguments = [&arguments[..], &["--so-pin", "12345678"]].concat();
        self.run("softhsm2-util", &arguments);
    }

    /// The value of `SOFTHSM2_CONF` for programs that use the token.
    pub fn configuration(&self) -> PathBuf {
        self.dir.path().join("softhsm2.conf")
    }

    /// The library to load.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Generates a key in the token, of a type of `pkcs11-tool`: `EC:prime256v1`,
    /// `EC:secp384r1`, `rsa:2048`.
    pub fn generate(&self, kind: &str, label: &str, id: &str) -> TokenPublicKey {
        let output = self.tool(&[
            "--keypairgen",
            "--key-type",
            kind,
            "--label",
            label,
            "--id",
            id,
        ]);
        let point = output.split_once("EC_POINT:   ").map(|(_, rest)| {
            let digits: Vec<u8> = rest.bytes().take_while(u8::is_ascii_hexdigit).collect();
            let pairs = digits.chunks_exact(2);
            let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            // Without the header of the OCTET STRING around it.
            pairs.map(byte).skip(2).collect::<Vec<u8>>()
        });
        match (kind, point) {
            ("EC:prime256v1", Some(point)) => TokenPublicKey::P256(point),
            ("EC:secp384r1", Some(point)) => TokenPublicKey::P384(point),
            _ => {
                let path = self.dir.path().join("public.der");
                let path = path.to_str().unwrap();
                self.tool(&["--read-object", "--type", "pubkey", "--id", id, "-o", path]);
                // After the header of the SubjectPublicKeyInfo of an RSA key.
                TokenPublicKey::Rsa(fs::read(path).unwrap().split_off(24))
            }
        }
    }

    /// Stores the certificate of a key.
    pub fn store(&self, certificate: &CertificateDer<'_>, label: &str, id: &str) {
        let path = self.dir.write("certificate.der", certificate);
        let path = path.to_str().unwrap();
        self.tool(&[
            "--write-object",
            path,
            "--type",
            "cert",
            "--label",
            label,
            "--id",
            id,
        ]);
    }

    /// Removes the token.
    pub fn remove(&self) {
        fs::rename(self.dir.path().join("tokens"), self.dir.path().join("away")).unwrap();
        fs::create_dir(self.dir.path().join("tokens")).unwrap();
    }

    /// Removes the token and inserts another one with another serial number and no key.
    pub fn replace(&self, label: &str, pin: &str) {
        self.remove();
        self.initialize(label, pin);
    }

    /// Inserts the removed token again.
    pub fn insert_again(&self) {
        fs::remove_dir_all(self.dir.path().join("tokens")).unwrap();
        fs::rename(self.dir.path().join("away"), self.dir.path().join("tokens")).unwrap();
    }

    fn tool(&self, arguments: &[&str]) -> String {
        let library = self.library.to_str().unwrap();
        let mut all = vec!["--module", library, "--token-label", &self.label, "--login"];
        all.extend(["--pin", &self.pin]);
        all.extend(arguments);
        self.run("pkcs11-tool", &all)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = Command::new(program)
            .args(arguments)
            .env("SOFTHSM2_CONF", self.configuration())
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
