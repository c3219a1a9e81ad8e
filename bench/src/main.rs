//! Side-by-side measurements of the bridge: `pass-through` against `HAProxy` and nginx,
//! `reroute` against a direct request, `discovery`, `local`, `peer-proxy` and `latency` against
//! kube-apiserver, `storm` for TLS handshakes, `scale` for the cost of a request by size,
//! `placement` for a routing decision, `watches` for memory and delivery, `translate` against
//! kube-apiserver; of the client commands `exec` against kubectl; and `agent`, of
//! the plugin that proxies. See `bench/README.md`.

mod agent;
mod args;
mod child_messages;
mod exec;
mod h1_client;
mod h2_client;
mod h2load;
mod kube_load;
mod latency;
mod machine;
mod open_files;
mod pass_through;
mod pattern;
mod percentile;
mod pki;
mod placement;
mod process;
mod process_usage;
mod proxies;
mod ratio;
mod report;
mod reroute;
mod scale;
mod scratch_dir;
mod storm;
mod timed_child;
mod translate;
mod watches;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Args, Command, KubeLoadName};

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("skewbridge-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    // Before the runtime starts, to keep the memory of this process small.
    if let Command::TimedChild(args) = &command {
        return timed_child::run(args);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        // A signal drops the measurement, and with it every child.
        tokio::select! {
            done = perform(command) => done,
            stopped = stop_signal() => stopped,
        }
    })
}

async fn perform(command: Command) -> Result<()> {
    match command {
        Command::PassThrough(args) => pass_through::run(args).await,
        Command::Reroute(args) => reroute::run(args).await,
        Command::Discovery(args) => kube_load::run(KubeLoadName::Discovery, args).await,
        Command::Local(args) => kube_load::run(KubeLoadName::Local, args).await,
        Command::PeerProxy(args) => kube_load::run(KubeLoadName::PeerProxy, args).await,
        Command::Latency(args) => latency::run(args).await,
        Command::Storm(args) => storm::run(args).await,
        Command::Scale(args) => scale::run(args).await,
        Command::Placement(args) => placement::run(&args),
        Command::Watches(args) => watches::run(args).await,
        Command::Translate(args) => translate::run(args).await,
        Command::Exec(args) => exec::run(args).await,
        Command::Agent(args) => agent::run(args).await,
        Command::TimedChild(args) => timed_child::run(&args),
        Command::FakeApiServer(args) => watches::fake_apiserver::run(args).await,
        Command::Watchers(args) => watches::watchers::run(args).await,
        Command::StandIn(args) => scale::stand_in::run(args).await,
        Command::Holders(args) => scale::holders::run(args).await,
        Command::Node(args) => translate::node::run(args).await,
    }
}

async fn stop_signal() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let name = tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    };
    bail!("stopped by {name}")
}
