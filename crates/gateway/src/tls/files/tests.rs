//! Valid files in all formats, and each kind of invalid file.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{CertificateParams, KeyPair as Generated, SignatureAlgorithm};

use super::*;

#[test]
fn all_key_algorithms_are_loaded_in_all_encodings() {
    let dir = Dir::new();
    let algorithms: [(&str, &SignatureAlgorithm); 5] = [
        ("p256", &rcgen::PKCS_ECDSA_P256_SHA256),
        ("p384", &rcgen::PKCS_ECDSA_P384_SHA384),
        ("p521", &rcgen::PKCS_ECDSA_P521_SHA512),
        ("ed25519", &rcgen::PKCS_ED25519),
        ("rsa", &rcgen::PKCS_RSA_SHA256),
    ];
    for (name, algorithm) in algorithms {
        let key = Generated::generate_for(algorithm).unwrap();
        let files = dir.pair(name, self_signed(&key), key.serialize_pem());
        let loaded = files.load().unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(loaded.certified.cert.len(), 1, "{name}");
    }
    let rsa = Generated::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let pkcs1 = to_pem("RSA PRIVATE KEY", inside_pkcs8(rsa.serialized_der()));
    dir.pair("pkcs1", self_signed(&rsa), &pkcs1).load().unwrap();
    let ec = Generated::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let sec1 = to_pem("EC PRIVATE KEY", inside_pkcs8(ec.serialized_der()));
    // OpenSSL writes the curve in front of the key.
    let sec1 = format!("{}{sec1}", to_pem("EC PARAMETERS", &[6, 0]));
    dir.pair("sec1", self_signed(&ec), &sec1).load().unwrap();
}

#[test]
fn one_file_may_contain_the_certificate_and_the_key() {
    let dir = Dir::new();
    let key = Generated::generate().unwrap();
    let path = dir.file("both.pem", key.serialize_pem() + &self_signed(&key));
    let files = KeyPairFiles {
        cert: path.clone(),
        key: path,
    };
    files.load().unwrap();
}

#[test]
fn a_key_of_another_certificate_is_rejected_with_both_file_names() {
    let dir = Dir::new();
    let (one, other) = (
        Generated::generate().unwrap(),
        Generated::generate().unwrap(),
    );
    let files = dir.pair("x", self_signed(&one), other.serialize_pem());
    let problem = files.load().unwrap_err();
    assert_eq!(problem.path, files.key);
    let text = problem.to_string();
    assert!(text.contains("x.key"), "{text}");
    assert!(text.contains("does not match the certificate in"), "{text}");
    assert!(text.contains("x.crt"), "{text}");
}

#[test]
fn errors_of_certificate_files_name_the_actual_content() {
    let key = Generated::generate().unwrap();
    let request = CertificateParams::new(vec!["a".into()])
        .unwrap()
        .serialize_request(&key)
        .unwrap();
    let damaged = self_signed(&key).replacen("MII", "!!!", 1);
    let cut = self_signed(&key);
    let cut = &cut[..cut.len() / 2];
    let table: [(Vec<u8>, &str); 10] = [
        (Vec::new(), "is empty"),
        (
            b"hello".to_vec(),
            "holds no PEM certificate; it must have a line",
        ),
        (
            key.serialize_pem().into(),
            "but a private key; two files may be swapped",
        ),
        (key.public_key_pem().into(), "but a public key"),
        (request.pem().unwrap().into(), "but a signing request"),
        (vec![0x30, 0x82, 1, 1], "but binary DER"),
        (damaged.into(), "a section is not base64"),
        (cut.into(), "a section has no END line"),
        (
            b"-----BEGIN CERTIFICATE\n".to_vec(),
            "a BEGIN line is damaged",
        ),
        (
            to_pem("CERTIFICATE", b"no DER").into(),
            "certificate 1 in it cannot be read",
        ),
    ];
    let dir = Dir::new();
    for (bytes, expected) in table {
        let files = dir.pair("x", bytes, key.serialize_pem());
        let text = files.load().unwrap_err().to_string();
        assert!(text.contains("x.crt: "), "{text}");
        assert!(text.contains(expected), "{text} lacks {expected}");
        assert_eq!(load_ca(&files.cert).unwrap_err().to_string(), text);
    }
}

#[test]
fn errors_of_key_files_name_the_actual_content() {
    let key = Generated::generate().unwrap();
    let old_form = key
        .serialize_pem()
        .replacen("-----\n", "-----\nProc-Type: 4,ENCRYPTED\n\n", 1);
    let table = [
        (String::new(), "is empty"),
        (
            self_signed(&key),
            "but a certificate; two files may be swapped",
        ),
        (to_pem("ENCRYPTED PRIVATE KEY", b"x"), "openssl pkey"),
        (old_form, "openssl pkey"),
        (
            to_pem("OPENSSH PRIVATE KEY", b"x"),
            "but PEM of another kind",
        ),
        (
            to_pem("PRIVATE KEY", b"x"),
            "the private key cannot be used",
        ),
    ];
    let dir = Dir::new();
    for (content, expected) in table {
        let files = dir.pair("x", self_signed(&key), content);
        let text = files.load().unwrap_err().to_string();
        assert!(text.contains("x.key: "), "{text}");
        assert!(text.contains(expected), "{text} lacks {expected}");
    }
}

