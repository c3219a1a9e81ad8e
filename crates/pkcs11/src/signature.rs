//! Signatures of tokens for TLS. Tokens receive digests: every token can sign a digest, and
//! a message may be too long for a smart card.

use aws_lc_rs::digest::{self, Algorithm, digest};
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsPssParams};
use cryptoki::mechanism::{Mechanism, MechanismType};
use rustls::{SignatureAlgorithm, SignatureScheme};

/// The kind of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Rsa,
    P256,
    P384,
}

/// `EcParams` of the curves that TLS uses: their object identifiers in DER.
const P256: &[u8] = &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];

impl KeyKind {
    pub(crate) fn of_curve(parameters: &[u8]) -> Option<Self> {
        match parameters {
            P256 => Some(Self::P256),
            P384 => Some(Self::P384),
            _ => None,
        }
    }

    pub(crate) fn algorithm(self) -> SignatureAlgorithm {
        match self {
            Self::Rsa => SignatureAlgorithm::RSA,
            Self::P256 | Self::P384 => SignatureAlgorithm::ECDSA,
        }
    }

    /// The schemes that a token with these mechanisms supports, in order of preference.
    pub(crate) fn schemes(self, mechanisms: &[MechanismType]) -> Vec<SignatureScheme> {
        let all = match self {
            Self::P256 => vec![SignatureScheme::ECDSA_NISTP256_SHA256],
            Self::P384 => vec![SignatureScheme::ECDSA_NISTP384_SHA384],
            Self::Rsa => vec![
                SignatureScheme::RSA_PSS_SHA256,
                SignatureScheme::RSA_PSS_SHA384,
                SignatureScheme::RSA_PSS_SHA512,
                SignatureScheme::RSA_PKCS1_SHA256,
                SignatureScheme::RSA_PKCS1_SHA384,
                SignatureScheme::RSA_PKCS1_SHA512,
            ],
        };
        all.into_iter()
            .filter(|scheme| {
                SigningScheme::of(*scheme)
                    .is_some_and(|plan| mechanisms.contains(&plan.mechanism_type()))
            })
            .collect()
    }
}

/// How a scheme maps to a PKCS#11 mechanism.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SigningScheme {
    padding: Padding,
    hash: Hash,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Padding {
    Pss,
    Pkcs1,
    Ecdsa,
}

#[derive(Debug, Clone, Copy)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        }
    }

    /// `DigestInfo` up to the digest (RFC 8017, 9.2, note 1).
    fn prefix(self) -> [u8; 19] {
        let (algorithm, length) = match self {
            Self::Sha256 => (1, 32),
            Self::Sha384 => (2, 48),
            Self::Sha512 => (3, 64),
        };
        [
            0x30,
            17 + length,
            0x30,
            0x0d,
            0x06,
            0x09,
            0x60,
            0x86,
            0x48,
            0x01,
            0x65,
            0x03,
            0x04,
            0x02,
            algorithm,
            0x05,
            0x00,
            0x04,
            length,
        ]
    }
}

impl SigningScheme {
    pub(crate) fn of(scheme: SignatureScheme) -> Option<Self> {
        let (padding, hash) = match scheme {
            SignatureScheme::RSA_PSS_SHA256 => (Padding::Pss, Hash::Sha256),
            SignatureScheme::RSA_PSS_SHA384 => (Padding::Pss, Hash::Sha384),
            SignatureScheme::RSA_PSS_SHA512 => (Padding::Pss, Hash::Sha512),
            SignatureScheme::RSA_PKCS1_SHA256 => (Padding::Pkcs1, Hash::Sha256),
            SignatureScheme::RSA_PKCS1_SHA384 => (Padding::Pkcs1, Hash::Sha384),
            SignatureScheme::RSA_PKCS1_SHA512 => (Padding::Pkcs1, Hash::Sha512),
            SignatureScheme::ECDSA_NISTP256_SHA256 => (Padding::Ecdsa, Hash::Sha256),
            SignatureScheme::ECDSA_NISTP384_SHA384 => (Padding::Ecdsa, Hash::Sha384),
            _ => return None,
        };
        Some(Self { padding, hash })
    }

