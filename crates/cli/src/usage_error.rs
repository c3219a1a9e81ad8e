//! Errors of the command line: clap's message, with advice for names that other programs have and
//! for a command of `run` without dashes.

mod advice;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use skewbridge_pkcs11::{PIN_REFUSED, Selection};

use crate::flag_word::{FlagWord, is_flag, needs_value};
use crate::similar_names::similar_names;

/// Prints clap's output: help and version succeed, everything else is a usage error.
pub(crate) fn print(
    mut error: Error,
    mut definition: Command,
    arguments: impl Iterator<Item = OsString>,
) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    definition.build();
    let words: Vec<_> = arguments
        .map(|it| it.to_string_lossy().into_owned())
        .collect();
    let line = WrongLine::parse(&definition, &words);
    let text = match line.run_with_dashes() {
        Some(corrected) if error.kind() == ErrorKind::UnknownArgument => format!(
            "error: two dashes must precede the command of `{} run`\n\n  tip: write\n    \
             {corrected}",
            crate::called()
        ),
        _ => {
            line.advise(&mut error);
            String::new()
        }
    };
    // clap repeats an unexpected argument, which may be a URI with a PIN.
    let all = format!("{text}{}", error.render());
    if Selection::mentions_pin(&all) {
        let _ = writeln!(std::io::stderr(), "error: {PIN_REFUSED}");
    } else if text.is_empty() {
        let _ = error.print();
    } else {
        crate::client_command::print_stderr(text);
    }
    ExitCode::from(crate::EXIT_USAGE)
}

/// A command line that clap does not accept.
struct WrongLine<'a> {
    root: &'a Command,
    command: &'a Command,
    words: &'a [String],
    /// The position of the first word that is neither a command, nor a flag, nor its value.
    other: Option<usize>,
}

impl<'a> WrongLine<'a> {
    fn parse(root: &'a Command, words: &'a [String]) -> Self {
        let (mut command, mut awaits_value, mut other) = (root, false, None);
        for (at, word) in words.iter().enumerate() {
            if std::mem::take(&mut awaits_value) {
                continue;
            }
            if word == "--" {
                break;
            }
            if is_flag(word) {
                let found = FlagWord::parse(command, word);
                awaits_value = found.is_some_and(|it| it.value.is_none() && needs_value(it.flag));
            } else if let Some(found) = command.find_subcommand(word) {
                command = found;
            } else {
                other = Some(at);
                break;
            }
        }
        Self {
            root,
            command,
            words,
            other,
        }
    }

    /// `run` with a command, but without the dashes before it.
    fn run_with_dashes(&self) -> Option<String> {
        let at = self.other.filter(|_| self.command.get_name() == "run")?;
        let (before, command) = self.words.split_at(at);
        let words = before.iter().map(String::as_str);
        let words = words
            .chain(["--"])
            .chain(command.iter().map(String::as_str));
        let words: Vec<_> = words.map(shell_quoted).collect();
        Some(format!("{} {}", crate::called(), words.join(" ")))
    }

    /// Adds advice to clap's message.
    fn advise(&self, error: &mut Error) {
        let context = |error: &Error, kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            _ => None,
        };
        match error.kind() {
            ErrorKind::UnknownArgument => {
                let Some(argument) = context(error, ContextKind::InvalidArg) else {
                    return;
                };
                let Some(name) = argument.strip_prefix("--") else {
                    return;
                };
                let name = name.split('=').next().unwrap_or_default();
                self.advise_on_flag(error, name);
            }
            ErrorKind::InvalidSubcommand => {
                let Some(name) = context(error, ContextKind::InvalidSubcommand) else {
                    return;
                };
                if let Some(tip) = advice::on_subcommand(&name, crate::called()) {
                    error.remove(ContextKind::SuggestedSubcommand);
                    add_tip(error, &tip);
                }
            }
            _ => {}
        }
    }

    fn advise_on_flag(&self, error: &mut Error, name: &str) {
        if let Some(tip) = advice::on_flag(self.command.get_name(), name) {
            error.remove(ContextKind::SuggestedArg);
            add_tip(error, tip);
            return;
        }
        let flags = visible_flags(self.command);
        let similar = similar_names(name, flags.iter().copied());
        if !similar.is_empty() {
            let similar = similar.iter().map(|it| format!("--{it}")).collect();
            error.insert(ContextKind::SuggestedArg, ContextValue::Strings(similar));
            error.remove(ContextKind::Suggested);
            return;
        }
        let others = self.root.get_subcommands().filter(|it| !it.is_hide_set());
        let others = others.filter(|it| visible_flags(it).contains(&name));
        let others: Vec<_> = others.map(|it| format!("'{}'", it.get_name())).collect();
        if !others.is_empty() {
            error.remove(ContextKind::SuggestedArg);
            add_tip(
                error,
                &format!("'--{name}' is a flag of {}", others.join(", ")),
            );
        } else if error.get(ContextKind::SuggestedArg).is_some() {
            error.remove(ContextKind::Suggested);
        }
    }
}

