//! Keys and algorithms (RFC 9421, 3.3). Private keys are held by the cryptographic library,
//! which zeroes them when they are dropped; the buffers they are parsed from are zeroed here.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PSS_2048_8192_SHA512, VerificationAlgorithm,
};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::{PemObject, SectionKind};
use skewbridge_k8s_api::pem::PrivateKey;
use zeroize::Zeroize as _;

use crate::Error;

/// A signature algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// `ed25519`
    Ed25519,
    /// `ecdsa-p256-sha256`
    EcdsaP256Sha256,
    /// `ecdsa-p384-sha384`
    EcdsaP384Sha384,
    /// `hmac-sha256`
    HmacSha256,
    /// `rsa-pss-sha512`: only for verification.
    RsaPssSha512,
    /// `rsa-v1_5-sha256`: only for verification.
    RsaV15Sha256,
}

const ALL: [Algorithm; 6] = [
    Algorithm::Ed25519,
    Algorithm::EcdsaP256Sha256,
    Algorithm::EcdsaP384Sha384,
    Algorithm::HmacSha256,
    Algorithm::RsaPssSha512,
    Algorithm::RsaV15Sha256,
];

/// A shared secret is at least as long as the signature (RFC 2104, 3).
pub const MIN_HMAC_SECRET_BYTES: usize = 32;

impl Algorithm {
    /// The name in the registry of RFC 9421, 6.2.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ed25519 => "ed25519",
            Self::EcdsaP256Sha256 => "ecdsa-p256-sha256",
            Self::EcdsaP384Sha384 => "ecdsa-p384-sha384",
            Self::HmacSha256 => "hmac-sha256",
            Self::RsaPssSha512 => "rsa-pss-sha512",
            Self::RsaV15Sha256 => "rsa-v1_5-sha256",
        }
    }

    /// The verification algorithm, if it uses a public key.
    fn verification(self) -> Option<&'static dyn VerificationAlgorithm> {
        match self {
            Self::Ed25519 => Some(&ED25519),
            Self::EcdsaP256Sha256 => Some(&ECDSA_P256_SHA256_FIXED),
            Self::EcdsaP384Sha384 => Some(&ECDSA_P384_SHA384_FIXED),
            Self::RsaPssSha512 => Some(&RSA_PSS_2048_8192_SHA512),
            Self::RsaV15Sha256 => Some(&RSA_PKCS1_2048_8192_SHA256),
            Self::HmacSha256 => None,
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = ALL.into_iter().find(|it| it.as_str() == text);
        found.ok_or_else(|| {
            let names: Vec<_> = ALL.iter().map(|it| it.as_str()).collect();
            Error::Key(format!("the algorithm is one of {}", names.join(", ")))
        })
    }
}

/// A key that signs.
pub struct SigningKey(Signing);

enum Signing {
    Ed25519(Ed25519KeyPair),
    Ecdsa(Algorithm, EcdsaKeyPair),
    Hmac(Box<hmac::Key>),
}

impl SigningKey {
    /// Parses a private key in PEM: PKCS#8, or for ECDSA also SEC 1. The type of the key
    /// determines the algorithm.
    pub fn from_pem(pem: &[u8]) -> Result<Self, Error> {
        let key = PrivateKey::from_pem(pem)
            .ok_or_else(|| Error::Key("there is no private key in PEM".to_owned()))?;
        let found = Self::from_der(&key.as_der());
        found.ok_or_else(|| {
            Error::Key("it is neither Ed25519 nor ECDSA with P-256 or P-384".to_owned())
        })
    }

