//! Shell completion. The script of a shell (`skewbridge completion SHELL`) calls the program with
//! the words so far, and the program answers with candidates: commands, flags and fixed values from
//! the definitions of the commands, names from the kubeconfig and from the cluster. kubectl calls
//! it in the same way for `kubectl skewbridge`.

mod candidates;
mod cluster_names;
mod names;
mod partial_line;
mod shell_line;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Command, ValueEnum};

use candidates::Candidates;
use names::Names;
use partial_line::{CompletionKind, PartialLine};
use shell_line::ShellLine;

/// The program name by which kubectl calls a plugin for candidates.
const KUBECTL_PROGRAM: &str = "kubectl_complete-skewbridge";

/// The word before the words of a command line: candidates are printed as kubectl and its library
/// cobra print them. The scripts for zsh and fish use it.
const COMPLETE: &str = "__complete";

/// The word before a line up to the cursor, as one argument, from PowerShell.
const COMPLETE_LINE: &str = "__complete_line";

/// The word before bash's `COMP_WORDBREAKS` and its line up to the cursor.
const COMPLETE_BASH: &str = "__complete_bash";

/// The time limit for names from the cluster. A user waits for them, and the shell is blocked.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(3);

const HELP: &str = "\
Names of contexts, clusters and users are read from the kubeconfig; namespaces, pods, workloads,
containers and ports from the cluster, within 3 s. After an error there are none: call
`skewbridge __complete WORD... ''` to see it.

Examples:
  source <(skewbridge completion bash)
  skewbridge completion zsh > \"${fpath[1]}/_skewbridge\"
  skewbridge completion fish > ~/.config/fish/completions/skewbridge.fish
  skewbridge completion powershell | Out-String | Invoke-Expression";

// The flags of `completion`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct Flags {
    /// The shell
    shell: Shell,
}

/// The shells that kubectl supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

/// Prints the script.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    print(match flags.shell {
        Shell::Bash => include_str!("scripts/skewbridge.bash"),
        Shell::Zsh => include_str!("scripts/skewbridge.zsh"),
        Shell::Fish => include_str!("scripts/skewbridge.fish"),
        Shell::Powershell => include_str!("scripts/skewbridge.ps1"),
    })
}

/// Prints candidates if a shell or kubectl has called the program for them. These calls are not
/// parsed as command lines: the words may be anything.
pub(crate) fn candidates_for_shell(
    program: Option<&OsStr>,
    mut arguments: impl Iterator<Item = OsString>,
    definition: impl FnOnce() -> Command,
) -> Option<ExitCode> {
    if program.is_some_and(|name| name == KUBECTL_PROGRAM) {
        let words = words(arguments);
        let (candidates, flag) = find_values(definition(), &words);
        // The shells put `--flag=` before the values themselves.
        let flag = if flag.ends_with('=') { "" } else { &flag };
        return Some(print(&candidates.after(flag).in_cobras_format()));
    }
    let first = arguments.next()?;
    let words = || words(arguments);
    if first == COMPLETE {
        return Some(print(&find(definition(), &words()).in_cobras_format()));
    }
    if first != COMPLETE_BASH && first != COMPLETE_LINE {
        return None;
    }
    let words = words();
    let (line, breaks) = match words.as_slice() {
        [line] if first == COMPLETE_LINE => (line, ""),
        [breaks, line] if first == COMPLETE_BASH => (line, breaks.as_str()),
        _ => return Some(ExitCode::from(crate::EXIT_USAGE)),
    };
    let line = ShellLine::parse(line, breaks);
    let found = find(definition(), &line.words);
    Some(print(&if first == COMPLETE_BASH {
        line.bash_reply(&found)
    } else {
        found.in_cobras_format()
    }))
}

fn words(arguments: impl Iterator<Item = OsString>) -> Vec<String> {
    let words = arguments.map(|word| word.to_string_lossy().into_owned());
    words.collect()
}

/// Candidates for the last word.
fn find(definition: Command, words: &[String]) -> Candidates {
    let (candidates, flag) = find_values(definition, words);
    candidates.after(&flag)
}

/// Candidates for the last word, and the flag before them in the same word.
fn find_values(mut definition: Command, words: &[String]) -> (Candidates, String) {
    definition.build();
    let Some(line) = PartialLine::parse(&definition, words) else {
        return (Candidates::none(), String::new());
    };
    let candidates = match line.kind {
        CompletionKind::Fixed(values) => Candidates::of(values),
        CompletionKind::Files => Candidates::files(),
        CompletionKind::Nothing => Candidates::none(),
        CompletionKind::Names(names) => names_from_cluster(names, &line),
    }
    .starting_with(&line.typed);
    (candidates, line.flag)
}

/// Names from the kubeconfig or the cluster. Errors are printed on stderr, which the scripts
/// discard.
fn names_from_cluster(names: Names, line: &PartialLine) -> Candidates {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let found = runtime
        .map_err(|error| error.to_string())
        .and_then(|runtime| {
            // The shell owns the terminal.
            skewbridge_client::exec_plugin::reserve_stdin("completion does not prompt");
            let search = cluster_names::find(names, line);
            let search = async { tokio::time::timeout(CLUSTER_TIMEOUT, search).await };
            let found = runtime.block_on(search);
            // A lookup of the host name cannot be cancelled.
            runtime.shutdown_background();
            found.unwrap_or_else(|_| {
                let seconds = CLUSTER_TIMEOUT.as_secs();
                Err(format!("the cluster did not answer within {seconds} s"))
            })
        });
    let found = found.unwrap_or_else(|problem| {
        crate::client_command::print_stderr(format_args!("completion: {problem}"));
        Vec::new()
    });
    let mut candidates = Candidates::of(found);
    // A source or destination of a copy may be a local file.
    candidates.or_files = names == Names::CopySpecs && !line.typed.contains(':');
    candidates
}

fn print(text: &str) -> ExitCode {
    // Write errors are ignored: the reader may have closed the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
