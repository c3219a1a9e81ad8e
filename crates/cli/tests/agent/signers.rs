//! The effect of signers on a request.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
use http::{HeaderMap, HeaderName, HeaderValue};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use skewbridge_http_signature::Request;
use skewbridge_http_signature::{Algorithm, HasBody, Verifier, VerifyingKey, Window};
use skewbridge_testkit::RecordedRequest;

use crate::agent_fixture::{AgentFixture, Client, Plugin, send};

fn headers_of(seen: &RecordedRequest) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &seen.headers {
        headers.append(
            HeaderName::try_from(name).unwrap(),
            HeaderValue::try_from(value).unwrap(),
        );
    }
    headers
}

const POST: &str = "POST /api/v1/namespaces?dryRun=All HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                    Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";

/// Whether a request has a fresh signature of this key, including the body.
fn is_signed_by(key: &VerifyingKey, seen: &RecordedRequest, host: &str) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let verifier = Verifier {
        authorities: vec![host.to_owned()],
        window: Window {
            max_age: 300,
            skew: 60,
            since: 0,
        },
    };
    let uri = format!("https://{host}{}", seen.target).parse().unwrap();
    let headers = headers_of(seen);
    let signed = Request::of("https", &seen.method, &uri, &headers).unwrap();
    let judged = verifier.verify(&signed, HasBody::Yes, now, |id| {
        (id == "laptop").then_some(key)
    });
    judged.is_ok_and(|judged| judged.digest.unwrap().matches(&seen.body))
}

#[tokio::test]
async fn several_signers_run_in_order() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    fixture.dir.write("badge", "X-Badge: 4711\n");
    fixture
        .dir
        .write("secret", "0123456789abcdef0123456789abcdef");
    let host = server.addr().to_string();
    let info = fixture.info(&format!("https://{host}"), Some(&client.lock));
    let plugin = Plugin::start(fixture.agent(
        &info,
        &[
            "--signer=headers",
            "--headers-file=badge",
            "--signer=http-signature",
            "--http-signature-secret=secret",
            "--http-signature-key-id=laptop",
            "--http-signature-header=x-badge",
        ],
    ));
    let answer = send(&plugin.printed, POST).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = &server.requests()[0];
    assert_eq!(seen.header("x-badge"), Some("4711"));
    assert!(seen.header("signature-input").unwrap().contains("x-badge"));
    let key = VerifyingKey::hmac(b"0123456789abcdef0123456789abcdef").unwrap();
    assert!(is_signed_by(&key, seen, &host));
    let other = VerifyingKey::hmac(b"another-0123456789abcdef01234567").unwrap();
    assert!(!is_signed_by(&other, seen, &host));
}

#[tokio::test]
async fn requests_are_signed_by_every_kind_of_key() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let host = server.addr().to_string();
    let info = fixture.info(&format!("https://{host}"), Some(&client.lock));
    let rows = [
        (&PKCS_ED25519, Algorithm::Ed25519),
        (&PKCS_ECDSA_P256_SHA256, Algorithm::EcdsaP256Sha256),
        (&PKCS_ECDSA_P384_SHA384, Algorithm::EcdsaP384Sha384),
    ];
    for (place, (kind, algorithm)) in rows.into_iter().enumerate() {
        let key = KeyPair::generate_for(kind).unwrap();
        fixture.dir.write("key.pem", key.serialize_pem());
        let plugin = Plugin::start(fixture.agent(
            &info,
            &[
                "--signer=http-signature",
                "--http-signature-key=key.pem",
                "--http-signature-key-id=laptop",
            ],
        ));
        let answer = send(&plugin.printed, POST).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let key = VerifyingKey::from_pem(algorithm, key.public_key_pem().as_bytes()).unwrap();
        let seen = &server.requests()[place];
        assert!(is_signed_by(&key, seen, &host), "{algorithm:?}");
    }
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let key = Key::new(HMAC_SHA256, key);
    sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Whether a front proxy accepts a request as signed with this secret. Written from AWS'