    fn from_der(key: &PrivateKeyDer<'_>) -> Option<Self> {
        let curves = [
            (Algorithm::EcdsaP256Sha256, &ECDSA_P256_SHA256_FIXED_SIGNING),
            (Algorithm::EcdsaP384Sha384, &ECDSA_P384_SHA384_FIXED_SIGNING),
        ];
        let ecdsa = |pair: &dyn Fn(_) -> Option<EcdsaKeyPair>| {
            curves
                .into_iter()
                .find_map(|(algorithm, curve)| Some(Self(Signing::Ecdsa(algorithm, pair(curve)?))))
        };
        match key {
            PrivateKeyDer::Pkcs8(key) => {
                let der = key.secret_pkcs8_der();
                if let Ok(pair) = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der) {
                    return Some(Self(Signing::Ed25519(pair)));
                }
                ecdsa(&|curve| EcdsaKeyPair::from_pkcs8(curve, der).ok())
            }
            PrivateKeyDer::Sec1(key) => ecdsa(&|curve| {
                EcdsaKeyPair::from_private_key_der(curve, key.secret_sec1_der()).ok()
            }),
            _ => None,
        }
    }

    /// A shared secret.
    pub fn hmac(secret: &[u8]) -> Result<Self, Error> {
        Ok(Self(Signing::Hmac(hmac_key(secret)?)))
    }

    /// The algorithm of its signatures.
    pub fn algorithm(&self) -> Algorithm {
        match &self.0 {
            Signing::Ed25519(_) => Algorithm::Ed25519,
            Signing::Ecdsa(algorithm, _) => *algorithm,
            Signing::Hmac(_) => Algorithm::HmacSha256,
        }
    }

    /// Signs a signature base.
    pub fn sign(&self, base: &[u8]) -> Result<Vec<u8>, Error> {
        let signing = |_| Error::Signing;
        Ok(match &self.0 {
            Signing::Ed25519(pair) => pair.try_sign(base).map_err(signing)?.as_ref().to_vec(),
            Signing::Ecdsa(_, pair) => {
                let signature = pair.sign(&SystemRandom::new(), base);
                signature.map_err(signing)?.as_ref().to_vec()
            }
            Signing::Hmac(key) => hmac::sign(key, base).as_ref().to_vec(),
        })
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({}, [redacted])", self.algorithm().as_str())
    }
}

/// A key that verifies.
pub struct VerifyingKey {
    algorithm: Algorithm,
    key: Verifying,
}

enum Verifying {
    Public(ParsedPublicKey),
    Hmac(Box<hmac::Key>),
}

impl VerifyingKey {
    /// Parses a public key in PEM.
    pub fn from_pem(algorithm: Algorithm, pem: &[u8]) -> Result<Self, Error> {
        let (kind, der) = <(SectionKind, Vec<u8>)>::from_pem_slice(pem)
            .map_err(|_| Error::Key("there is no public key in PEM".to_owned()))?;
        match kind {
            SectionKind::PublicKey => {}
            SectionKind::PrivateKey | SectionKind::EcPrivateKey | SectionKind::RsaPrivateKey => {
                let mut der = der;
                der.zeroize();
                let problem = "it is a private key: only the public one belongs here";
                return Err(Error::Key(problem.to_owned()));
            }
            _ => return Err(Error::Key("it is not a public key".to_owned())),
        }
        Self::from_der(algorithm, &der)
    }

    /// Parses a public key in DER: a `SubjectPublicKeyInfo`, or for RSA also PKCS#1.
    pub fn from_der(algorithm: Algorithm, der: &[u8]) -> Result<Self, Error> {
        let Some(verification) = algorithm.verification() else {
            let name = algorithm.as_str();
            return Err(Error::Key(format!("{name} has a secret, not a public key")));
        };
        let key = ParsedPublicKey::new(verification, der).map_err(|_| {
            Error::Key(format!("it is not a public key for {}", algorithm.as_str()))
        })?;
        Ok(Self {
            algorithm,
            key: Verifying::Public(key),
        })
    }

    /// A shared secret.
    pub fn hmac(secret: &[u8]) -> Result<Self, Error> {
        Ok(Self {
            algorithm: Algorithm::HmacSha256,
            key: Verifying::Hmac(hmac_key(secret)?),
        })
    }

    /// The algorithm of the signatures that it verifies.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether this key made the signature over this base.
    pub fn verify(&self, base: &[u8], signature: &[u8]) -> bool {
        match &self.key {
            Verifying::Public(key) => key.verify_sig(base, signature).is_ok(),
            Verifying::Hmac(key) => hmac::verify(key, base, signature).is_ok(),
        }
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerifyingKey({})", self.algorithm.as_str())
    }
}

/// Boxed: moving a key leaves a copy in memory.
fn hmac_key(secret: &[u8]) -> Result<Box<hmac::Key>, Error> {
    if secret.len() < MIN_HMAC_SECRET_BYTES {
        let problem = format!("a shared secret has at least {MIN_HMAC_SECRET_BYTES} bytes");
        return Err(Error::Key(problem));
    }
    Ok(Box::new(hmac::Key::new(hmac::HMAC_SHA256, secret)))
}
