//! `watches`: many open watches through the bridge, its memory per watch, and how long one
//! event takes to reach all of them.

mod event;
pub(crate) mod fake_apiserver;
mod result;
pub(crate) mod watchers;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

use self::result::{Delivery, MemoryOfBridge, WatchesResult};
use crate::args::Watches;
use crate::child_messages::{ChildMessage, ChildOutput, this_program};
use crate::h2_client;
use crate::pki::Pki;
use crate::process::OwnedProcess;
use crate::process_usage;
use crate::proxies::{Proxy, bridge, free_ports, loopback};
use crate::report;
use crate::scratch_dir::ScratchDir;

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// For all watches to open: 10,000 take about a second on two cores.
const OPEN_TIMEOUT: Duration = Duration::from_mins(2);
/// For one event to reach every watch.
const DELIVERY_TIMEOUT: Duration = Duration::from_mins(1);
const READY_PATH: &str = "/readyz";

pub(crate) async fn run(args: Watches) -> Result<()> {
    let program = bridge::program(args.bridge.clone()).await?;
    // Declared before the children, so dropped after them.
    let scratch = ScratchDir::create()?;
    let bench = Bench {
        pki: Pki::generate(&scratch)?,
        scratch: &scratch,
        args: &args,
    };
    let direct = bench.direct().await?;
    let (bridged, memory) = match &program {
        Some(program) => bench
            .bridged(program)
            .await
            .map(|(a, b)| (Some(a), Some(b)))?,
        None => (None, None),
    };
    let result = WatchesResult {
        connections: args.connections,
        streams: args.streams,
        event_bytes: event::EVENT_BYTES,
        events: args.rounds + 1,
        direct,
        bridged,
        memory,
    };
    report::print(&result, args.output)
}

struct Bench<'a> {
    pki: Pki,
    scratch: &'a ScratchDir,
    args: &'a Watches,
}

impl Bench<'_> {
    /// Without a bridge: the times of the fake API server and the watchers by themselves.
    async fn direct(&self) -> Result<Delivery> {
        let mut fake_apiserver = FakeApiServer::start(self).await?;
        let (mut watchers, opened) = Watchers::open(self, fake_apiserver.address).await?;
        let mut events = Vec::new();
        for _ in 0..=self.args.rounds {
            events.push(fake_apiserver.event_to_all(&mut watchers).await?);
        }
        Delivery::new("direct", opened, &events)
    }

    async fn bridged(&self, program: &Path) -> Result<(Delivery, MemoryOfBridge)> {
        let mut fake_apiserver = FakeApiServer::start(self).await?;
        let bridge = self
            .start_bridge(program, fake_apiserver.address.port())
            .await?;
        let memory = || {
            bridge.process().ensure_running()?;
            process_usage::memory(bridge.process().pid())
        };
        let measure = async {
            let idle = memory()?;
            let (mut watchers, opened) = Watchers::open(self, bridge.address()).await?;
            let mut events = vec![fake_apiserver.event_to_all(&mut watchers).await?];
            let open = memory()?;
            for _ in 0..self.args.rounds {
                events.push(fake_apiserver.event_to_all(&mut watchers).await?);
            }
            let delivery = Delivery::new("through the bridge", opened, &events)?;
            let after = memory()?;
            let memory = MemoryOfBridge::new(idle, open, after, self.watches());
            Ok((delivery, memory))
        };
        measure.await.map_err(|error: anyhow::Error| {
            let words = bridge.process().log_tail();
            anyhow!("through the bridge: {error:#}{words}")
        })
    }

    async fn start_bridge(&self, program: &Path, upstream: u16) -> Result<Proxy> {
        let [front, admin] = free_ports()?;
        let bridge = bridge::start(
            bridge::NAME,
            program,
            self.scratch,
            &self.pki,
            bridge::Ports {
                front,
                admin,
                upstream,
            },
            &[bridge::ONE_WORKER],
        )?;
        h2_client::wait_until_serving(bridge.process(), loopback(front), &self.pki.ca, READY_PATH)
            .await?;
        Ok(bridge)
    }

    fn watches(&self) -> u32 {
        self.args.connections * self.args.streams
    }
}

/// The fake API server in its own process.
struct FakeApiServer {
    address: SocketAddr,
    sent_events: u32,
    input: ChildStdin,
    _process: OwnedProcess,
}

impl FakeApiServer {
    async fn start(bench: &Bench<'_>) -> Result<Self> {
        let mut command = this_program("fake-api-server")?;
        command.arg("--certificate").arg(&bench.pki.certificate);
        command.arg("--key").arg(&bench.pki.key);
        let (process, input, output) =
            OwnedProcess::with_pipes("fake-apiserver", command, bench.scratch)?;
        let mut ears = ChildOutput::new(output);
        let deadline = Instant::now() + START_TIMEOUT;
        let port = match ears.next_message(&process, deadline).await? {
            Some(ChildMessage::Listening(port)) => port,
            message => bail!("the fake API server does not listen: {message:?}"),
        };
        Ok(Self {
            address: loopback(port),
            sent_events: 0,
            input,
            _process: process,
        })
    }

    /// Sends one event on every watch; returns the time until the last watcher has received it.
    async fn event_to_all(&mut self, watchers: &mut Watchers) -> Result<Duration> {
        let start = Instant::now();
        self.sent_events += 1;
        self.input
            .write_all(b"event\n")
            .await
            .context("the fake API server has exited")?;
        watchers.until_delivered(self.sent_events).await?;
        Ok(start.elapsed())
    }
}

/// All clients, in their own process.
struct Watchers {
    total: u32,
    ears: ChildOutput,
    process: OwnedProcess,
    /// Closing it stops the watchers.
    _input: ChildStdin,
}

impl Watchers {
    /// Opens every watch; also returns the time that this took.
    async fn open(bench: &Bench<'_>, target: SocketAddr) -> Result<(Self, Duration)> {
        let start = Instant::now();
        let mut command = this_program("watchers")?;
        command
            .arg(format!("--target={target}"))
            .arg(format!("--connections={}", bench.args.connections))
            .arg(format!("--streams={}", bench.args.streams))
            .arg("--ca")
            .arg(&bench.pki.ca);
        let (process, input, output) =
            OwnedProcess::with_pipes("watchers", command, bench.scratch)?;
        let mut watchers = Self {
            total: bench.watches(),
            ears: ChildOutput::new(output),
            process,
            _input: input,
        };
        watchers
            .until_all(ChildMessage::Opened, OPEN_TIMEOUT)
            .await?;
        Ok((watchers, start.elapsed()))
    }

    async fn until_delivered(&mut self, event: u32) -> Result<()> {
        let delivered = |count| ChildMessage::Delivered { event, count };
        self.until_all(delivered, DELIVERY_TIMEOUT).await
    }

    async fn until_all(
        &mut self,
        message: impl Fn(u32) -> ChildMessage,
        limit: Duration,
    ) -> Result<()> {
        let wanted = message(self.total);
        let deadline = Instant::now() + limit;
        let mut latest = None;
        loop {
            match self.ears.next_message(&self.process, deadline).await? {
                Some(received) if received == wanted => {
                    report::progress(format_args!("{wanted}"));
                    return Ok(());
                }
                Some(ChildMessage::Failed(why)) => bail!("a watch failed: {why}"),
                Some(received) => latest = Some(received.to_string()),
                None => {
                    let latest = latest.as_deref().unwrap_or("nothing");
                    bail!("waited {limit:?} for {wanted:?}, got no further than {latest:?}");
                }
            }
        }
    }
}
