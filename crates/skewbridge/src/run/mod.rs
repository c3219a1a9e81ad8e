//! `skewbridge run`: a command with a kubeconfig of its own, whose requests go where a
//! credential plugin leads. The command need not know of any of it.

mod bridge;
mod child;
mod flags;
mod kubeconfig;
mod shell;

use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use skewbridge_client::private_dir::PrivateDir;
use skewbridge_client::{Endpoint, Kubeconfig, Target, Timeouts, exec};

use bridge::Bridge;
use child::{Ended, Signals};
pub(crate) use flags::Flags;
use flags::Wish;

/// We failed before the command could be started: what `env` and `timeout` have for
/// that, as the command's own exit codes are all others.
const EXIT_FAILED: u8 = 125;

/// Prefix of the directory with the kubeconfig; our process ID and a counter follow.
const DIRECTORY_PREFIX: &str = "skewbridge-run-";

/// Flags to endpoint, endpoint to bridge, bridge to kubeconfig, kubeconfig to command.
pub(crate) fn run(flags: &Flags) -> ExitCode {
    // The command below keeps its own limits.
    crate::private_memory::deny_dumps();
    let wish = match flags.understand() {
        Ok(wish) => wish,
        Err(problems) => {
            for problem in problems {
                complain(&problem);
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
            let ran = runtime.block_on(session(&wish));
            // Only the look-up of a name can be under way.
            runtime.shutdown_background();
            ran
        }
        Err(error) => Err(error.to_string()),
    };
    match ran {
        Ok(ended) => {
            if let Some(problem) = &ended.problem {
                complain(problem);
            }
            ExitCode::from(ended.code)
        }
        Err(problem) => {
            complain(&problem);
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// From the plugin's first run to the command's end. Everything that was made for it is
/// gone afterwards.
async fn session(wish: &Wish) -> Result<Ended, String> {
    let config = Kubeconfig::load(wish.kubeconfig.as_deref()).map_err(|it| it.to_string())?;
    let target = config
        .target(wish.context.as_deref())
        .map_err(|error| error.to_string())?;
    let timeouts = Timeouts {
        request: None,
        plugin: wish.plugin_timeout,
    };
    // Before anything is started or written that would stay behind.
    let mut signals =
        Signals::listen().map_err(|error| format!("cannot listen to signals: {error}"))?;
    let endpoint = tokio::select! {
        endpoint = Endpoint::prepare_with_timeouts(&target, timeouts) => endpoint,
        // There is no command yet: it means us. The plugin goes with who waits for it.
        signal = signals.next() => return Ok(Ended::by(signal)),
    };
    let endpoint = Arc::new(endpoint.map_err(|error| error.to_string())?);
    let bridge = Bridge::open(endpoint).await?;
    let ended = behind(&bridge, wish, &target, signals).await;
    bridge.close().await;
    ended
}

/// The command, from its kubeconfig to its end.
async fn behind(
    bridge: &Bridge,
    wish: &Wish,
    target: &Target,
    signals: Signals,
) -> Result<Ended, String> {
    // Not an anonymous file: `kubectl config`, helm and others write beside a kubeconfig or
    // replace it, and a path below `/proc` means nothing in another namespace of processes.
    let directory = PrivateDir::create_locked(DIRECTORY_PREFIX).map_err(|error| {
        format!(
            "no private directory for a kubeconfig can be made: {error}; set $TMPDIR to one where \
             files can be locked"
        )
    })?;
    let text = kubeconfig::text(target, wish.namespace.as_deref(), bridge.access());
    let path = directory
        .write("config", text.expose().as_bytes())
        .map_err(|error| format!("{}: {error}", directory.path().display()))?;
    drop(text);
    let mut command = shell::command(&wish.what, &target.context, &directory)?;
    child::environment(&mut command, &path, &target.context, |name| {
        std::env::var_os(name)
    });
    // From here on the terminal is the command's.
    exec::reserve_stdin("the command that skewbridge run has started reads it");
    Ok(child::run(command, signals).await)
}

fn complain(problem: &str) {
    let problem = crate::skew::plain(problem);
    let _ = writeln!(std::io::stderr(), "skewbridge: {problem}");
}
