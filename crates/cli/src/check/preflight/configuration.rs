//! Problems that `serve` would report and not start with, each with its remedy.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use skewbridge_gateway::config::KeyPairFiles;
use skewbridge_gateway::tls::own_certificates::FrontProxy;

use super::certificates::ca_that_issued;
use crate::check::finding::{Finding, Remedy, Section};
use crate::serve::{self, EffectiveFlags, Problem, Warning};

const ALLOWED_NAMES: &str = "--requestheader-allowed-names";

const SECTION: Section = Section::Configuration;

/// One failure for each problem of the configuration.
pub(super) fn problems(command_line: &serve::CommandLine, problems: &[Problem]) -> Vec<Finding> {
    let effective = command_line.effective().ok();
    let found = problems.iter().map(|problem| {
        let facts = effective.as_ref().map(|it| Facts::of(problem, it));
        judge(problem, &facts.unwrap_or_default())
    });
    found.collect()
}

/// The finding that the configuration is valid, and a warning for each setting without effect.
pub(super) fn warnings(warnings: &[Warning]) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(SECTION, "flags and files are valid")];
    // Warnings about files are findings about certificates.
    for warning in warnings.iter().filter(|it| it.file.is_none()) {
        let (message, remedy) = split(&warning.message);
        findings.push(Finding::warning(
            SECTION,
            format!("{} has effect", warning.flag),
            message,
            Remedy::flag(first_flag(&warning.flag), remedy),
        ));
    }
    findings
}

/// Facts about the file of a problem and about related files, from which the remedy is chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Facts {
    access: Option<ErrorKind>,
    /// The group of this process, which could be permitted to read the file.
    group: u32,
    /// A CA file that exists and that has issued the certificate that the flag is for.
    ca: Option<PathBuf>,
    /// The common name of the front-proxy certificate.
    front_proxy_name: Option<String>,
}

impl Facts {
    fn of(problem: &Problem, effective: &EffectiveFlags) -> Self {
        let file = problem.file.as_deref();
        let pair = |cert: &str, key: &str| {
            let files = KeyPairFiles {
                cert: effective.value(cert)?.into(),
                key: effective.value(key)?.into(),
            };
            Some((files.cert.clone(), files.load().ok()?))
        };
        let ca = match first_flag(&problem.flag) {
            "--peer-ca-file" => {
                let serving = pair("tls-cert-file", "tls-private-key-file");
                serving.and_then(|(_, pair)| {
                    let configured = ["upstream-ca-file", "client-ca-file", "etcd-cafile"];
                    let configured = configured.iter().filter_map(|it| effective.value(it));
                    ca_that_issued(&pair.certified.cert, configured.map(PathBuf::from))
                })
            }
            _ => None,
        };
        let front_proxy = pair("proxy-client-cert-file", "proxy-client-key-file");
        Self {
            access: file.and_then(|it| File::open(it).err()).map(|it| it.kind()),
            group: rustix::process::getegid().as_raw(),
            ca,
            front_proxy_name: front_proxy
                .map(|(path, pair)| FrontProxy::new(&path, &pair).common_name)
                .filter(|it| !it.is_empty()),
        }
    }
}

fn judge(problem: &Problem, facts: &Facts) -> Finding {
    let flag = first_flag(&problem.flag);
    let name = match &problem.file {
        Some(file) => format!("{flag} {} can be used", file.display()),
        None => format!("{flag} can be used"),
    };
    let (message, text) = split(&problem.message);
    let mut remedy = remedy(problem, facts, flag, text);
    remedy.file = remedy.file.or_else(|| problem.file.clone());
    // The text says where the value is from, if it is from a file.
    let message = match problem.flag.split_once(" (") {
        Some((_, place)) if place.ends_with(')') => {
            format!("{message} ({})", place.trim_end_matches(')'))
        }
        _ => message,
    };
    Finding::failure(SECTION, name, message, remedy)
}

