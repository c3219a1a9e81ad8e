//! Keys that exist only in a `SoftHSM2` token, if `SoftHSM2` is installed.
//!
//! The library finds its tokens through the environment, so each test starts this test program
//! again in a prepared environment.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};
use rustls::SignatureScheme;
use skewbridge_exec_proxy::ClientKey as _;
use skewbridge_pkcs11::{PinSource, Selection, TokenConfig, TokenKey};
use skewbridge_testkit::{Ca, ScratchDir, SoftToken};

const PIN: &str = "246810";

/// Runs one of the ignored tests below with a token, in its own process.
fn run_in_child(test: &str, token: &SoftToken, variables: &[(&str, &Path)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("SOFTHSM2_CONF", token.configuration())
        .env("TOKEN_LIBRARY", token.library());
    for (name, value) in variables {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{wrong}");
    assert!(stdout.contains("1 passed"), "{stdout}");
}

/// A path that the parent test has prepared; `None` without a parent.
fn prepared_path(name: &str) -> Option<PathBuf> {
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
fn every_kind_of_key_signs_for_tls() {
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
    run_in_child(
        "child_every_kind_of_key",
        &token,
        &[("PREPARED", dir.path())],
    );
}

#[test]
#[ignore = "run by every_kind_of_key_signs_for_tls"]
fn child_every_kind_of_key() {
    let (Some(library), Some(prepared)) =
        (prepared_path("TOKEN_LIBRARY"), prepared_path("PREPARED"))
    else {
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
    // As long as the message that TLS signs, and longer than smart cards accept.
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
    assert!(several.contains("several keys match"), "{several}");
    let none = wrong("pkcs11:token=jane;object=x");
    assert!(none.contains("no such private key"), "{none}");
    let other = wrong("pkcs11:token=joe;object=p256");
    assert!(
        other.contains("token \"joe\": it is not present"),
        "{other}"
    );
    assert!(other.contains("Present tokens: \"jane\""), "{other}");
}

#[test]
fn a_wrong_pin_is_reported_and_not_tried_again() {
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
    run_in_child("child_wrong_pin", &token, &variables);
}

#[test]
#[ignore = "run by a_wrong_pin_is_reported_and_not_tried_again"]
fn child_wrong_pin() {
    let (Some(library), Some(prepared)) =
        (prepared_path("TOKEN_LIBRARY"), prepared_path("PREPARED"))
    else {
        return;
    };
    let pin = prepared.join("pin");
    let wrong = config(&library, "pkcs11:token=jane", PinSource::File(pin.clone()));
    let error = TokenKey::open(wrong).unwrap_err().to_string();
    assert!(error.contains("the PIN is wrong"), "{error}");
    assert!(!error.contains("111111"), "{error}");
    // The PIN is right when the token is opened first, and wrong when it is reopened.
    std::fs::write(&pin, PIN).unwrap();
    let right = config(&library, "pkcs11:token=jane", PinSource::File(pin.clone()));
    let key = TokenKey::open(right).unwrap();
    assert!(!format!("{key:?}").contains(PIN));
    // The PIN is changed elsewhere, and the token is removed and inserted again.
    let changed = Command::new("pkcs11-tool")
        .arg("--module")
        .arg(&library)
        .args(["--token-label", "jane", "--login", "--pin", PIN])
        .args(["--change-pin", "--new-pin", "13579"])
        .output()
        .unwrap();
    assert!(changed.status.success(), "{changed:?}");
    let tokens = prepared_path("TOKENS").unwrap();
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
fn a_token_that_is_inserted_again_is_reopened() {
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
    run_in_child("child_inserted_again", &token, &variables);
}

#[test]
#[ignore = "run by a_token_that_is_inserted_again_is_reopened"]
fn child_inserted_again() {
    let (Some(library), Some(prepared), Some(tokens)) = (
        prepared_path("TOKEN_LIBRARY"),
        prepared_path("PREPARED"),
        prepared_path("TOKENS"),
    ) else {
        return;
    };
    let pin = PinSource::Askpass(prepared.join("askpass").into());
    let key = TokenKey::open(config(&library, "pkcs11:token=jane", pin)).unwrap();
    let sign = || key.sign(SignatureScheme::ECDSA_NISTP256_SHA256, b"message");
    sign().unwrap();
    std::fs::rename(tokens.join("tokens"), tokens.join("away")).unwrap();
    std::fs::create_dir(tokens.join("tokens")).unwrap();
    let error = sign().unwrap_err().to_string();
    assert!(error.contains("it is not present; insert it"), "{error}");
    // The askpass program is not run again.
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
    run_in_child("child_other_token", &token, &variables);
}

#[test]
#[ignore = "run by the_pin_of_one_token_is_not_tried_on_another"]
fn child_other_token() {
    let (Some(library), Some(prepared), Some(tokens)) = (
        prepared_path("TOKEN_LIBRARY"),
        prepared_path("PREPARED"),
        prepared_path("TOKENS"),
    ) else {
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
    // The second token accepts its own PIN and does not contain the key.
    let error = sign().unwrap_err().to_string();
    assert!(error.contains("it contains no such private key"), "{error}");
}
