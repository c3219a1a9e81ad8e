//! One request after the other on a persistent connection, at the times of a schedule.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rustls::ClientConfig;
use tokio::time::{sleep_until, timeout};

use super::schedule::{Schedule, latency_start};
use crate::h1_client::H1Connection;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the requests of a candidate go.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) name: &'static str,
    pub(super) address: SocketAddr,
    pub(super) request: Bytes,
    pub(super) tls: Arc<ClientConfig>,
}

impl Target {
    /// The latency of each of `count` requests. The connection stays open for all of them.
    pub(super) async fn latencies(self, schedule: Schedule, count: u32) -> Result<Vec<Duration>> {
        let name = self.name;
        let latencies = self.measure(schedule, count).await;
        latencies.with_context(|| name.to_owned())
    }

    async fn measure(self, schedule: Schedule, count: u32) -> Result<Vec<Duration>> {
        let mut connection = H1Connection::open(self.tls, self.address).await?;
        // Opens the connection to the server behind the bridge, and fills caches.
        send(&mut connection, &self.request).await?;
        let mut latencies = Vec::new();
        let mut previous_end = None;
        for number in 0..count {
            let due = schedule.due(number);
            sleep_until(due.into()).await;
            let begun = latency_start(due, previous_end, Instant::now());
            send(&mut connection, &self.request).await?;
            let end = Instant::now();
            latencies.push(end.saturating_duration_since(begun));
            previous_end = Some(end);
        }
        Ok(latencies)
    }
}

async fn send(connection: &mut H1Connection, request: &[u8]) -> Result<()> {
    let status = timeout(RESPONSE_TIMEOUT, connection.send(request))
        .await
        .with_context(|| format!("no response within {RESPONSE_TIMEOUT:?}"))??;
    ensure!(status.is_success(), "answered {status}");
    Ok(())
}
