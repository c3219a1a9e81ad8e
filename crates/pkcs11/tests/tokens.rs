//! Keys that exist only in a token of `SoftHSM2`, where that is installed.
//!
//! Its library is told by the environment where its tokens are, so each test starts this
//! program again with what it has prepared.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use rustls::SignatureScheme;
use skewbridge_harness::ClientKey as _;
use skewbridge_pkcs11::{PinSource, Selection, TokenConfig, TokenKey};
use skewbridge_testkit::{Ca, ScratchDir, SoftToken};

const PIN: &str = "246810";

/// Runs a test below with a token, in a process of its own.
fn within(test: &str, token: &SoftToken, variables: &[(&str, &Path)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("SOFTHSM2_CONF", token.configuration())
        .env("TOKEN_LIBRARY", token.library());
    for (name, value) in variables {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{wrong}");
    assert!(said.contains("1 passed"), "{said}");
}

/// What the test above has prepared; none if nobody has.
fn told(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

fn config(library: &Path, which: &str, pin: PinSource) -> TokenConfig {
    TokenConfig {
        module: library.to_owned(),
        which: which.parse::<Selection>().unwrap(),
        pin,
        certificate: None,
    }
}

const KINDS: [(&str, &str, &str); 3] = [
    ("EC:prime256v1", "p256", "01"),
    ("EC:secp384r1", "p384", "02"),
    ("rsa:2048", "rsa", "03"),
];

#[test]
fn every_kind_of_key_signs_what_tls_needs() {
    let Some(token) = SoftToken::new("jane", PIN) else {
        return;
    };
    let ca = Ca::new("users");
    let dir = ScratchDir::new();
    dir.write("pin", PIN);
    for (kind, label, id) in KINDS {
        let key = token.generate(kind, label, id);
        dir.write(label, rcgen::PublicKeyData::der_bytes(&key));
        let certificate = ca.client_with_key(&key, "jane", &["developers"]);
        token.store(&certificate, label, id);
    }
    within("inside_every_kind", &token, &[("PREPARED", dir.path())]);
}

#[test]
#[ignore = "run by every_kind_of_key_signs_what_tls_needs"]
fn inside_every_kind() {
    let (Some(library), Some(prepared)) = (told("TOKEN_LIBRARY"), told("PREPARED")) else {
        return;
    };
    let rows: [(&str, SignatureScheme, &dyn VerificationAlgorithm); 8] = [
        (
            "p256",
            SignatureScheme::ECDSA_NISTP256_SHA256,
            &signature::ECDSA_P256_SHA256_ASN1,
        ),
        (
            "p384",
            SignatureScheme::ECDSA_NISTP384_SHA384,
            &signature::ECDSA_P384_SHA384_ASN1,
        ),
        (
            "rsa",
            SignatureScheme::RSA_PSS_SHA256,
            &signature::RSA_PSS_2048_8192_SHA256,
        ),
        (
            "rsa",
            SignatureScheme::RSA_PSS_SHA384,
            &signature::RSA_PSS_2048_8192_SHA384,
        ),
        (
            "rsa",
            SignatureScheme::RSA_PSS_SHA512,
            &signature::RSA_PSS_2048_8192_SHA512,
        ),
        (
            "rsa",
            SignatureScheme::RSA_PKCS1_SHA256,
            &signature::RSA_PKCS1_2048_8192_SHA256,
        ),
        (
            "rsa",
            SignatureScheme::RSA_PKCS1_SHA384,
            &signature::RSA_PKCS1_2048_8192_SHA384,
        ),
        (
            "rsa",
            SignatureScheme::RSA_PKCS1_SHA512,
            &signature::RSA_PKCS1_2048_8192_SHA512,
        ),
    ];
    // As long as what TLS signs, and longer than what a card takes.
    let message = [7; 300];
    for (label, scheme, algorithm) in rows {
        let pin = PinSource::File(prepared.join("pin"));
        let which = format!("pkcs11:token=jane;object={label}");
        let key = TokenKey::open(config(&library, &which, pin)).unwrap();
        let certificate = key.certificate().unwrap();
        assert!(certificate.schemes.contains(&scheme), "{label} {scheme:?}");
        assert_eq!(certificate.chain.len(), 1);
        let signed = key.sign(scheme, &message).unwrap();
        let public = std::fs::read(prepared.join(label)).unwrap();
        UnparsedPublicKey::new(algorithm, public)
            .verify(&message, &signed)
            .unwrap_or_else(|_| panic!("{label} {scheme:?}"));
    }
    let pin = || PinSource::File(prepared.join("pin"));
    let wrong = |which: &str| {
        TokenKey::open(config(&library, which, pin()))
            .unwrap_err()
            .to_string()
    };
    let several = wrong("pkcs11:token=jane");
    assert!(several.contains("several keys fit"), "{several}");
    let none = wrong("pkcs11:token=jane;object=x");
    assert!(none.contains("no such private key"), "{none}");
    let other = wrong("pkcs11:token=joe;object=p256");
    assert!(other.contains("token \"joe\": it is not there"), "{other}");
    assert!(other.contains("There is: \"jane\""), "{other}");
}

#[test]
fn a_wrong_pin_is_said_and_not_tried_again() {
    let Some(token) = SoftToken::new("jane", PIN) else {
        return;
    };
    let key = token.generate("EC:prime256v1", "k", "01");
    token.store(
        &Ca::new("users").client_with_key(&key, "jane", &[]),
        "k",
        "01",
    );
    let dir = ScratchDir::new();
    dir.write("pin", "111111");
    let tokens = token.configuration();
    let variables = [
        ("PREPARED", dir.path()),
        ("TOKENS", tokens.parent().unwrap()),
    ];
    within("inside_wrong_pin", &token, &variables);
}

#[test]
#[ignore = "run by a_wrong_pin_is_said_and_not_tried_again"]
fn inside_wrong_pin() {
    let (Some(library), Some(prepared)) = (told("TOKEN_LIBRARY"), told("PREPARED")) else {
        return;
    };
    let pin = prepared.join("pin");
    let wrong = config(&library, "pkcs11:token=jane", PinSource::File(pin.clone()));
    let error = TokenKey::open(wrong).unwrap_err().to_string();
    assert!(error.contains("the PIN is wrong"), "{error}");
    assert!(!error.contains("111111"), "{error}");
    // Right when it is opened, wrong when it is opened again.
    std::fs::write(&pin, PIN).unwrap();
    let right = config(&library, "pkcs11:token=jane", PinSource::File(pin.clone()));
    let key = TokenKey::open(right).unwrap();
    assert!(!format!("{key:?}").contains(PIN));
    // Somebody changes it, and the token has been out since.
    let changed = Command::new("pkcs11-tool")
        .arg("--module")
        .arg(&library)
        .args(["--token-label", "jane", "--login", "--pin", PIN])
        .args(["--change-pin", "--new-pin", "13579"])
        .output()
        .unwrap();
    assert!(changed.status.success(), "{changed:?}");
    let tokens = told("TOKENS").unwrap();
    let sign = || key.sign(SignatureScheme::ECDSA_NISTP256_SHA256, b"message");
    std::fs::rename(tokens.join("tokens"), tokens.join("away")).unwrap();
    sign().unwrap_err();
    std::fs::rename(tokens.join("away"), tokens.join("tokens")).unwrap();
    let errors = [sign(), sign()].map(|signed| signed.unwrap_err().to_string());
    assert!(errors[0].ends_with("the PIN is wrong"), "{}", errors[0]);
    assert!(errors[1].contains("it is not tried again"), "{}", errors[1]);
    std::fs::write(&pin, "13579").unwrap();
    sign().unwrap();
}

#[test]
fn a_token_that_is_put_back_is_opened_again() {
    let Some(token) = SoftToken::new("jane", PIN) else {
        return;
    };
    let key = token.generate("EC:prime256v1", "k", "01");
    token.store(
        &Ca::new("users").client_with_key(&key, "jane", &[]),
        "k",
        "01",
    );
    let dir = ScratchDir::new();
    dir.write_program("askpass", &format!("#!/bin/sh\necho {PIN}\n"));
    let tokens = token.configuration();
    let tokens = tokens.parent().unwrap();
    let variables = [("PREPARED", dir.path()), ("TOKENS", tokens)];
    within("inside_put_back", &token, &variables);
}

#[test]
#[ignore = "run by a_token_that_is_put_back_is_opened_again"]
fn inside_put_back() {
    let (Some(library), Some(prepared), Some(tokens)) =
        (told("TOKEN_LIBRARY"), told("PREPARED"), told("TOKENS"))
    else {
        return;
    };
    let pin = PinSource::Askpass(prepared.join("askpass").into());
    let key = TokenKey::open(config(&library, "pkcs11:token=jane", pin)).unwrap();
    let sign = || key.sign(SignatureScheme::ECDSA_NISTP256_SHA256, b"message");
    sign().unwrap();
    std::fs::rename(tokens.join("tokens"), tokens.join("away")).unwrap();
    std::fs::create_dir(tokens.join("tokens")).unwrap();
    let error = sign().unwrap_err().to_string();
    assert!(error.contains("it is not there; put it in"), "{error}");
    // The user is not asked again.
    std::fs::remove_file(prepared.join("askpass")).unwrap();
    std::fs::remove_dir(tokens.join("tokens")).unwrap();
    std::fs::rename(tokens.join("away"), tokens.join("tokens")).unwrap();
    sign().unwrap();
}

#[test]
fn the_pin_of_one_token_is_not_tried_on_another() {
    let Some(token) = SoftToken::new("jane", PIN) else {
        return;
    };
    let key = token.generate("EC:prime256v1", "k", "01");
    token.store(
        &Ca::new("users").client_with_key(&key, "jane", &[]),
        "k",
        "01",
    );
    let dir = ScratchDir::new();
    let script = format!("#!/bin/sh\ncase \"$1\" in *jane*) echo {PIN};; *) echo 13579;; esac\n");
    dir.write_program("askpass", &script);
    let tokens = token.configuration();
    let tokens = tokens.parent().unwrap();
    let variables = [("PREPARED", dir.path()), ("TOKENS", tokens)];
    within("inside_another", &token, &variables);
}

#[test]
#[ignore = "run by the_pin_of_one_token_is_not_tried_on_another"]
fn inside_another() {
    let (Some(library), Some(prepared), Some(tokens)) =
        (told("TOKEN_LIBRARY"), told("PREPARED"), told("TOKENS"))
    else {
        return;
    };
    let pin = PinSource::Askpass(prepared.join("askpass").into());
    let key = TokenKey::open(config(&library, "pkcs11:object=k", pin)).unwrap();
    let sign = || key.sign(SignatureScheme::ECDSA_NISTP256_SHA256, b"message");
    sign().unwrap();
    std::fs::rename(tokens.join("tokens"), tokens.join("away")).unwrap();
    std::fs::create_dir(tokens.join("tokens")).unwrap();
    let made = Command::new("softhsm2-util")
        .args(["--init-token", "--free", "--label", "joe"])
        .args(["--pin", "13579", "--so-pin", "12345678"])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    // By its own PIN it is seen to be without the key.
    let error = sign().unwrap_err().to_string();
    assert!(error.contains("there is no such private key"), "{error}");
}
