//! `skewbridge exec`: runs a command in a container.

use std::process::ExitCode;

use clap::{ArgAction, Args};
use skewbridge_client::Error;
use skewbridge_client::remote_command::{ExecRequest, ExitStatus};

use crate::client_command::{self, Failure, pod_running_timeout, print_stderr, refused_before};
use crate::cluster_flags::ClusterFlags;
use crate::console::{self, RawTerminal};
use crate::pods::{FoundPod, Manifest, Pods, Reference, choose_container, explain_refusal};
use crate::session::{
    ExitState, Session, WEBSOCKET_SWITCH, describe_transport, executor, exit_result,
};

const HELP: &str = "\
The exit code is that of the command, or 1 if it is not known: a lost connection is
never a success.

Examples:
  skewbridge exec web -- date
  skewbridge exec deploy/web -c app -- ls -t /usr
  skewbridge exec web -it -- bash
  tar c . | skewbridge exec -i web -- tar x -C /srv";

/// kubectl's message if a terminal is requested and standard input is not a terminal.
pub(crate) const NO_TERMINAL: &str =
    "Unable to use a TTY - input is not a terminal or the right kind of file";

// The flags of `exec`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// A pod, or TYPE/NAME of its owner (deployment, statefulset, service, job…)
    #[arg(value_name = "POD | TYPE/NAME")]
    target: Option<String>,
    /// Words before the dashes that do not belong there
    #[arg(hide = true, num_args = 0..)]
    misplaced: Vec<String>,
    /// The command, after --
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<String>,
    /// A file with the pod or its owner, in JSON or YAML; - is standard input
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    filename: Vec<String>,
    /// Container [default: that of the pod]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Pass standard input to the command
    #[arg(short = 'i', long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    stdin: bool,
    /// Run the command on a terminal
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    tty: bool,
    /// Print only the output of the command
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    quiet: bool,
    /// How long to wait for a running pod of TYPE/NAME
    #[arg(long, value_name = "DURATION", default_value = "1m0s")]
    pod_running_timeout: String,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    cluster: ClusterFlags,
}

/// Runs the command.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    client_command::run(execute(flags))
}

/// The target of a command.
#[derive(Debug)]
enum ExecTarget {
    Reference(Reference),
    InFile(Manifest),
}

impl ExecTarget {
    /// From the command line, with kubectl's message if it is invalid.
    fn parse(flags: &Flags) -> Result<Self, Failure> {
        let is_named_twice = flags.target.is_some() && !flags.filename.is_empty();
        if !flags.misplaced.is_empty() || (flags.command.is_empty() && is_named_twice) {
            return Err(Failure::new(
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead",
            )
            .hint(format!("See '{} exec -h' for help and examples", crate::called())));
        }
        let target = flags.target.as_deref();
        if target.is_none() && flags.filename.is_empty() {
            return Err(Failure::new(
                "pod, type/name or --filename must be specified",
            ));
        }
        if flags.command.is_empty() {
            return Err(Failure::new(
                "you must specify at least one command for the container",
            ));
        }
        match target {
            None => Ok(Self::InFile(Manifest::read(&flags.filename)?)),
            Some(_) if is_named_twice => Err(Failure::new(
                "resource/name arguments cannot be provided when a path is specified",
            )),
            Some(target) => Ok(Self::Reference(Reference::parse(target)?)),
        }
    }
}

async fn execute(flags: &Flags) -> Result<(), Failure> {
    let max_wait = pod_running_timeout(&flags.pod_running_timeout)?;
    let named = ExecTarget::parse(flags)?;
    let access = flags.cluster.access().await?;
    let (reference, namespace) = match named {
        ExecTarget::Reference(reference) => (reference, access.namespace),
        ExecTarget::InFile(manifest) => {
            let namespace = manifest.namespace(flags.cluster.namespace(), &access.namespace)?;
            (manifest.reference, namespace)
        }
    };
    let pods = Pods {
        endpoint: access.endpoint.clone(),
        namespace: namespace.clone(),
    };
    let FoundPod { pod, .. } = pods.find(&reference, max_wait).await?;
    if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        let phase = &pod.status.phase;
        return Err(Failure::new(format!(
            "cannot exec into a container in a completed pod; current phase is {phase}"
        )));
    }
    let container = choose_container(&pod, flags.container.as_deref())?;
    if let Some(notice) = container.notice.filter(|_| !flags.quiet) {
        print_stderr(notice);
    }
    // As with kubectl: a terminal requires standard input.
    let tty = flags.tty && flags.stdin && {
        let there = console::is_terminal();
        if !there && !flags.quiet {
            print_stderr(NO_TERMINAL);
        }
        there
    };
    let request = ExecRequest {
        namespace: namespace.clone(),
        pod: pod.metadata.name.clone(),
        container: Some(container.name.clone()),
        command: flags.command.clone(),
        stdin: flags.stdin,
        stdout: true,
        stderr: !tty,
        tty,
    };
    let why = || pod.why_not_running(&container.name);
    let process = executor(access.endpoint).start(&request).await;
    let process = process.map_err(|error| explain(error, "pods/exec", &namespace, why()))?;
    if access.verbosity > 0 {
        print_stderr(describe_transport(process.transport()));
    }
    let raw = if tty {
        Some(RawTerminal::enter().map_err(Failure::new)?)
    } else {
        None
    };
    let session = Session {
        raw,
        detach: None,
        redraw: false,
    };
    match session.run(process).await? {
        ExitState::Process(ExitStatus::Failed(failure)) => {
            let failure = Failure::new(failure.message);
            Err(why().into_iter().fold(failure, Failure::hint))
        }
        ExitState::Process(status) => exit_result(status),
        ExitState::Detached => Ok(()),
    }
}

/// Why a stream failed, with advice.
pub(crate) fn explain(
    error: Error,
    resource: &str,
    namespace: &str,
    why: Option<String>,
) -> Failure {
    let failure = match error {
        Error::Api { response, .. } => explain_refusal(&response, "create", resource, namespace),
        Error::AllTransportsFailed { websocket, spdy } => {
            explain(*spdy, resource, namespace, None).hint(refused_before(&websocket))
        }
        error @ Error::ConnectionLost { .. } if resource != "pods/portforward" => {
            Failure::from(error).hint(format!(
                "it is not known whether the server received the request; if a proxy on the path \
             breaks WebSockets, {WEBSOCKET_SWITCH}=false disables them"
            ))
        }
        error => error.into(),
    };
    why.into_iter().fold(failure, Failure::hint)
}