/// description of the signature, without code of this project.
fn is_signed_for_aws(seen: &RecordedRequest, id: &str, secret: &str) -> bool {
    let header = |name| match name {
        "host" => seen.authority.as_deref(),
        _ => seen.header(name),
    };
    let authorization = header("authorization").unwrap();
    let words: Vec<_> = authorization.split([' ', ',', '=']).collect();
    let [
        "AWS4-HMAC-SHA256",
        "Credential",
        credential,
        "",
        "SignedHeaders",
        signed,
        "",
        "Signature",
        given,
    ] = words[..]
    else {
        return false;
    };
    let scope = credential
        .strip_prefix(id)
        .and_then(|rest| rest.strip_prefix('/'));
    let Some(scope) = scope else {
        return false;
    };
    let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
    let mut canonical = format!("{}\n{path}\n{query}\n", seen.method);
    for name in signed.split(';') {
        let Some(value) = header(name) else {
            return false;
        };
        writeln!(canonical, "{name}:{value}").unwrap();
    }
    let body = hex(digest(&SHA256, &seen.body).as_ref());
    write!(canonical, "\n{signed}\n{body}").unwrap();
    let canonical = hex(digest(&SHA256, canonical.as_bytes()).as_ref());
    let at = header("x-amz-date").unwrap();
    let text = format!("AWS4-HMAC-SHA256\n{at}\n{scope}\n{canonical}");
    let first = format!("AWS4{secret}").into_bytes();
    let key = scope.split('/').fold(first, |key, part| hmac(&key, part));
    hex(&hmac(&key, &text)) == given
}

#[tokio::test]
async fn a_front_proxy_accepts_aws_signatures() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let mut command = fixture.agent(&info, &["--signer=sigv4", "--sigv4-region=eu-west-1"]);
    command
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "hunter2")
        .env("AWS_SESSION_TOKEN", "a-session");
    let plugin = Plugin::start(command);
    let answer = send(&plugin.printed, POST).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = server.requests().remove(0);
    assert_eq!(seen.body, "{}");
    assert_eq!(seen.header("x-amz-security-token"), Some("a-session"));
    assert!(is_signed_for_aws(&seen, "AKIDEXAMPLE", "hunter2"));
    assert!(!is_signed_for_aws(&seen, "AKIDEXAMPLE", "hunter3"));
    let altered: [fn(&mut RecordedRequest); 4] = [
        |seen| seen.body = "[]".into(),
        |seen| seen.target.push_str("&force=true"),
        |seen| seen.authority = Some("other.example".to_owned()),
        |seen| {
            let tokens = seen.headers.iter_mut();
            for (_, value) in tokens.filter(|it| it.0 == "x-amz-security-token") {
                "another".clone_into(value);
            }
        },
    ];
    for alter in altered {
        let mut seen = seen.clone();
        alter(&mut seen);
        assert!(
            !is_signed_for_aws(&seen, "AKIDEXAMPLE", "hunter2"),
            "{seen:?}"
        );
    }
}

#[tokio::test]
async fn a_program_with_arguments_prints_headers() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let program = fixture
        .dir
        .write_program("badges", "#!/bin/sh\necho \"X-Badge: $# $1 $2\"\n");
    let plugin = Plugin::start(fixture.agent(
        &info,
        &[
            "--signer=headers",
            &format!("--headers-command={}", program.display()),
            "--headers-command-arg=--of",
            "--headers-command-arg=jane doe",
        ],
    ));
    let answer = plugin.get("/").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(
        server.requests()[0].header("x-badge"),
        Some("2 --of jane doe")
    );
}

