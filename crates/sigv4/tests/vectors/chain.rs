//! The search for AWS credentials.

use std::ffi::OsString;
use std::sync::Arc;

use skewbridge_sigv4::Secret;
use skewbridge_sigv4::{Chain, Environment};
use skewbridge_testkit::ScratchDir;

const NOW: u64 = 1_440_938_160;

type Variables<'a> = &'a [(&'a str, &'a str)];

fn environment(dir: &ScratchDir, variables: Variables<'_>) -> Environment {
    Environment::of(|name| {
        let value = variables.iter().find(|it| it.0 == name);
        match (value, name) {
            (Some((_, value)), _) => Some(OsString::from(value)),
            (None, "HOME") => Some(dir.path().into()),
            _ => None,
        }
    })
}

fn files(dir: &ScratchDir, credentials: &str, config: &str) {
    std::fs::create_dir_all(dir.path().join(".aws")).unwrap();
    dir.write(".aws/credentials", credentials);
    dir.write(".aws/config", config);
}

const KEYS: [(&str, &str); 2] = [
    ("AWS_ACCESS_KEY_ID", "ENV"),
    ("AWS_SECRET_ACCESS_KEY", "env-s3cret"),
];

/// The key that is found, or the error.
async fn found(chain: &Chain) -> Result<String, String> {
    let credentials = chain.credentials(NOW).await;
    let credentials = credentials.map_err(|error| error.to_string())?;
    Ok(credentials.access_key_id.clone())
}

