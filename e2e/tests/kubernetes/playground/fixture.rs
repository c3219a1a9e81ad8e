//! One who is asked: a real server, a server of the playground, or a bridge of it.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use skewbridge_e2e::{Output, normalize};
use skewbridge_testkit::ScratchDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// For a command that takes a second or two on an idle machine.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_mins(2);

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A kube-apiserver.
    Real,
    /// A server of the playground.
    Server,
    /// The bridge in front of that.
    Bridge,
}

/// Who is asked for something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    Everywhere,
    /// Not through bridges: they pass it on as they pass on what is like it, or answer
    /// it themselves for all servers together.
    Servers,
}

/// One who is asked, by a kubectl of the server's version.
pub(crate) struct Site<'a> {
    /// As in the kubeconfig.
    pub(crate) name: String,
    pub(crate) place: Place,
    /// What the names of its namespaces end with: all share one store. Of the same length
    /// for everyone, or columns would differ.
    suffix: String,
    kubectl: Box<dyn Fn() -> Command + 'a>,
    /// Where kubectl runs.
    pub(crate) directory: ScratchDir,
}

/// A step, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) title: String,
    /// None: this one was not asked.
    pub(crate) said: Option<String>,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Real => "real",
            Self::Server => "server",
            Self::Bridge => "bridge",
        })
    }
}

impl<'a> Site<'a> {
    pub(crate) fn new(place: Place, release: &str, kubectl: impl Fn() -> Command + 'a) -> Self {
        let letter = match place {
            Place::Real => 'a',
            Place::Server => 'b',
            Place::Bridge => 'c',
        };
        Self {
            name: format!("{place}-{release}"),
            place,
            suffix: format!("-{}-{letter}", release.replace('.', "-")),
            kubectl: Box::new(kubectl),
            directory: ScratchDir::new(),
        }
    }

    /// One of its own namespaces.
    pub(crate) fn namespace(&self, word: &str) -> String {
        format!("{word}{}", self.suffix)
    }

    /// kubectl in one of these, ready to be given the rest of its arguments.
    pub(crate) fn command(&self, namespace: &str) -> Command {
        let mut command = (self.kubectl)();
        command
            .arg(format!("--namespace={namespace}"))
            .current_dir(self.directory.path());
        command
    }

    /// Has kubectl do something in a namespace, to its end. The words have spaces
    /// between them.
    pub(crate) async fn output(&self, namespace: &str, words: &str, stdin: &str) -> Output {
        let words: Vec<_> = words.split_whitespace().collect();
        run(self.command(namespace), &words, stdin).await
    }

    /// The same as a step of a story.
    pub(crate) async fn step(&self, namespace: &str, words: &str, stdin: &str) -> Entry {
        let output = self.output(namespace, words, stdin).await;
        Entry::of(namespace, words, &output)
    }

    /// The same, where it is to be asked.
    pub(crate) async fn step_at(&self, at: At, namespace: &str, words: &str, stdin: &str) -> Entry {
        if at == At::Servers && self.place == Place::Bridge {
            return Entry {
                title: words.to_owned(),
                said: None,
            };
        }
        self.step(namespace, words, stdin).await
    }
}

impl Entry {
    /// What came of something, without what is another each time.
    pub(crate) fn of(namespace: &str, title: &str, output: &Output) -> Self {
        let said = format!(
            "{:?}\n{}\n{}",
            output.code,
            normalize(&output.stdout),
            normalize(&output.stderr)
        );
        Self::seen(namespace, title, &said)
    }

    /// Something that was seen.
    pub(crate) fn seen(namespace: &str, title: &str, said: &str) -> Self {
        // The word of the namespace is the same everywhere.
        let word = namespace.split('-').next().unwrap_or(namespace);
        // And so is, but for the name, who asks.
        let said = said.replace("playground-admin", "admin");
        Self {
            title: title.replace(namespace, word),
            said: Some(said.replace(namespace, word)),
        }
    }
}

/// Runs a command to its end.
pub(crate) async fn run(mut command: Command, words: &[&str], stdin: &str) -> Output {
    let mut child = command
        .args(words)
        // Instead of somebody who edits.
        .env("KUBE_EDITOR", "sed -i s/two:.*/two:\\ zwei/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let ended = async {
        // It need not read all of it.
        let _ = to.write_all(stdin.as_bytes()).await;
        drop(to);
        child.wait_with_output().await.unwrap()
    };
    let ended = tokio::time::timeout(COMMAND_TIMEOUT, ended).await;
    Output::of(&ended.unwrap_or_else(|_| panic!("{words:?} does not end")))
}