#[tokio::test]
async fn a_request_is_signed_for_aws() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let mut command = fixture.agent(&info, &["--signer=sigv4", "--sigv4-region=eu-west-1"]);
    command
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "hunter2");
    let plugin = Plugin::start(command);
    plugin.get("/api").await.unwrap();
    let seen = &server.requests()[0];
    let authorization = seen.header("authorization").unwrap();
    assert!(
        authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"),
        "{authorization}"
    );
    assert!(authorization.contains("/eu-west-1/execute-api/aws4_request"));
    assert!(seen.header("x-amz-date").is_some());
}

#[tokio::test]
async fn credentials_for_aws_come_from_profiles_and_programs_too() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    std::fs::create_dir(fixture.dir.path().join(".aws")).unwrap();
    let keys = "aws_access_key_id = AKIDFILE\naws_secret_access_key = hunter2\n";
    fixture
        .dir
        .write(".aws/credentials", format!("[default]\n{keys}"));
    let program = fixture.dir.write_program(
        "login",
        "#!/bin/sh\necho '{\"Version\": 1, \"AccessKeyId\": \"AKIDPROGRAM\", \
         \"SecretAccessKey\": \"hunter2\"}'\n",
    );
    let profile = format!(
        "[profile work]\nregion = eu-north-1\ncredential_process = {}\n",
        program.display()
    );
    fixture.dir.write(".aws/config", profile);
    let rows: [(&[&str], &str); 2] = [
        (&["--sigv4-region=eu-west-1"], "AKIDFILE/"),
        (&["--sigv4-profile=work"], "AKIDPROGRAM/"),
    ];
    for (place, (args, expected)) in rows.into_iter().enumerate() {
        let mut command = fixture.agent(&info, &[&["--signer=sigv4"], args].concat());
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"AWS_") {
                command.env_remove(name);
            }
        }
        let plugin = Plugin::start(command);
        plugin.get("/api").await.unwrap();
        let seen = &server.requests()[place];
        let authorization = seen.header("authorization").unwrap();
        let expected = format!("AWS4-HMAC-SHA256 Credential={expected}");
        assert!(authorization.starts_with(&expected), "{authorization}");
    }
}

#[tokio::test]
async fn a_signer_that_cannot_sign_is_named_in_the_answer() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let plugin = Plugin::start(fixture.agent(&info, &["--signer=headers", "--headers-file=gone"]));
    let answer = plugin.get("/").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(answer.contains("headers: gone: No such file"), "{answer}");
    assert!(server.requests().is_empty());
}

/// Without the AWS variables of the test's environment.
fn without_aws(mut command: std::process::Command) -> std::process::Command {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"AWS_") {
            command.env_remove(name);
        }
    }
    command
}

#[tokio::test]
async fn sigv4_without_credentials_fails_at_start_and_names_the_searched_places() {
    let fixture = AgentFixture::new();
    let client = Client::start(&fixture);
    let info = fixture.info("https://cluster.example:6443", Some(&client.lock));
    for shared in [&[][..], &["--shared"]] {
        let args = [&["--signer=sigv4", "--sigv4-region=r"], shared].concat();
        let ran = without_aws(fixture.agent(&info, &args)).output().unwrap();
        let printed = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(1), "{printed}");
        assert!(ran.stdout.is_empty(), "{printed}");
        let file = fixture.dir.path().join(".aws/credentials");
        let looked = format!("{} (no such file)", file.display());
        for expected in [
            "--signer=sigv4: no AWS credentials",
            "AWS_ACCESS_KEY_ID",
            &looked,
            "--sigv4-profile",
        ] {
            assert!(printed.contains(expected), "{expected}: {printed}");
        }
    }
}

#[tokio::test]
async fn a_signer_that_fails_later_is_logged_once() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let plugin = Plugin::start(fixture.agent(&info, &["--signer=headers", "--headers-file=gone"]));
    for _ in 0..3 {
        let answer = plugin.get("/").await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    }
    let log = crate::secrets::inspect(plugin).await.log;
    let count = log.matches("headers: gone: No such file").count();
    assert_eq!(count, 1, "{log}");
    assert!(log.contains("WARN"), "{log}");
}
