//! `kubectl skewbridge <TAB>`: linked as `kubectl_complete-skewbridge`, the program is called by
//! kubectl to complete the last word. The output is that of cobra: a line per candidate, then a
//! directive for the shell.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::builder::PossibleValue;
use clap::{Arg, Command};

/// The program name that kubectl calls.
pub(crate) const PROGRAM: &str = "kubectl_complete-skewbridge";

/// Cobra's `ShellCompDirectiveDefault`: the shell offers files.
const DIRECTIVE_DEFAULT: &str = ":0";

/// Cobra's `ShellCompDirectiveNoFileComp`.
const DIRECTIVE_NO_FILES: &str = ":4";

/// Answers.
pub(crate) fn run(words: impl Iterator<Item = OsString>, mut command: Command) -> ExitCode {
    command.build();
    let words: Vec<_> = words.map(|it| it.to_string_lossy().into_owned()).collect();
    let mut text = String::new();
    let offered = offered(&command, &words);
    let directive = if offered.is_some() {
        DIRECTIVE_NO_FILES
    } else {
        DIRECTIVE_DEFAULT
    };
    for line in offered.unwrap_or_default() {
        text += &line;
        text.push('\n');
    }
    // Write errors are ignored: the reader may have closed the pipe.
    let _ = writeln!(std::io::stdout(), "{text}{directive}");
    ExitCode::SUCCESS
}

/// Candidates for the last word, each with a tab and a description; `None` where only the shell
/// or the cluster has them.
fn offered(root: &Command, words: &[String]) -> Option<Vec<String>> {
    let (last, before) = words.split_last()?;
    let (mut command, mut awaited) = (root, None);
    for word in before {
        if awaited.take().is_some() {
            continue;
        }
        match word.as_str() {
            // The command line of another program follows.
            "--" => return None,
            flag if flag.starts_with('-') => awaited = flag_awaiting_value(command, flag),
            word => command = command.find_subcommand(word).unwrap_or(command),
        }
    }
    if let Some(flag) = awaited {
        return values(flag, "", last);
    }
    if let Some((flag, start)) = last.split_once('=') {
        return values(find(command, flag)?, &format!("{flag}="), start);
    }
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|it| !it.is_hide_set());
        let flags = flags.filter_map(|it| {
            let help = it.get_help().map(ToString::to_string);
            Some((format!("--{}", it.get_long()?), help))
        });
        return Some(beginning_with(last, flags));
    }
    if command.has_subcommands() {
        let commands = command.get_subcommands().filter(|it| !it.is_hide_set());
        let commands = commands.map(|it| {
            let about = it.get_about().map(ToString::to_string);
            (it.get_name().to_owned(), about)
        });
        return Some(beginning_with(last, commands));
    }
    values(command.get_positionals().next()?, "", last)
}

/// The flag that takes the next word as its value.
fn flag_awaiting_value<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let flag = find(command, word)?;
    let takes = flag.get_num_args().is_some_and(|it| it.min_values() > 0);
    (takes && flag.get_action().takes_values()).then_some(flag)
}

/// By its long name, or by the last letter of a group: the letters before have no value.
fn find<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut all = command.get_arguments();
    if let Some(long) = word.strip_prefix("--") {
        return all.find(|it| it.get_long() == Some(long));
    }
    let letter = word.chars().last();
    all.find(|it| it.get_short() == letter)
}

/// The values of an argument, if they are known.
fn values(of: &Arg, before: &str, start: &str) -> Option<Vec<String>> {
    let known = of.get_possible_values();
    let known = known.iter().filter(|it| !it.is_hide_set());
    let known = known.map(|it: &PossibleValue| {
        let help = it.get_help().map(ToString::to_string);
        (format!("{before}{}", it.get_name()), help)
    });
    let known: Vec<_> = known.collect();
    let start = format!("{before}{start}");
    (!known.is_empty()).then(|| beginning_with(&start, known.into_iter()))
}

fn beginning_with(start: &str, all: impl Iterator<Item = (String, Option<String>)>) -> Vec<String> {
    let all = all.filter(|(word, _)| word.starts_with(start));
    let line = |(word, help): (String, Option<String>)| match help.as_deref() {
        Some(help) => format!("{word}\t{}", help.lines().next().unwrap_or_default()),
        None => word,
    };
    all.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STARTING_WITH_P: &[&str] = if cfg!(feature = "playground") {
        &["playground", "port-forward"]
    } else {
        &["port-forward"]
    };

    #[test]
    fn words_are_completed_from_the_command_definitions() {
        let mut command = crate::definition();
        command.build();
        let rows: [(&[&str], Option<&[&str]>); 13] = [
            (&["ex"], Some(&["exec"])),
            (&["po"], Some(&["port-forward"])),
            (&["p"], Some(STARTING_WITH_P)),
            (&["nothing"], Some(&[])),
            (&["exec", "--as-u"], Some(&["--as-uid", "--as-user-extra"])),
            (
                &["exec", "-n", "attach", "web", "--quie"],
                Some(&["--quiet"]),
            ),
            (&["exec", "-it", "web", "--quie"], Some(&["--quiet"])),
            // Files, or names of objects in the cluster.
            (&["exec", ""], None),
            (&["exec", "web", "--", "--quie"], None),
            (&["exec", "--kubeconfig", ""], None),
            (&["exec", "--kubeconfig="], None),
            (&["exec", "--tty="], Some(&["--tty=true", "--tty=false"])),
            (&["completion", "z"], Some(&["zsh"])),
        ];
        for (words, expected) in rows {
            let words: Vec<_> = words.iter().map(|&it| it.to_owned()).collect();
            let found = offered(&command, &words);
            let found = found.as_deref().map(|lines| {
                let names = lines.iter().map(|it| it.split('\t').next().unwrap());
                names.collect::<Vec<_>>()
            });
            assert_eq!(found.as_deref(), expected, "{words:?}");
        }
        let exec = offered(&command, &["exe".to_owned()]).unwrap();
        assert_eq!(exec, ["exec\tRun a command in a container"]);
    }
}