#[tokio::test]
async fn the_order_is_environment_then_profile_keys_then_process() {
    let dir = ScratchDir::new();
    let process = r#"credential_process = printf %s '{"Version":1,"AccessKeyId":"PROCESS","SecretAccessKey":"s"}'"#;
    files(
        &dir,
        "[default]\naws_access_key_id = DEFAULT\naws_secret_access_key = s\n\
         [half]\naws_access_key_id = HALF\n",
        &format!(
            "[default]\naws_access_key_id = CONFIG\nregion = r1\n{process}\n\
             [profile keys]\naws_access_key_id = KEYS\naws_secret_access_key = s\nregion = r2\n\
             [profile runs]\n{process}\n[profile role]\nrole_arn = x\nsource_profile = default\n\
             [profile nothing]\nregion = r3\n"
        ),
    );
    let keys_and = |name, value| [KEYS[0], KEYS[1], (name, value)];
    let rows: [(Variables<'_>, Option<&str>, Result<&str, &str>); 12] = [
        (&KEYS, None, Ok("ENV")),
        (&keys_and("AWS_PROFILE", "keys"), None, Ok("ENV")),
        // A profile that is requested by name takes precedence.
        (&KEYS, Some("keys"), Ok("KEYS")),
        (&[], None, Ok("DEFAULT")),
        (&[("AWS_PROFILE", "keys")], None, Ok("KEYS")),
        (&[("AWS_PROFILE", "keys")], Some("runs"), Ok("PROCESS")),
        (&[("AWS_PROFILE", "absent")], None, Err("it is not in /")),
        (&KEYS[..1], None, Err("only one of AWS_ACCESS_KEY_ID and")),
        (
            &[("AWS_PROFILE", "half")],
            None,
            Err("only one of aws_access_key_id and"),
        ),
        (
            &[("AWS_PROFILE", "role")],
            None,
            Err("role_arn needs the network"),
        ),
        (
            &[("AWS_PROFILE", "nothing")],
            None,
            Err("no AWS credentials"),
        ),
        (&[("AWS_ACCESS_KEY_ID", "")], None, Ok("DEFAULT")),
    ];
    for (variables, profile, expected) in rows {
        let chain = Chain::new(environment(&dir, variables), profile.map(str::to_owned));
        match (found(&chain).await, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (found, expected) => panic!("{found:?}, expected {expected:?}"),
        }
    }
    let rows: [(Variables<'_>, Option<&str>); 5] = [
        (&[], Some("r1")),
        (&[("AWS_PROFILE", "keys")], Some("r2")),
        (
            &[("AWS_DEFAULT_REGION", "r4"), ("AWS_REGION", "r5")],
            Some("r5"),
        ),
        (&[("AWS_DEFAULT_REGION", "r4")], Some("r4")),
        (&[("AWS_PROFILE", "runs")], None),
    ];
    for (variables, expected) in rows {
        let chain = Chain::new(environment(&dir, variables), None);
        assert_eq!(chain.region().unwrap().as_deref(), expected);
    }
}

#[tokio::test]
async fn other_files_can_be_named_and_missing_files_are_no_error() {
    let dir = ScratchDir::new();
    let none = Chain::new(environment(&dir, &[]), None);
    let aws = dir.path().join(".aws");
    let expected = format!(
        "no AWS credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and the \
         profile \"default\" has neither keys nor a credential_process in {0}/credentials (no such \
         file) or {0}/config (no such file); set the variables, run `aws configure`, or give \
         another profile with --sigv4-profile or AWS_PROFILE",
        aws.display()
    );
    assert_eq!(found(&none).await.unwrap_err(), expected);
    let absent = Chain::new(environment(&dir, &[]), Some("absent".to_owned()));
    let error = found(&absent).await.unwrap_err();
    let expected = format!("\"absent\": it is not in {}/credentials (no", aws.display());
    assert!(error.contains(&expected), "{error}");
    let named = dir.write(
        "keys",
        "[default]\naws_access_key_id=A\naws_secret_access_key=s",
    );
    let config = dir.write("settings", "[default]\nregion=r");
    let variables = [
        ("AWS_SHARED_CREDENTIALS_FILE", named.to_str().unwrap()),
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
    ];
    let chain = Chain::new(environment(&dir, &variables), None);
    assert_eq!(found(&chain).await.unwrap(), "A");
    assert_eq!(chain.region().unwrap().as_deref(), Some("r"));
    std::fs::write(&named, b"\xff").unwrap();
    let chain = Chain::new(environment(&dir, &variables), None);
    let error = found(&chain).await.unwrap_err();
    assert!(error.contains("keys") && error.contains("UTF-8"), "{error}");
}

#[tokio::test]
async fn keys_in_files_are_read_again_after_a_minute() {
    let dir = ScratchDir::new();
    let with = |key: &str| format!("[default]\naws_access_key_id={key}\naws_secret_access_key=s");
    files(&dir, &with("OLD"), "");
    let chain = Chain::new(environment(&dir, &[]), None);
    let key = async |now| chain.credentials(now).await.unwrap().access_key_id.clone();
    assert_eq!(key(NOW).await, "OLD");
    files(&dir, &with("NEW"), "");
    assert_eq!(key(NOW + 59).await, "OLD");
    assert_eq!(key(NOW + 60).await, "NEW");
}

/// A profile whose program counts its executions and prints a credential with this expiration.
fn counting(dir: &ScratchDir, expiration: &str) -> Chain {
    let script = dir.path().join("script");
    let runs = dir.path().join("runs");
    std::fs::write(
        &script,
        format!(
            "echo run >> {}\nprintf %s '{{\"Version\":1,\"AccessKeyId\":\"P\",\
             \"SecretAccessKey\":\"s\"{expiration}}}'",
            runs.display()
        ),
    )
    .unwrap();
    let config = format!(
        "[default]\ncredential_process = sh '{}'\n",
        script.display()
    );
    files(dir, "", &config);
    Chain::new(environment(dir, &[]), None)
}

fn runs(dir: &ScratchDir) -> usize {
    let runs = std::fs::read_to_string(dir.path().join("runs"));
    runs.unwrap_or_default().lines().count()
}

#[tokio::test]
async fn a_program_runs_once_for_all_callers_and_again_before_its_credential_expires() {
    let dir = ScratchDir::new();
    // An hour after NOW.
    let chain = Arc::new(counting(&dir, ",\"Expiration\":\"2015-08-30T13:36:00Z\""));
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let chain = chain.clone();
            tokio::spawn(async move { chain.credentials(NOW).await.is_ok() })
        })
        .collect();
    for one in callers {
        assert!(one.await.unwrap());
    }
    assert_eq!(runs(&dir), 1);
    chain.credentials(NOW + 3_539).await.unwrap();
    assert_eq!(runs(&dir), 1);
    // It prints the same credential again, and still does not run for each request.
    for now in [NOW + 3_540, NOW + 3_549] {
        chain.credentials(now).await.unwrap();
        assert_eq!(runs(&dir), 2);
    }
    chain.credentials(NOW + 3_550).await.unwrap();
    assert_eq!(runs(&dir), 3);
    // It fails, but the last credential is still valid.
    std::fs::write(dir.path().join("script"), "exit 1").unwrap();
    chain.credentials(NOW + 3_590).await.unwrap();
    let error = chain
        .credentials(NOW + 3_600)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("exit status: 1"), "{error}");
}

#[tokio::test]
async fn a_credential_without_expiration_is_cached_and_an_expired_one_is_refused() {
    let dir = ScratchDir::new();
    let chain = counting(&dir, "");
    for now in [NOW, NOW * 2] {
        chain.credentials(now).await.unwrap();
    }
    assert_eq!(runs(&dir), 1);
    let dir = ScratchDir::new();
    let chain = counting(&dir, ",\"Expiration\":\"2015-08-30T12:36:00Z\"");
    let error = found(&chain).await.unwrap_err();
    assert!(error.contains("expired"), "{error}");
}

#[test]
fn secrets_are_not_shown() {
    let environment = Environment {
        secret_access_key: Some(Secret::new("s3cret")),
        session_token: Some(Secret::new("t0ken")),
        ..Environment::default()
    };
    let chain = Chain::new(environment, None);
    let shown = format!("{chain:?}");
    assert!(
        !shown.contains("s3cret") && !shown.contains("t0ken"),
        "{shown}"
    );
}
