//! `skewbridge attach`: joins the process of a container.

use std::process::ExitCode;

use clap::{ArgAction, Args};
use skewbridge_client::remote_command::{AttachRequest, ExitStatus};

use crate::client_command::{self, Failure, pod_running_timeout, print_stderr, print_stdout};
use crate::cluster_flags::ClusterFlags;
use crate::console::{self, DetachKeys, RawTerminal};
use crate::exec::{NO_TERMINAL, explain};
use crate::pods::{FoundPod, Pod, Pods, Reference, choose_container};
use crate::session::{ExitState, Session, describe_transport, executor, exit_result};

const HELP: &str = "\
With a terminal, ctrl-p ctrl-q detaches from the process, which continues
(--detach-keys).

Examples:
  skewbridge attach web
  skewbridge attach deploy/web -c app -i -t
  skewbridge attach deployment web";

// The flags of `attach`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// A pod, or TYPE/NAME of its owner (deployment, statefulset, service, job…)
    #[arg(value_name = "POD | TYPE/NAME | TYPE NAME", required = true)]
    target: Vec<String>,
    /// Container [default: that of the pod]
    #[arg(short, long, value_name = "NAME")]
    container: Option<String>,
    /// Pass standard input to the process
    #[arg(short = 'i', long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    stdin: bool,
    /// Use this terminal, if the process has one
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    tty: bool,
    /// Print only the output of the process
    #[arg(short, long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
          default_value_t = false, default_missing_value = "true", hide_default_value = true)]
    quiet: bool,
    /// Keys that detach from the process; empty for none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    detach_keys: String,
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
    client_command::run(attach(flags))
}

async fn attach(flags: &Flags) -> Result<(), Failure> {
    let max_wait = pod_running_timeout(&flags.pod_running_timeout)?;
    let reference = Reference::parse_words(&flags.target)?;
    let detach =
        DetachKeys::parse(&flags.detach_keys).map_err(|wrong| format!("--detach-keys: {wrong}"))?;
    let access = flags.cluster.access().await?;
    let pods = Pods {
        endpoint: access.endpoint.clone(),
        namespace: access.namespace.clone(),
    };
    let FoundPod { pod, .. } = pods.find(&reference, max_wait).await?;
    if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
        let phase = &pod.status.phase;
        return Err(Failure::new(format!(
            "cannot attach a container in a completed pod; current phase is {phase}"
        )));
    }
    let container = choose_container(&pod, flags.container.as_deref())
        .map_err(|wrong| format!("cannot attach to the container: {wrong}"))?;
    if let Some(notice) = container.notice.filter(|_| !flags.quiet) {
        print_stderr(notice);
    }
    let tty = wants_terminal(flags, &pod, &container.name);
    if !flags.quiet {
        print_stderr(
            "All commands and output from this session will be recorded in container logs, \
             including credentials and sensitive information passed through the command prompt.",
        );
        print_stderr("If you don't see a command prompt, try pressing enter.");
    }
    let request = AttachRequest {
        namespace: access.namespace.clone(),
        pod: pod.metadata.name.clone(),
        container: Some(container.name.clone()),
        stdin: flags.stdin,
        stdout: true,
        stderr: !tty,
        tty,
    };
    let why = || pod.why_not_running(&container.name);
    let process = executor(access.endpoint).attach(&request).await;
    let process =
        process.map_err(|error| explain(error, "pods/attach", &access.namespace, why()))?;
    if access.verbosity > 0 {
        print_stderr(describe_transport(process.transport()));
    }
    let raw = if tty {
        Some(RawTerminal::enter().map_err(Failure::new)?)
    } else {
        None
    };
    let session = Session {
        detach: raw.is_some().then_some(detach),
        raw,
        redraw: true,
    };
    let ended = session.run(process).await?;
    let resume = format!(
        "'{} attach {} -c {} -n {} -i -t'",
        crate::called(),
        pod.metadata.name,
        container.name,
        access.namespace
    );
    match ended {
        ExitState::Detached => {
            if !flags.quiet {
                print_stdout(format_args!("Detached; resume using {resume} command"));
            }
            Ok(())
        }
        ExitState::Process(ExitStatus::Failed(failure)) => {
            let failure = Failure::new(failure.message);
            Err(why().into_iter().fold(failure, Failure::hint))
        }
        ExitState::Process(status) => {
            if status.is_success() && tty && !flags.quiet {
                print_stdout(if pod.is_ephemeral(&container.name) {
                    format!(
                        "Session ended, the ephemeral container will not be restarted but may \
                         be reattached using {resume} if it is still running"
                    )
                } else {
                    format!("Session ended, resume using {resume} command")
                });
            }
            exit_result(status)
        }
    }
}

/// The process decides whether there is a terminal. As with kubectl, this one is passed only if
/// standard input is a terminal.
fn wants_terminal(flags: &Flags, pod: &Pod, container: &str) -> bool {
    let has = pod.container(container).is_some_and(|it| it.tty);
    if flags.tty && !has && !flags.quiet {
        print_stderr(format_args!(
            "error: Unable to use a TTY - container {container} did not allocate one"
        ));
    }
    if !has || !flags.stdin {
        return false;
    }
    let there = console::is_terminal();
    if !there && !flags.quiet {
        print_stderr(NO_TERMINAL);
    }
    there
}
