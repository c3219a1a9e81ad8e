//! `scale`: whether the cost of a request grows with peers, resources, connections or streams; and
//! the time to recompute merged discovery. All servers are stand-ins.

mod discovery_documents;
pub(crate) mod holders;
mod merge;
mod point;
mod responses;
mod result;
pub(crate) mod stand_in;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::time::sleep;

use self::merge::MergeResult;
use self::point::{Point, RequestKind};
use self::result::{AxisResult, Measured, Sample, ScaleResult};
use crate::args::{Scale, ScaleAxis, ScaleSizes};
use crate::h2load::{Load, Protocol};
use crate::open_files::allow_connections;
use crate::proxies::bridge;
use crate::ratio::rotated;
use crate::report;

const WARM_UP_SECONDS: u32 = 1;

/// How long the CPU time of idle bridges is measured.
const IDLE_DURATION: Duration = Duration::from_secs(2);

/// After the start of the bridges, whose informers settle.
const SETTLING_PERIOD: Duration = Duration::from_secs(5);

/// A recompute takes milliseconds, so it is measured more often than other loads.
const MERGES_PER_ROUND: u32 = 10;

pub(crate) async fn run(args: Scale) -> Result<()> {
    let sizes = args.sizes();
    let mut axes = Vec::new();
    if args.only != Some(ScaleAxis::Merge) {
        let program = bridge::client_program(args.bridge.clone()).await?;
        for axis in ScaleAxis::OF_REQUESTS {
            if args.has(axis) {
                let measured = measure(&program, axis, sizes).await;
                axes.extend(measured.with_context(|| format!("{axis:?}"))?);
            }
        }
    }
    let merge = if args.has(ScaleAxis::Merge) {
        let servers = merge::SERVERS;
        let merges = MergeResult::measure(servers, sizes.rounds * MERGES_PER_ROUND);
        Some(merges?)
    } else {
        None
    };
    report::print(&ScaleResult { sizes, axes, merge }, args.output)
}

async fn measure(program: &Path, axis: ScaleAxis, sizes: ScaleSizes) -> Result<Vec<AxisResult>> {
    let mut points = Vec::new();
    for size in axis.sizes(sizes.quick) {
        // The bridge has the same limit, which it raises as far as this process does.
        let size = allow_connections(size);
        report::progress(format_args!("{axis:?}: {size}"));
        let point = Point::start(program, axis, size).await;
        points.push(point.with_context(|| format!("size {size}"))?);
    }
    sleep(SETTLING_PERIOD).await;
    let mut results = Vec::new();
    for &kind in RequestKind::of(axis) {
        let load = kind.load()?;
        let measured = rounds(&points, &load, sizes).await?;
        results.push(AxisResult::new(axis, kind, &measured)?);
    }
    Ok(results)
}

async fn rounds(points: &[Point], load: &Load, sizes: ScaleSizes) -> Result<Vec<Measured>> {
    for point in points {
        sample(point, load, WARM_UP_SECONDS).await?;
    }
    let new = |point: &Point| Measured {
        size: point.size,
        samples: Vec::new(),
        idle: Vec::new(),
    };
    let mut measured: Vec<_> = points.iter().map(new).collect();
    for round in 0..sizes.rounds {
        idle(points, &mut measured).await?;
        for index in rotated(points.len(), round as usize) {
            let sample = sample(&points[index], load, sizes.seconds).await?;
            report::progress(format_args!(
                "round {}/{}: {:>6} {:>8.0} req/s {:>6.1} µs",
                round + 1,
                sizes.rounds,
                points[index].size,
                sample.per_second,
                sample.cpu_seconds * 1e6 / sample.requests,
            ));
            measured[index].samples.push(sample);
        }
    }
    Ok(measured)
}

async fn sample(point: &Point, load: &Load, seconds: u32) -> Result<Sample> {
    let start = Instant::now();
    let done = point.bridge().round(load, Protocol::Http2, seconds).await;
    let done = done.with_context(|| format!("size {}", point.size))?;
    Ok(Sample {
        requests: f64::from(done.summary.succeeded),
        per_second: done.summary.per_second,
        seconds: start.elapsed().as_secs_f64(),
        cpu_seconds: done.cpu.as_secs_f64(),
    })
}

/// The CPU time of all bridges without load.
async fn idle(points: &[Point], measured: &mut [Measured]) -> Result<()> {
    let all = || points.iter().map(Point::cpu).collect::<Result<Vec<_>>>();
    let (start, before) = (Instant::now(), all()?);
    sleep(IDLE_DURATION).await;
    let (after, seconds) = (all()?, start.elapsed().as_secs_f64());
    for (measured, (before, after)) in measured.iter_mut().zip(before.into_iter().zip(after)) {
        let cpu = after.saturating_sub(before);
        measured.idle.push(cpu.as_secs_f64() / seconds);
    }
    Ok(())
}
