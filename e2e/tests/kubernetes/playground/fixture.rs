//! The target of kubectl: a real server, a server of the playground, or a bridge of it.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use skewbridge_e2e::{Output, normalize};
use skewbridge_testkit::ScratchDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// For a command that takes a second or two on an idle machine.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_mins(2);

/// The kind of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// A kube-apiserver.
    Real,
    /// A server of the playground.
    Server,
    /// The bridge in front of the playground server.
    Bridge,
}

/// Which targets a step runs against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Targets {
    All,
    /// Not bridges: they forward such requests like similar ones, or respond themselves for
    /// all servers together.
    Servers,
}

/// A target, with a kubectl of the server's version.
pub(crate) struct Target<'a> {
    /// The name of its context in the kubeconfig.
    pub(crate) name: String,
    pub(crate) kind: TargetKind,
    /// The suffix of its namespaces: all targets share one store. All suffixes have the
    /// same length, because columns would differ otherwise.
    suffix: String,
    kubectl: Box<dyn Fn() -> Command + 'a>,
    /// The working directory of kubectl.
    pub(crate) directory: ScratchDir,
}

/// A step and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) title: String,
    /// `None` if the step was not run against this target.
    pub(crate) output: Option<String>,
}

impl fmt::Display for TargetKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Real => "real",
            Self::Server => "server",
            Self::Bridge => "bridge",
        })
    }
}

impl<'a> Target<'a> {
    pub(crate) fn new(kind: TargetKind, release: &str, kubectl: impl Fn() -> Command + 'a) -> Self {
        let letter = match kind {
            TargetKind::Real => 'a',
            TargetKind::Server => 'b',
            TargetKind::Bridge => 'c',
        };
        Self {
            name: format!("{kind}-{release}"),
            kind,
            suffix: format!("-{}-{letter}", release.replace('.', "-")),
            kubectl: Box::new(kubectl),
            directory: ScratchDir::new(),
        }
    }

    /// The name of one of its own namespaces.
    pub(crate) fn namespace(&self, word: &str) -> String {
        format!("{word}{}", self.suffix)
    }

    /// kubectl in one of these, without the rest of its arguments.
    pub(crate) fn command(&self, namespace: &str) -> Command {
        let mut command = (self.kubectl)();
        command
            .arg(format!("--namespace={namespace}"))
            .current_dir(self.directory.path());
        command
    }

    /// Runs kubectl in a namespace until it exits. The arguments are separated by spaces.
    pub(crate) async fn output(&self, namespace: &str, words: &str, stdin: &str) -> Output {
        let words: Vec<_> = words.split_whitespace().collect();
        run(self.command(namespace), &words, stdin).await
    }

    /// The same as a step of a scenario.
    pub(crate) async fn step(&self, namespace: &str, words: &str, stdin: &str) -> Entry {
        let output = self.output(namespace, words, stdin).await;
        Entry::of(namespace, words, &output)
    }

    /// The same, if the target is included.
    pub(crate) async fn step_for(
        &self,
        at: Targets,
        namespace: &str,
        words: &str,
        stdin: &str,
    ) -> Entry {
        if at == Targets::Servers && self.kind == TargetKind::Bridge {
            return Entry {
                title: words.to_owned(),
                output: None,
            };
        }
        self.step(namespace, words, stdin).await
    }
}

impl Entry {
    /// The normalised result of a command.
    pub(crate) fn of(namespace: &str, title: &str, output: &Output) -> Self {
        let output = format!(
            "{:?}\n{}\n{}",
            output.code,
            normalize(&output.stdout),
            normalize(&output.stderr)
        );
        Self::from_text(namespace, title, &output)
    }

    /// A result as text.
    pub(crate) fn from_text(namespace: &str, title: &str, output: &str) -> Self {
        // The namespace without its suffix is the same everywhere.
        let word = namespace.split('-').next().unwrap_or(namespace);
        // So is the user, except for the name.
        let output = output.replace("playground-admin", "admin");
        Self {
            title: title.replace(namespace, word),
            output: Some(output.replace(namespace, word)),
        }
    }
}

/// Runs a command until it exits.
pub(crate) async fn run(mut command: Command, words: &[&str], stdin: &str) -> Output {
    let mut child = command
        .args(words)
        // Instead of an interactive editor.
        .env("KUBE_EDITOR", "sed -i s/two:.*/two:\\ zwei/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let output = async {
        // The command need not read all of it.
        let _ = to.write_all(stdin.as_bytes()).await;
        drop(to);
        child.wait_with_output().await.unwrap()
    };
    let output = tokio::time::timeout(COMMAND_TIMEOUT, output).await;
    Output::of(&output.unwrap_or_else(|_| panic!("{words:?} does not end")))
}
