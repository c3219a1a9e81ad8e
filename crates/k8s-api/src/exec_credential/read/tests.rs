use std::time::{Duration, UNIX_EPOCH};

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn response_json(status: &Value) -> String {
    let version = Version::V1.as_str();
    json!({"kind": KIND, "apiVersion": version, "status": status}).to_string()
}

#[test]
fn fields_have_the_names_of_the_kep() {
    let request = ExecCredential::request(
        Version::V1,
        Spec {
            cluster: Some(Cluster {
                server: "https://k".to_owned(),
                tls_server_name: Some("name".to_owned()),
                insecure_skip_tls_verify: true,
                certificate_authority_data: b"hello".to_vec(),
                proxy_url: Some(SecretString::new("http://me:secret@proxy".to_owned())),
                disable_compression: true,
                config: Some(json!({"audience": "x"})),
            }),
            interactive: true,
            lock_file_path: Some("/run/lock".into()),
        },
    );
    let expected = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1",
        "spec": {
            "cluster": {
                "server": "https://k",
                "tls-server-name": "name",
                "insecure-skip-tls-verify": true,
                "certificate-authority-data": "aGVsbG8=",
                "proxy-url": "http://me:secret@proxy",
                "disable-compression": true,
                "config": {"audience": "x"},
            },
            "interactive": true,
            "lockFilePath": "/run/lock",
        },
    });
    let written = request.to_json();
    let found: Value = serde_json::from_str(written.expose()).unwrap();
    assert_eq!(found, expected);
    let read = ExecCredential::parse(written.expose().as_bytes());
    assert_eq!(read, Ok(request));

    let response = ExecCredential::response(
        Version::V1Beta1,
        Status {
            expiration_timestamp: Some(UNIX_EPOCH + Duration::from_secs(1_794_776_399)),
            token: Some(SecretString::new("secret".to_owned())),
            client_certificate_data: Some("cert".to_owned()),
            client_key_data: Some(SecretString::new("key".to_owned())),
            proxy_config: Some(ProxyConfig {
                url: "unix:///run/socket".to_owned(),
                certificate_authority_data: b"hello".to_vec(),
            }),
        },
    );
    let expected = json!({
        "kind": "ExecCredential",
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "spec": {"interactive": false},
        "status": {
            "expirationTimestamp": "2026-11-15T20:59:59Z",
            "token": "secret",
            "clientCertificateData": "cert",
            "clientKeyData": "key",
            "proxyConfig": {
                "url": "unix:///run/socket",
                "certificate-authority-data": "aGVsbG8=",
            },
        },
    });
    let written = response.to_json();
    let found: Value = serde_json::from_str(written.expose()).unwrap();
    assert_eq!(found, expected);
    let read = ExecCredential::parse(written.expose().as_bytes());
    assert_eq!(read, Ok(response));
}

#[test]
fn absent_fields_are_omitted() {
    let request = ExecCredential::request(Version::V1, Spec::default());
    assert_eq!(
        request.to_json().expose(),
        r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}"#
    );
}

#[test]
fn the_go_field_name_of_the_url_is_accepted() {
    let written = response_json(&json!({"proxyConfig": {"URL": "unix:///s"}}));
    let read = ExecCredential::parse(written.as_bytes()).unwrap();
    assert_eq!(read.status.unwrap().proxy_config.unwrap().url, "unix:///s");
}

#[test]
fn errors_name_the_problem_and_quote_no_value() {
    let rows = [
        (" \n".to_owned(), "it is empty"),
        ("secret".to_owned(), "not JSON from line 1, column 1"),
        ("[\"secret\"]".to_owned(), "not JSON from line 1, column 1"),
        ("{}\n{} secret".to_owned(), "its kind is \"\""),
        (
            format!("{}\n secret", response_json(&json!({}))),
            "not JSON from line 2, column 2",
        ),
        ("{\"kind\": \"secr".to_owned(), "it ends before"),
        (r#"{"kind":"Secret"}"#.to_owned(), "its kind is \"Secret\""),
        (
            r#"{"kind":"ExecCredential","apiVersion":"v1"}"#.to_owned(),
            "its apiVersion is \"v1\"",
        ),
        (response_json(&json!("secret")), "status is not an object"),
        (
            response_json(&json!({"token": ["secret"]})),
            "status.token is not a string",
        ),
        (
            response_json(&json!({"expirationTimestamp": "secret"})),
            "status.expirationTimestamp is not a time",
        ),
        (
            response_json(&json!({"proxyConfig": {"certificate-authority-data": "secret"}})),
            "status.proxyConfig.url is missing",
        ),
        (
            response_json(
                &json!({"proxyConfig": {"url": "x", "certificate-authority-data": "secret!"}}),
            ),
            "status.proxyConfig.certificate-authority-data is not base64",
        ),
    ];
    for (written, expected) in rows {
        let error = ExecCredential::parse(written.as_bytes()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(expected), "{error} instead of {expected}");
        assert!(!error.contains("secret"), "{error}");
    }
}

#[test]
fn secrets_are_redacted() {
    let written = json!({
        "kind": KIND,
        "apiVersion": Version::V1.as_str(),
        "spec": {"cluster": {
            "server": "https://me:hunter2@k",
            "proxy-url": "http://me:hunter2@p",
            "config": {"pin": "hunter2"},
        }},
        "status": {"token": "hunter2", "clientCertificateData": "c", "clientKeyData": "hunter2"},
    });
    let read = ExecCredential::parse(written.to_string().as_bytes()).unwrap();
    let shown = format!("{read:?} {:?}", read.to_json());
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("https://k"), "{shown}");
}

proptest! {
    #[test]
    fn a_document_is_parsed_as_soon_as_it_is_complete(cut in 0_usize..2000, trailing in "\\PC{0,20}") {
        let whole = response_json(&json!({"token": "t", "proxyConfig": {"url": "unix:///s"}}));
        let cut = cut.min(whole.len() - 1);
        prop_assert_eq!(ExecCredential::parse_first(&whole.as_bytes()[..cut]), Ok(None));
        let more = format!("{whole}{trailing}");
        let (read, length) = ExecCredential::parse_first(more.as_bytes()).unwrap().unwrap();
        prop_assert_eq!(length, whole.len());
        prop_assert_eq!(read.status.unwrap().token, Some(SecretString::new("t".to_owned())));
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = ExecCredential::parse(&bytes);
    }
}