fn visible_flags(command: &Command) -> Vec<&str> {
    let flags = command.get_arguments().filter(|it| !it.is_hide_set());
    flags.filter_map(Arg::get_long).collect()
}

fn add_tip(error: &mut Error, tip: &str) {
    let tip = StyledStr::from(tip.to_owned());
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
}

/// Quoted for a shell.
fn shell_quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "/._-=:@,+%".contains(it);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(words: &[&str]) -> String {
        let mut definition = crate::definition();
        let line = std::iter::once("skewbridge").chain(words.iter().copied());
        let mut error = definition.clone().try_get_matches_from(line).unwrap_err();
        definition.build();
        let words: Vec<_> = words.iter().map(|&it| it.to_owned()).collect();
        WrongLine::parse(&definition, &words).advise(&mut error);
        error.render().to_string()
    }

    #[test]
    fn unknown_flags_get_suggestions() {
        let rows: [(&[&str], &str); 14] = [
            (&["serve", "--tls-cert=x"], "'--tls-cert-file'"),
            (&["serve", "--etcd-server=x"], "'--etcd-servers'"),
            (&["serve", "--etcd-ca-file=x"], "'--etcd-cafile'"),
            (&["serve", "--client-ca", "x"], "'--client-ca-file'"),
            (&["serve", "--upstreams=x"], "'--upstream'"),
            (
                &["serve", "--authorization-mode=RBAC"],
                "flag of kube-apiserver",
            ),
            (&["serve", "--max-requests-inflight=9"], "--max-connections"),
            (&["serve", "--kubeconfig=x"], "no kubeconfig"),
            (&["exec", "--contxt=x", "web"], "'--context'"),
            (
                &["exec", "--secure-port=1"],
                "'--secure-port' is a flag of 'check', 'serve'",
            ),
            (&["exec", "--selector=app=web"], "TYPE/NAME"),
            (&["skew", "--all-contexts"], "--context"),
            (
                &["port-forward", "--adress=::1", "web", "80"],
                "'--address'",
            ),
            (&["route", "--user-agnt=x"], "'--user-agent'"),
        ];
        for (words, expected) in rows {
            let message = message(words);
            assert!(message.contains("tip: "), "{words:?}: {message}");
            assert!(message.contains(expected), "{words:?}: {message}");
            // Advice for a value that begins with dashes is confusing here.
            assert!(!message.contains("as a value"), "{words:?}: {message}");
        }
        let message = message(&["exec", "--qqqqqq"]);
        assert!(!message.contains("similar"), "{message}");
    }

    #[test]
    fn a_misspelt_flag_is_corrected_in_every_command() {
        let mut definition = crate::definition();
        definition.build();
        for command in definition.get_subcommands() {
            // The first three flags suffice: all are corrected in the same way.
            for flag in visible_flags(command).into_iter().take(3) {
                let last = flag.len() - 1;
                let typed = format!("--{}", &flag[..last]);
                if last < 3 || visible_flags(command).contains(&&typed[2..]) {
                    continue;
                }
                let message = message(&[command.get_name(), &typed]);
                let expected = format!("'--{flag}'");
                assert!(message.contains(&expected), "{typed}: {message}");
            }
        }
    }

    #[test]
    fn unknown_commands_get_suggestions() {
        let rows = [
            ("exce", "'exec'"),
            ("portforward", "'port-forward'"),
            ("get", "skewbridge run -- kubectl get"),
            ("logs", "skewbridge run -- kubectl logs"),
            ("proxy", "skewbridge serve"),
            ("diff", "skewbridge skew"),
            ("copy", "skewbridge cp"),
        ];
        for (word, expected) in rows {
            let message = message(&[word]);
            assert!(message.contains("tip: "), "{word}: {message}");
            assert!(message.contains(expected), "{word}: {message}");
        }
    }

    #[test]
    fn a_command_of_run_gets_its_dashes() {
        let mut definition = crate::definition();
        definition.build();
        let rows: [(&[&str], Option<&str>); 8] = [
            (
                &["run", "kubectl", "get", "pods"],
                Some("run -- kubectl get pods"),
            ),
            (
                &[
                    "run",
                    "--context",
                    "a b",
                    "-n=x",
                    "helm",
                    "ls",
                    "-o",
                    "json",
                ],
                Some("run --context 'a b' -n=x -- helm ls -o json"),
            ),
            (
                &["run", "kubectl", "exec", "web", "--", "ls"],
                Some("run -- kubectl exec web -- ls"),
            ),
            (
                &["run", "sh", "-c", "it's"],
                Some("run -- sh -c 'it'\\''s'"),
            ),
            (&["run", "--shel"], None),
            (&["run", "--", "kubectl"], None),
            (&["exec", "web", "ls"], None),
            (&["rnu", "kubectl"], None),
        ];
        for (words, expected) in rows {
            let words: Vec<_> = words.iter().map(|&it| it.to_owned()).collect();
            let found = WrongLine::parse(&definition, &words).run_with_dashes();
            let expected = expected.map(|it| format!("skewbridge {it}"));
            assert_eq!(found, expected, "{words:?}");
        }
    }
}
