//! `storm`: thousands of TLS handshakes at once, and the cost of full and of resumed ones, next to
//! `HAProxy` and nginx.

mod handshakes;
mod memory;
mod result;
mod servers;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::ClientConfig;
use tokio::time::sleep;

use self::handshakes::{Handshake, burst, repeat};
use self::memory::MemoryAfterLoad;
use self::result::{KeyResult, Measured, Sample, StormResult};
use self::servers::Servers;
use crate::args::{Storm, StormSizes};
use crate::open_files::allow_connections;
use crate::pki::ServerKey;
use crate::process_usage;
use crate::proxies::{Proxy, bridge};
use crate::ratio::rotated;
use crate::report;
use crate::scratch_dir::ScratchDir;

const WARM_UP: Duration = Duration::from_millis(500);

/// After its start a bridge still allocates.
const SETTLING_PERIOD: Duration = Duration::from_secs(3);

const KEYS: [ServerKey; 2] = [ServerKey::Ecdsa, ServerKey::Rsa];

pub(crate) async fn run(args: Storm) -> Result<()> {
    let program = bridge::client_program(args.bridge.clone()).await?;
    let sizes = args.sizes();
    let possible = allow_connections(sizes.handshakes);
    ensure!(
        possible >= sizes.handshakes,
        "the limit of open files permits {possible} connections, not {}: raise it, or use \
         --handshakes",
        sizes.handshakes
    );
    let mut keys = Vec::new();
    for key in KEYS {
        let measured = measure(&program, key, sizes).await;
        keys.push(measured.with_context(|| format!("with {key}"))?);
    }
    report::print(&StormResult { sizes, keys }, args.output)
}

async fn measure(program: &Path, key: ServerKey, sizes: StormSizes) -> Result<KeyResult> {
    // Declared before the children, so dropped after them.
    let scratch = ScratchDir::create()?;
    let servers = Servers::start(program, &scratch, key, sizes.handshakes).await?;
    sleep(SETTLING_PERIOD).await;
    let bridge = servers.bridge().process().pid();
    let idle_kib = process_usage::memory(bridge)?.rss_kib;
    let mut loaded_kib = 0;
    let mut measured = Vec::new();
    for proxy in &servers.proxies {
        let name = proxy.name();
        let open = burst(&servers.client, proxy.address(), sizes.handshakes).await;
        let open = open.with_context(|| format!("{name}{}", proxy.process().log_tail()))?;
        if proxy.process().pid() == bridge {
            loaded_kib = process_usage::memory(bridge)?.rss_kib;
        }
        report::progress(format_args!(
            "{key}: {name}: {} connections in {:.1?}",
            open.connections.len(),
            open.elapsed
        ));
        measured.push(Measured {
            name,
            burst_seconds: open.elapsed.as_secs_f64(),
            rounds: Default::default(),
        });
    }
    rounds(&servers, key, sizes, &mut measured).await?;
    let memory = MemoryAfterLoad::wait(bridge, idle_kib, loaded_kib).await?;
    KeyResult::new(key, &measured, memory)
}

async fn rounds(
    servers: &Servers,
    key: ServerKey,
    sizes: StormSizes,
    measured: &mut [Measured],
) -> Result<()> {
    let proxies = &servers.proxies;
    for proxy in proxies {
        for kind in Handshake::BOTH {
            sample(proxy, kind, &servers.client, sizes.clients, WARM_UP).await?;
        }
    }
    let time = Duration::from_secs(sizes.seconds.into());
    for round in 0..sizes.rounds {
        for kind in Handshake::BOTH {
            for index in rotated(proxies.len(), round as usize) {
                let proxy = &proxies[index];
                let sample = sample(proxy, kind, &servers.client, sizes.clients, time).await?;
                report::progress(format_args!(
                    "{key}: round {}/{}: {:<8} {:<8} {:>6.0} a second",
                    round + 1,
                    sizes.rounds,
                    proxy.name(),
                    kind.name(),
                    sample.per_second,
                ));
                measured[index].rounds[kind as usize].push(sample);
            }
        }
    }
    Ok(())
}

async fn sample(
    proxy: &Proxy,
    kind: Handshake,
    client: &ClientConfig,
    clients: u32,
    time: Duration,
) -> Result<Sample> {
    let pid = proxy.process().pid();
    let before = process_usage::cpu_of_group(pid)?;
    let done = repeat(kind, client, proxy.address(), clients, time).await;
    let done = done.with_context(|| {
        let log = proxy.process().log_tail();
        format!("{}, {}{log}", proxy.name(), kind.name())
    })?;
    let cpu = process_usage::cpu_of_group(pid)?.saturating_sub(before);
    let count = f64::from(done.count);
    Ok(Sample {
        per_second: count / done.elapsed.as_secs_f64(),
        // Those of the first handshakes of the clients count as well.
        cpu_microseconds: cpu.as_secs_f64() * 1e6 / (count + f64::from(clients)),
    })
}
