//! A command line that is being typed: what the last word may be. It is read by the definitions of
//! the commands, without their rules for complete command lines.

use clap::builder::PossibleValue;
use clap::{Arg, Command};

use super::candidates::Candidate;
use super::names::Names;
use crate::flag_word::{FlagWord, is_flag, needs_value};

/// What is known of the line.
#[derive(Debug, PartialEq)]
pub(super) struct PartialLine {
    /// The flags with their values, by long name. A flag without a value has none.
    pub(super) flags: Vec<(String, Option<String>)>,
    /// The words that are not flags, without the commands.
    pub(super) words: Vec<String>,
    /// What the last word may be.
    pub(super) kind: CompletionKind,
    /// What is typed of it.
    pub(super) typed: String,
    /// What is before that in the same word: `--context=`, or `-n`.
    pub(super) flag: String,
}

/// What a word may be.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CompletionKind {
    /// Commands, flags, or values that are defined.
    Fixed(Vec<Candidate>),
    /// Files, which the shell completes.
    Files,
    /// Names from the kubeconfig or the cluster.
    Names(Names),
    /// A value for which there are no candidates.
    Nothing,
}

impl PartialLine {
    /// `None` if there is no word.
    pub(super) fn parse(root: &Command, all: &[String]) -> Option<Self> {
        let (last, before) = all.split_last()?;
        let mut line = Self {
            flags: Vec::new(),
            words: Vec::new(),
            kind: CompletionKind::Nothing,
            typed: last.clone(),
            flag: String::new(),
        };
        let (mut command, mut awaited) = (root, None::<&Arg>);
        for word in before {
            if let Some(flag) = awaited.take() {
                line.note(flag, Some(word));
            } else if word == "--" {
                // The command line of another program follows.
                line.kind = CompletionKind::Files;
                return Some(line);
            } else if is_flag(word) {
                if let Some(found) = FlagWord::parse(command, word) {
                    if found.value.is_none() && needs_value(found.flag) {
                        awaited = Some(found.flag);
                    } else {
                        line.note(found.flag, found.value);
                    }
                }
            } else if let Some(found) = command.find_subcommand(word) {
                command = found;
            } else {
                line.words.push(word.clone());
            }
        }
        if let Some(flag) = awaited {
            line.kind = value_kind(command, flag);
        } else if last.starts_with('-') {
            line.complete_flag(command, last);
        } else if command.has_subcommands() {
            line.kind = CompletionKind::Fixed(subcommands(command));
        } else {
            let mut positionals = command.get_positionals().filter(|it| !it.is_hide_set());
            let last_one = command
                .get_positionals()
                .filter(|it| !it.is_hide_set())
                .last();
            let found = positionals.nth(line.words.len());
            let found = found
                .or(last_one.filter(|it| it.get_num_args().is_some_and(|it| it.max_values() > 1)));
            // Words after `--` are completed as the command of `run`, not here.
            let found = found.filter(|it| !it.is_last_set());
            line.kind = found.map_or(CompletionKind::Nothing, |it| value_kind(command, it));
        }
        Some(line)
    }

    fn note(&mut self, flag: &Arg, value: Option<&str>) {
        if let Some(name) = flag.get_long() {
            self.flags.push((name.to_owned(), value.map(str::to_owned)));
        }
    }

    /// The last word begins with a dash: a flag, or its value in the same word.
    fn complete_flag(&mut self, command: &Command, last: &str) {
        let found = FlagWord::parse(command, last);
        if let Some(FlagWord {
            flag,
            name,
            value: Some(typed),
        }) = found
        {
            typed.clone_into(&mut self.typed);
            name.clone_into(&mut self.flag);
            self.kind = value_kind(command, flag);
            return;
        }
        let flags = command.get_arguments().filter(|it| !it.is_hide_set());
        let flags = flags.filter_map(|it| {
            let help = it.get_help().map(ToString::to_string);
            Some(Candidate::described(format!("--{}", it.get_long()?), help))
        });
        self.kind = CompletionKind::Fixed(flags.collect());
    }
}

fn subcommands(command: &Command) -> Vec<Candidate> {
    let all = command.get_subcommands().filter(|it| !it.is_hide_set());
    let all =
        all.map(|it| Candidate::described(it.get_name(), it.get_about().map(ToString::to_string)));
    all.collect()
}

