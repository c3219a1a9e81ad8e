//! `skewbridge run`: a command with a temporary kubeconfig, whose requests go through a
//! credential plugin. The command needs no support for it.

mod child;
mod flags;
mod kubeconfig;
mod loopback_proxy;
mod shell;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use skewbridge_client::api_server::Timeouts;
use skewbridge_client::{Endpoint, Kubeconfig, Target, exec_plugin};
use skewbridge_private_files::PrivateDir;

use child::{CommandExit, Signals};
pub(crate) use flags::Flags;
use flags::Options;
use loopback_proxy::LoopbackProxy;

/// Exit code of a failure before the command starts: that of `env` and `timeout`, since all
/// others are exit codes of the command.
const EXIT_FAILED: u8 = 125;

/// Prefix of the directory with the kubeconfig; the process ID and a counter follow.
const DIRECTORY_PREFIX: &str = "skewbridge-run-";

/// From flags to endpoint, listener, kubeconfig and command.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    // The command keeps its own core-file limit.
    crate::private_memory::deny_dumps();
    let options = match flags.parse() {
        Ok(options) => options,
        Err(problems) => {
            for problem in problems {
                print_error(&problem);
            }
            let _ = writeln!(std::io::stderr(), "see skewbridge run --help");
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ran = match runtime {
        Ok(runtime) => {
            let ran = runtime.block_on(session(&options));
            // Only a DNS lookup can still be running.
            runtime.shutdown_background();
            ran
        }
        Err(error) => Err(error.to_string()),
    };
    match ran {
        Ok(ended) => {
            if let Some(problem) = &ended.problem {
                print_error(problem);
            }
            ExitCode::from(ended.code)
        }
        Err(problem) => {
            print_error(&problem);
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// From the first run of the plugin to the end of the command. Everything that was created for
/// it is removed afterwards.
async fn session(options: &Options) -> Result<CommandExit, String> {
    let config = Kubeconfig::load(options.kubeconfig.as_deref()).map_err(|it| it.to_string())?;
    let target = config
        .target(options.context.as_deref())
        .map_err(|error| error.to_string())?;
    let timeouts = Timeouts {
        request: None,
        plugin: options.plugin_timeout,
    };
    // Before anything is started or written that needs cleanup.
    let mut signals =
        Signals::listen().map_err(|error| format!("cannot listen to signals: {error}"))?;
    let endpoint = tokio::select! {
        endpoint = Endpoint::prepare_with_timeouts(&target, timeouts) => endpoint,
        // There is no command yet: the signal ends this program, and the plugin with it.
        signal = signals.next() => return Ok(CommandExit::by_signal(signal)),
    };
    let endpoint = Arc::new(endpoint.map_err(|error| error.to_string())?);
    let proxy = LoopbackProxy::open(endpoint).await?;
    let ended = run_command(&proxy, options, &target, signals).await;
    proxy.close().await;
    ended
}

/// Writes the kubeconfig, and runs the command to its end.
async fn run_command(
    proxy: &LoopbackProxy,
    options: &Options,
    target: &Target,
    signals: Signals,
) -> Result<CommandExit, String> {
    // Not an anonymous file: `kubectl config`, helm and others write beside a kubeconfig or
    // replace it, and a path below `/proc` means nothing in another namespace of processes.
    let directory = PrivateDir::create_locked(DIRECTORY_PREFIX).map_err(|error| {
        format!(
            "cannot create a private directory for the kubeconfig: {error}; set $TMPDIR to one \
             where files can be locked"
        )
    })?;
    let text = kubeconfig::text(target, options.namespace.as_deref(), proxy.access());
    let path = directory
        .write("config", text.expose().as_bytes())
        .map_err(|error| format!("{}: {error}", directory.path().display()))?;
    drop(text);
    let mut command = shell::command(&options.command, &target.context, &directory)?;
    child::environment(&mut command, &path, &target.context, |name| {
        std::env::var_os(name)
    });
    // From now on, the command uses the terminal.
    exec_plugin::reserve_stdin("the command that skewbridge run has started reads it");
    Ok(child::run(command, signals).await)
}

fn print_error(problem: &str) {
    let problem = crate::skew::plain(problem);
    let _ = writeln!(std::io::stderr(), "skewbridge: {problem}");
}