#[test]
fn problems_of_both_files_are_reported_at_once() {
    let key = Generated::generate().unwrap();
    let dir = Dir::new();
    let swapped = dir.pair("x", key.serialize_pem(), self_signed(&key));
    let problems = swapped.problems();
    let paths: Vec<_> = problems.iter().map(|problem| &problem.path).collect();
    assert_eq!(paths, [&swapped.cert, &swapped.key]);
    let other = Generated::generate().unwrap();
    let unlike = dir.pair("y", self_signed(&key), other.serialize_pem());
    assert_eq!(unlike.problems(), [unlike.load().unwrap_err()]);
    let right = dir.pair("z", self_signed(&key), key.serialize_pem());
    assert_eq!(right.problems(), []);
}

#[test]
fn missing_unreadable_and_empty_files_have_different_errors() {
    let dir = Dir::new();
    let missing = load_ca(&dir.0.join("missing")).unwrap_err();
    assert_eq!(missing.problem, PemError::NotFound);
    assert_eq!(load_ca(&dir.0).unwrap_err().problem, PemError::Directory);
    let endless = load_ca(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(endless.problem, PemError::TooLarge);
    let below_a_file = dir.file("file", "x").join("ca.crt");
    let problem = load_ca(&below_a_file).unwrap_err().problem;
    assert!(matches!(problem, PemError::Unreadable(_)), "{problem:?}");
}

#[test]
fn a_bundle_has_all_certificates_and_the_shortest_validity() {
    let key = Generated::generate().unwrap();
    let year = |last: i32| {
        let mut params = CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(last - 10, 1, 1);
        params.not_after = rcgen::date_time_ymd(last, 1, 1);
        params.self_signed(&key).unwrap().pem()
    };
    let dir = Dir::new();
    let path = dir.file("ca.crt", year(2040) + "# a comment\n" + &year(2035));
    let bundle = load_ca(&path).unwrap();
    assert_eq!(bundle.certificates.len(), 2);
    assert_eq!(bundle.roots.len(), 2);
    // 2030-01-01 and 2035-01-01.
    assert_eq!(bundle.not_before, system_time(1_893_456_000));
    assert_eq!(bundle.not_after, system_time(2_051_222_400));
}

#[test]
fn a_certificate_outside_its_validity_period_loads_with_an_error() {
    let day = Duration::from_hours(24);
    let start = system_time(1_000_000_000);
    let at = |now| validity_error(start, start + day, now);
    assert_eq!(at(start), None);
    assert_eq!(at(start + day), None);
    let late = at(start + day * 3).unwrap();
    assert_eq!(
        late.to_string(),
        "the certificate expired 2 days ago; renew it"
    );
    let early = at(start - Duration::from_mins(1)).unwrap();
    assert!(
        early.to_string().contains("for another 1 minute;"),
        "{early}"
    );

    let key = Generated::generate().unwrap();
    let mut params = CertificateParams::default();
    params.not_before = rcgen::date_time_ymd(1990, 1, 1);
    params.not_after = rcgen::date_time_ymd(1991, 1, 1);
    let expired = params.self_signed(&key).unwrap().pem();
    let dir = Dir::new();
    let pair = dir
        .pair("old", expired, key.serialize_pem())
        .load()
        .unwrap();
    let validity_error = pair.validity_error(SystemTime::now());
    assert!(matches!(validity_error, Some(ValidityError::Expired(_))));
}

#[test]
fn the_fingerprint_changes_with_either_file() {
    let key = Generated::generate().unwrap();
    let dir = Dir::new();
    let files = dir.pair("x", self_signed(&key), key.serialize_pem());
    let first = files.load().unwrap().fingerprint;
    assert_eq!(files.load().unwrap().fingerprint, first);
    dir.file("x.key", key.serialize_pem() + "\n");
    assert_ne!(files.load().unwrap().fingerprint, first);
}

#[test]
fn debug_shows_no_key() {
    let key = Generated::generate().unwrap();
    let dir = Dir::new();
    let files = dir.pair("x", self_signed(&key), key.serialize_pem());
    let text = format!("{:?}", files.load().unwrap());
    let shown = ["certificates: 1", "not_after", "fingerprint"];
    assert!(shown.iter().all(|part| text.contains(part)), "{text}");
    assert!(!text.contains("certified"), "{text}");
}

fn self_signed(key: &Generated) -> String {
    let params = CertificateParams::new(vec!["localhost".into()]).unwrap();
    params.self_signed(key).unwrap().pem()
}

/// The key inside a PKCS #8 wrapping: PKCS #1 for RSA, SEC1 for EC.
fn inside_pkcs8(der: &[u8]) -> &[u8] {
    fn element(der: &[u8]) -> (&[u8], &[u8]) {
        let (length, header) = match der[1] {
            0x81 => (usize::from(der[2]), 3),
            0x82 => (usize::from(der[2]) << 8 | usize::from(der[3]), 4),
            short => (usize::from(short), 2),
        };
        der[header..].split_at(length)
    }
    let (sequence, _) = element(der);
    let (_version, rest) = element(sequence);
    let (_algorithm, rest) = element(rest);
    element(rest).0
}

fn to_pem(label: &str, der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in der.chunks(3) {
        let bits = chunk
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        for place in 0..4 {
            text.push(if place <= chunk.len() {
                char::from(ALPHABET[bits >> (18 - 6 * place) & 63])
            } else {
                '='
            });
        }
    }
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// A directory that is removed with the test.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("skewbridge-material-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn pair(&self, name: &str, cert: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> KeyPairFiles {
        KeyPairFiles {
            cert: self.file(&format!("{name}.crt"), cert),
            key: self.file(&format!("{name}.key"), key),
        }
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