/// What the value of a flag or the word at a position may be.
fn value_kind(command: &Command, of: &Arg) -> CompletionKind {
    let known = of.get_possible_values();
    let known = known.iter().filter(|it| !it.is_hide_set());
    let known = known.map(|it: &PossibleValue| {
        Candidate::described(it.get_name(), it.get_help().map(ToString::to_string))
    });
    let known: Vec<_> = known.collect();
    if !known.is_empty() {
        return CompletionKind::Fixed(known);
    }
    if let Some(names) = Names::of_value(command, of) {
        return CompletionKind::Names(names);
    }
    let is_file = |name: &str| matches!(name, "FILE" | "DIR" | "DIRECTORY" | "PATH" | "PROGRAM");
    let names = of.get_value_names().unwrap_or_default();
    if names.iter().any(|name| is_file(name)) {
        CompletionKind::Files
    } else {
        CompletionKind::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTING_WITH_P: &[&str] = if cfg!(feature = "playground") {
        &["playground", "port-forward"]
    } else {
        &["port-forward"]
    };

    fn parse(words: &[&str]) -> PartialLine {
        let mut command = crate::definition();
        command.build();
        let words: Vec<_> = words.iter().map(|&it| it.to_owned()).collect();
        PartialLine::parse(&command, &words).unwrap()
    }

    #[test]
    fn words_are_completed_from_the_command_definitions() {
        let rows: [(&[&str], &[&str]); 8] = [
            (&["ex"], &["exec"]),
            (&["po"], &["port-forward"]),
            (&["p"], STARTING_WITH_P),
            (&["nothing"], &[]),
            (&["exec", "--as-u"], &["--as-uid", "--as-user-extra"]),
            (&["exec", "-n", "attach", "web", "--quie"], &["--quiet"]),
            (&["exec", "-it", "web", "--quie"], &["--quiet"]),
            (&["completion", "z"], &["zsh"]),
        ];
        for (words, expected) in rows {
            let line = parse(words);
            let CompletionKind::Fixed(found) = line.kind else {
                panic!("{words:?}: {line:?}");
            };
            let found = found.iter().map(|it| it.word.as_str());
            let found: Vec<_> = found.filter(|it| it.starts_with(&line.typed)).collect();
            assert_eq!(found, expected, "{words:?}");
        }
        let line = parse(&["exec", "--tty="]);
        let values = ["true", "false"].map(Candidate::new).to_vec();
        assert_eq!(
            (line.kind, line.flag.as_str()),
            (CompletionKind::Fixed(values), "--tty=")
        );
    }

    #[test]
    fn values_are_files_names_or_unknown() {
        use CompletionKind as Kind;
        let rows: [(&[&str], Kind, &str); 27] = [
            (&["exec", ""], Kind::Names(Names::PodReferences), ""),
            (&["exec", "we"], Kind::Names(Names::PodReferences), "we"),
            (&["exec", "web", ""], Kind::Nothing, ""),
            (&["exec", "web", "--", "--quie"], Kind::Files, "--quie"),
            (&["exec", "--kubeconfig", ""], Kind::Files, ""),
            (&["exec", "--kubeconfig=/e"], Kind::Files, "/e"),
            (
                &["exec", "web", "-c", ""],
                Kind::Names(Names::Containers),
                "",
            ),
            (
                &["exec", "web", "-itcap"],
                Kind::Names(Names::Containers),
                "ap",
            ),
            (&["exec", "--token", ""], Kind::Nothing, ""),
            (&["exec", "--context=c"], Kind::Names(Names::Contexts), "c"),
            (
                &["attach", "--cluster", ""],
                Kind::Names(Names::Clusters),
                "",
            ),
            (&["attach", "--user", ""], Kind::Names(Names::Users), ""),
            (&["attach", "-ns"], Kind::Names(Names::Namespaces), "s"),
            (&["attach", "-n=s"], Kind::Names(Names::Namespaces), "s"),
            (&["attach", ""], Kind::Names(Names::PodReferences), ""),
            (&["port-forward", ""], Kind::Names(Names::PodReferences), ""),
            (&["port-forward", "web", ""], Kind::Names(Names::Ports), ""),
            (
                &["port-forward", "web", "80", ""],
                Kind::Names(Names::Ports),
                "",
            ),
            (&["cp", ""], Kind::Names(Names::CopySpecs), ""),
            (&["cp", "x", "w"], Kind::Names(Names::CopySpecs), "w"),
            (&["cp", "x", "y", "z"], Kind::Nothing, "z"),
            (
                &["cp", "web:/x", "-c", ""],
                Kind::Names(Names::Containers),
                "",
            ),
            (&["run", "--context", ""], Kind::Names(Names::Contexts), ""),
            (&["run", "-n", ""], Kind::Names(Names::Namespaces), ""),
            (&["run", "--", "kubectl", ""], Kind::Files, ""),
            (
                &["skew", "--context", "a", "--context", ""],
                Kind::Names(Names::Contexts),
                "",
            ),
            (&["serve", "--tls-cert-file", ""], Kind::Files, ""),
        ];
        for (words, kind, typed) in rows {
            let line = parse(words);
            assert_eq!((line.kind, line.typed.as_str()), (kind, typed), "{words:?}");
        }
    }

    #[test]
    fn flags_and_words_before_the_last_word_are_known() {
        let line = parse(&[
            "exec",
            "--context",
            "a",
            "-itn=shop",
            "-q",
            "exec",
            "--as=me",
            "-c",
            "",
        ]);
        let flags = [
            ("context", Some("a")),
            ("namespace", Some("shop")),
            ("quiet", None),
            ("as", Some("me")),
        ];
        let flags = flags.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
        assert_eq!(line.flags, flags);
        assert_eq!(line.words, ["exec"]);
        assert_eq!(parse(&["exec", "-nsho"]).flag, "-n");
        assert_eq!(parse(&["exec", "-"]).typed, "-");
    }
}
