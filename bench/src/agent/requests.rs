//! Requests on persistent connections.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use skewbridge_client::{Connection, Endpoint, Kubeconfig, Request};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The timeout of a plugin's start, and of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A client that sends the same request repeatedly.
pub(super) struct LoadClient {
    endpoint: Endpoint,
    request: Request,
    config: PathBuf,
}

impl LoadClient {
    /// Starts the plugin, if the kubeconfig names one.
    pub(super) async fn prepare(config: &Path, path: &str) -> Result<Self> {
        let target = Kubeconfig::load(Some(config))?.target(None)?;
        Ok(Self {
            endpoint: Endpoint::prepare(&target, Some(REQUEST_TIMEOUT)).await?,
            request: Request::get(path),
            config: config.to_owned(),
        })
    }

    /// The number of responses per second.
    pub(super) async fn rate(&self, connections: u32, time: Duration) -> Result<f64> {
        let mut open = Vec::new();
        for _ in 0..connections {
            let connection = self.endpoint.connect().await;
            let mut connection = connection.with_context(|| self.config.display().to_string())?;
            send(&mut connection, &self.request).await?;
            open.push(connection);
        }
        let start = Instant::now();
        let deadline = start + time;
        let mut callers = JoinSet::new();
        for mut connection in open {
            let request = self.request.clone();
            callers.spawn(async move {
                let mut answers = 0_u32;
                while Instant::now() < deadline {
                    send(&mut connection, &request).await?;
                    answers += 1;
                }
                anyhow::Ok(answers)
            });
        }
        let mut answers = 0;
        while let Some(counted) = callers.join_next().await {
            answers += counted??;
        }
        Ok(f64::from(answers) / start.elapsed().as_secs_f64())
    }
}

async fn send(connection: &mut Connection, request: &Request) -> Result<()> {
    let answer = timeout(REQUEST_TIMEOUT, connection.send(request))
        .await
        .with_context(|| format!("no response within {REQUEST_TIMEOUT:?}"))??;
    ensure!(answer.status.is_success(), "answered {}", answer.status);
    ensure!(connection.is_ready(), "the connection was closed");
    Ok(())
}
