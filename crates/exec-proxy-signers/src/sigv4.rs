//! AWS Signature Version 4 on each request.

use std::sync::Arc;

use skewbridge_exec_proxy::forward::BoxFuture;
use skewbridge_exec_proxy::{ModifyError, NeedsBody, Outgoing, RequestModifier};
use skewbridge_sigv4::{Chain, Credentials, Payload, Request, Signer};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::failure_cache::FAILURE_CACHE_DURATION;
use crate::unix_time::now;

/// Signs requests with the credentials that a [`Chain`] finds.
#[derive(Debug, Clone)]
pub struct SigV4 {
    signer: Signer,
    chain: Arc<Chain>,
    /// The last failure of the chain, and its time.
    failed: Arc<Mutex<Option<(Instant, String)>>>,
}

impl SigV4 {
    /// Signs with this signer and the credentials of this chain.
    pub fn new(signer: Signer, chain: Chain) -> Self {
        Self {
            signer,
            chain: Arc::new(chain),
            failed: Arc::default(),
        }
    }

    /// Checks that there are credentials. A `credential_process` is executed for that, and killed
    /// if the future is dropped; the first request uses its output.
    pub async fn check(&self) -> Result<(), String> {
        let found = self.chain.credentials(now()).await;
        found.map(drop).map_err(|error| error.to_string())
    }

    /// The credentials that are valid now. Concurrent callers wait for one search and share its
    /// failure. The search is a task of its own, so that the caller that started it can be
    /// cancelled; it ends at the time limit of a program.
    async fn credentials(&self, now: u64) -> Result<Arc<Credentials>, String> {
        let requested = Instant::now();
        let mut failed = self.failed.clone().lock_owned().await;
        if let Some((at, cause)) = &*failed
            && (*at >= requested || at.elapsed() < FAILURE_CACHE_DURATION)
        {
            return Err(cause.clone());
        }
        if let Some(cached) = self.chain.cached(now).await {
            return Ok(cached);
        }
        let chain = self.chain.clone();
        let searching = tokio::spawn(async move {
            let found = chain.credentials(now).await;
            let found = found.map_err(|error| error.to_string());
            *failed = (found.as_ref().err()).map(|cause| (Instant::now(), cause.clone()));
            found
        });
        searching
            .await
            .unwrap_or_else(|_| Err("the search for credentials was cancelled".to_owned()))
    }
}

impl RequestModifier for SigV4 {
    fn name(&self) -> &'static str {
        "sigv4"
    }

    fn needs_body(&self) -> NeedsBody {
        NeedsBody::Whole
    }

    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
        Box::pin(async move {
            let failed = |error: skewbridge_sigv4::Error| ModifyError::new(error.to_string());
            let now = now();
            let credentials = self.credentials(now).await.map_err(ModifyError::new)?;
            let head = Request::of("https", request.method, request.url, request.headers)
                .ok_or_else(|| ModifyError::new("the request names no host"))?;
            let payload = Payload::Bytes(request.body.map_or(&[], |body| body));
            let to_set = self
                .signer
                .sign(&head, payload, &credentials, now)
                .map_err(failed)?;
            for (name, value) in to_set {
                request.headers.insert(name, value);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_sigv4::Environment;
    use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT, eventually};

    use super::*;

    #[tokio::test]
    async fn a_cancelled_caller_does_not_end_the_program_that_others_wait_for() {
        let dir = ScratchDir::new();
        let (runs, go_on) = (dir.path().join("runs"), dir.path().join("go-on"));
        // Reading from the FIFO waits for a writer.
        let made = std::process::Command::new("mkfifo").arg(&go_on).status();
        assert!(made.unwrap().success());
        let program = dir.write(
            "program",
            format!("echo x >> {}; cat {}", runs.display(), go_on.display()),
        );
        let config = dir.write(
            "config",
            format!("[default]\ncredential_process = sh {}\n", program.display()),
        );
        let environment = Environment {
            config_file: Some(config),
            ..Environment::default()
        };
        let signer = Signer::new("r", "s");
        let sigv4 = Arc::new(SigV4::new(signer, Chain::new(environment, None)));
        let request = || {
            let sigv4 = sigv4.clone();
            tokio::spawn(async move { sigv4.credentials(1_440_938_160).await })
        };
        let first = request();
        eventually("the program", TEST_TIMEOUT, async || runs.exists()).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let second = request();
        let printed = r#"{"Version":1,"AccessKeyId":"PROCESS","SecretAccessKey":"s"}"#;
        let writing = tokio::task::spawn_blocking(move || std::fs::write(go_on, printed));
        let writing = tokio::time::timeout(TEST_TIMEOUT, writing).await;
        writing.unwrap().unwrap().unwrap();
        assert_eq!(second.await.unwrap().unwrap().access_key_id, "PROCESS");
        assert_eq!(std::fs::read_to_string(runs).unwrap(), "x\n");
    }
}