fn remedy(problem: &Problem, facts: &Facts, flag: &str, text: String) -> Remedy {
    if let (Some(ErrorKind::PermissionDenied), Some(file)) = (facts.access, &problem.file) {
        let file = quoted(file);
        let group = facts.group;
        return Remedy::command(
            format!("chgrp {group} {file} && chmod g+r {file}"),
            "let the group of the user that runs skewbridge read the file, and enter its directories",
        )
        .of_flag(flag);
    }
    if let Some(ca) = &facts.ca {
        return Remedy::set(flag, ca.display()).text(format!(
            "set {flag}={}, which has issued the certificate that peers see",
            ca.display()
        ));
    }
    if let (true, Some(name)) = (
        problem.message.contains(ALLOWED_NAMES) && flag == "--requestheader-client-ca-file",
        &facts.front_proxy_name,
    ) {
        return Remedy::set(ALLOWED_NAMES, name).text(format!(
            "set {ALLOWED_NAMES}={name}, the name of the front-proxy certificate, or use a separate \
             CA for front proxies"
        ));
    }
    Remedy::flag(flag, text)
}

/// The message and its last part, which says what to do.
fn split(message: &str) -> (String, String) {
    match message.rsplit_once("; ") {
        Some((message, remedy)) => (message.to_owned(), remedy.to_owned()),
        None if message.starts_with("required") => (message.to_owned(), "set the flag".to_owned()),
        None => (
            message.to_owned(),
            "correct the flag, or its file".to_owned(),
        ),
    }
}

/// The first of several flags, without the file that it is from.
fn first_flag(flags: &str) -> &str {
    let first = flags.split(", ").next().unwrap_or(flags);
    first.split(" (").next().unwrap_or(first)
}

/// A path as a word of a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    if text.bytes().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(flag: &str, file: Option<&str>, message: &str) -> Problem {
        Problem {
            flag: flag.to_owned(),
            file: file.map(PathBuf::from),
            message: message.to_owned(),
        }
    }

    #[test]
    fn the_last_part_of_a_message_is_its_remedy() {
        let facts = Facts::default();
        let rows = [
            (
                problem("--secure-port", None, "\"x\" is not a number"),
                "\"x\" is not a number",
                "correct the flag, or its file",
                "--secure-port",
            ),
            (
                problem(
                    "--tls-private-key-file",
                    Some("/a.key"),
                    "the private key does not match; use the two that were issued together",
                ),
                "the private key does not match",
                "use the two that were issued together",
                "--tls-private-key-file",
            ),
            (
                problem(
                    "--upstream (upstream in /c.yaml)",
                    None,
                    "required: the server",
                ),
                "required: the server (upstream in /c.yaml)",
                "set the flag",
                "--upstream",
            ),
        ];
        for (problem, message, remedy, flag) in rows {
            let finding = judge(&problem, &facts);
            assert_eq!(finding.message, message);
            let found = finding.remedy.unwrap();
            assert_eq!(
                (found.text.as_str(), found.flag.as_deref()),
                (remedy, Some(flag))
            );
            assert_eq!(found.file, problem.file);
        }
    }

    #[test]
    fn a_remedy_is_precise_where_the_value_is_known() {
        let unreadable = problem(
            "--tls-private-key-file",
            Some("/pki/a b.key"),
            "permission denied",
        );
        let facts = Facts {
            access: Some(ErrorKind::PermissionDenied),
            group: 990,
            ..Facts::default()
        };
        let remedy = judge(&unreadable, &facts).remedy.unwrap();
        assert_eq!(
            remedy.command.unwrap(),
            "chgrp 990 '/pki/a b.key' && chmod g+r '/pki/a b.key'"
        );

        let overlap = problem(
            "--requestheader-client-ca-file",
            Some("/pki/ca.crt"),
            "has a CA in common; set --requestheader-allowed-names, or use a separate CA",
        );
        let facts = Facts {
            front_proxy_name: Some("front-proxy-client".to_owned()),
            ..Facts::default()
        };
        let remedy = judge(&overlap, &facts).remedy.unwrap();
        assert_eq!(remedy.flag.unwrap(), "--requestheader-allowed-names");
        assert_eq!(remedy.value.unwrap(), "front-proxy-client");

        let missing = problem("--peer-ca-file", Some("/pki/peer.crt"), "no such file");
        let facts = Facts {
            access: Some(ErrorKind::NotFound),
            ca: Some("/etc/kubernetes/pki/ca.crt".into()),
            ..Facts::default()
        };
        let remedy = judge(&missing, &facts).remedy.unwrap();
        assert_eq!(remedy.value.unwrap(), "/etc/kubernetes/pki/ca.crt");
    }
}