    fn mechanism_type(self) -> MechanismType {
        match self.padding {
            Padding::Pss => MechanismType::RSA_PKCS_PSS,
            Padding::Pkcs1 => MechanismType::RSA_PKCS,
            Padding::Ecdsa => MechanismType::ECDSA,
        }
    }

    pub(crate) fn mechanism(self) -> Mechanism<'static> {
        match self.padding {
            Padding::Pkcs1 => Mechanism::RsaPkcs,
            Padding::Ecdsa => Mechanism::Ecdsa,
            Padding::Pss => {
                let (hash_alg, mgf, length) = match self.hash {
                    Hash::Sha256 => (MechanismType::SHA256, PkcsMgfType::MGF1_SHA256, 32_u32),
                    Hash::Sha384 => (MechanismType::SHA384, PkcsMgfType::MGF1_SHA384, 48),
                    Hash::Sha512 => (MechanismType::SHA512, PkcsMgfType::MGF1_SHA512, 64),
                };
                Mechanism::RsaPkcsPss(PkcsPssParams {
                    hash_alg,
                    mgf,
                    // RFC 8446, 4.2.3: the salt is as long as the digest.
                    s_len: u64::from(length).into(),
                })
            }
        }
    }

    /// The input of the token's sign operation.
    pub(crate) fn data(self, message: &[u8]) -> Vec<u8> {
        let digest = digest(self.hash.algorithm(), message);
        match self.padding {
            Padding::Pss | Padding::Ecdsa => digest.as_ref().to_vec(),
            Padding::Pkcs1 => [&self.hash.prefix()[..], digest.as_ref()].concat(),
        }
    }

    /// Converts the output of the token to the TLS form: ECDSA signatures in DER. `None` if
    /// the output is not a signature.
    pub(crate) fn signature(self, raw: Vec<u8>) -> Option<Vec<u8>> {
        if self.padding != Padding::Ecdsa {
            return Some(raw);
        }
        // Two integers of equal length, at most 48 bytes each.
        if raw.is_empty() || !raw.len().is_multiple_of(2) || raw.len() > 96 {
            return None;
        }
        let (r, s) = raw.split_at(raw.len() / 2);
        let numbers = [integer(r), integer(s)].concat();
        let length = u8::try_from(numbers.len()).ok().filter(|it| *it < 128)?;
        Some([&[0x30, length], &numbers[..]].concat())
    }
}

/// A DER `INTEGER`: without leading zeros, except for one that keeps the value positive.
fn integer(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let number = &number[zeros.min(number.len() - 1)..];
    let sign = usize::from(number[0] >= 0x80);
    // At most 49, so it fits.
    let length = u8::try_from(number.len() + sign).unwrap_or_default();
    let mut der = vec![0x02, length];
    der.resize(2 + sign, 0);
    der.extend_from_slice(number);
    der
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ecdsa_signatures_are_converted_to_der() {
        let plan = SigningScheme::of(SignatureScheme::ECDSA_NISTP256_SHA256).unwrap();
        let rows: [(&[u8], Option<&[u8]>); 5] = [
            (&[1, 2], Some(&[0x30, 6, 2, 1, 1, 2, 1, 2])),
            (&[0, 1, 0, 2], Some(&[0x30, 6, 2, 1, 1, 2, 1, 2])),
            (&[0x80, 0], Some(&[0x30, 7, 2, 2, 0, 0x80, 2, 1, 0])),
            (&[1, 2, 3], None),
            (&[], None),
        ];
        for (raw, expected) in rows {
            assert_eq!(plan.signature(raw.to_vec()).as_deref(), expected);
        }
        let rsa = SigningScheme::of(SignatureScheme::RSA_PSS_SHA256).unwrap();
        assert_eq!(rsa.signature(vec![1, 2, 3]), Some(vec![1, 2, 3]));
    }

    #[test]
    fn a_token_without_pss_signs_with_pkcs1() {
        let only = [MechanismType::RSA_PKCS];
        let schemes = KeyKind::Rsa.schemes(&only);
        assert_eq!(schemes[0], SignatureScheme::RSA_PKCS1_SHA256);
        assert_eq!(schemes.len(), 3);
        assert!(KeyKind::P256.schemes(&only).is_empty());
        assert_eq!(KeyKind::of_curve(P384), Some(KeyKind::P384));
        assert_eq!(KeyKind::of_curve(&[6, 1, 1]), None);
    }
}
