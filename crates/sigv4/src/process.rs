//! `credential_process`: a program that prints a credential.

use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use skewbridge_k8s_api::time::parse_unix_seconds;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use zeroize::Zeroizing;

use super::Credentials;
use crate::{Error, Secret};

/// How long the program may run: the user may have to touch a key or type a code.
const PROCESS_TIMEOUT: Duration = Duration::from_mins(1);

/// The longest output: longer than any credential.
const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// Executes the program. It has no standard input, and inherits standard error for messages to
/// the user.
pub(super) async fn run(
    profile: &str,
    line: &str,
    timeout: Option<Duration>,
) -> Result<Credentials, Error> {
    let failed = |cause: String| Error::Process {
        profile: profile.to_owned(),
        cause,
    };
    let words =
        split_command_line(line).ok_or_else(|| failed("a quote is not closed".to_owned()))?;
    let Some((program, arguments)) = words.split_first() else {
        return Err(failed("it is empty".to_owned()));
    };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(format!("{program}: {error}")))?;
    let Some(stdout) = child.stdout.take() else {
        return Err(failed("it has no output".to_owned()));
    };
    // Reserved at once: a buffer that grows leaves copies in memory.
    let mut printed = Zeroizing::new(Vec::with_capacity(MAX_OUTPUT_BYTES + 1));
    let running = async {
        let mut stdout = stdout.take(MAX_OUTPUT_BYTES as u64 + 1);
        while printed.len() <= MAX_OUTPUT_BYTES {
            if stdout.read_buf(&mut *printed).await? == 0 {
                return child.wait().await.map(Some);
            }
        }
        Ok(None)
    };
    let timeout = timeout.unwrap_or(PROCESS_TIMEOUT);
    let ended = match tokio::time::timeout(timeout, running).await {
        Err(_) => {
            let limit = timeout.as_secs();
            return Err(failed(format!("{program} did not end within {limit} s")));
        }
        Ok(Err(error)) => return Err(failed(format!("{program}: {error}"))),
        Ok(Ok(None)) => return Err(failed(format!("{program} prints more than a credential"))),
        Ok(Ok(Some(ended))) => ended,
    };
    if !ended.success() {
        return Err(failed(format!("{program} failed with {ended}")));
    }
    parse_output(&printed).map_err(|cause| failed(format!("{program}: {cause}")))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProcessOutput<'a> {
    version: u32,
    access_key_id: &'a str,
    secret_access_key: &'a str,
    #[serde(default)]
    session_token: Option<&'a str>,
    #[serde(default)]
    expiration: Option<&'a str>,
}

/// Errors must not repeat the output. Its text is borrowed: text with escapes is no key.
fn parse_output(printed: &[u8]) -> Result<Credentials, &'static str> {
    let printed: ProcessOutput<'_> =
        serde_json::from_slice(printed).map_err(|_| "it does not print a credential in JSON")?;
    if printed.version != 1 {
        return Err("it prints another Version than 1");
    }
    if printed.access_key_id.is_empty() || printed.secret_access_key.is_empty() {
        return Err("it prints an empty key");
    }
    let token = printed.session_token.filter(|it| !it.is_empty());
    let expires = match printed.expiration.filter(|it| !it.is_empty()) {
        None => None,
        Some(text) => {
            let seconds = parse_unix_seconds(text).and_then(|it| u64::try_from(it).ok());
            Some(seconds.ok_or("it prints an Expiration that is not RFC 3339")?)
        }
    };
    Ok(Credentials {
        access_key_id: printed.access_key_id.to_owned(),
        secret_access_key: Secret::new(printed.secret_access_key),
        session_token: token.map(Secret::new),
        expires,
    })
}

/// Splits a command line into words: quotes and backslashes as in a shell, and nothing else of
/// a shell. `None` if a quote is not closed.
fn split_command_line(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' | '\t' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        '\'' => break,
                        inside => word.push(inside),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        '"' => break,
                        '\\' => match characters.next()? {
                            escaped @ ('"' | '\\') => word.push(escaped),
                            other => word.extend(['\\', other]),
                        },
                        inside => word.push(inside),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(characters.next()?),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    const GOOD: &str = r#"{"Version":1,"AccessKeyId":"AKID","SecretAccessKey":"s3cret","SessionToken":"t0ken","Expiration":"2015-08-30T12:36:00Z"}"#;

    #[test]
    fn a_command_line_is_split_at_spaces_outside_quotes() {
        let rows: [(&str, Option<&[&str]>); 9] = [
            ("a b  c", Some(&["a", "b", "c"])),
            (" a\t'b c' ", Some(&["a", "b c"])),
            ("a \"b \\\"c\\\" \\n\"", Some(&["a", "b \"c\" \\n"])),
            ("a''b \"\"", Some(&["ab", ""])),
            ("a\\ b", Some(&["a b"])),
            ("", Some(&[])),
            ("$(x) | y", Some(&["$(x)", "|", "y"])),
            ("a 'b", None),
            ("a \"b", None),
        ];
        for (line, expected) in rows {
            let expected = expected.map(|it| it.iter().map(|it| (*it).to_owned()).collect());
            assert_eq!(split_command_line(line), expected, "{line}");
        }
    }

    #[tokio::test]
    async fn the_output_is_parsed_as_a_credential() {
        let read = run("p", &format!("printf %s '{GOOD}'"), None)
            .await
            .unwrap();
        assert_eq!(read.access_key_id, "AKID");
        assert_eq!(read.secret_access_key.expose(), b"s3cret");
        assert_eq!(read.session_token.as_ref().unwrap().expose(), b"t0ken");
        assert_eq!(read.expires, Some(1_440_938_160));
        assert!(!format!("{read:?}").contains("s3cret"));
        assert!(!format!("{read:?}").contains("t0ken"));
    }

    #[tokio::test]
    async fn errors_do_not_repeat_the_output() {
        let bad = |text: &str| format!("printf %s '{text}'");
        let rows = [
            ("false".to_owned(), "failed with exit status: 1"),
            ("/nonexistent/program".to_owned(), "/nonexistent/program: "),
            ("yes s3cret".to_owned(), "more than a credential"),
            ("sleep 600".to_owned(), "did not end within"),
            ("printf 'x".to_owned(), "not closed"),
            (String::new(), "empty"),
            (bad("s3cret"), "in JSON"),
            (bad(&GOOD.replace(":1", ":2")), "Version"),
            (bad(&GOOD.replace("AKID", "")), "empty key"),
            (bad(&GOOD.replace("2015-08", "2015")), "Expiration"),
            (bad(&GOOD.replace("2015-08-30", "2015-02-31")), "Expiration"),
            (bad(&GOOD.replace("2015", "1969")), "Expiration"),
        ];
        for (line, expected) in rows {
            let timeout = line
                .starts_with("sleep")
                .then_some(Duration::from_millis(10));
            let error = run("p", &line, timeout).await.unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
            assert!(
                error.contains("\"p\"") && !error.contains("s3cret"),
                "{error}"
            );
        }
    }
}
