//! Copies a file or a directory out of a pod of the current context: `cargo run -p
//! skewbridge-client --example copy_a_file -- web-0 /etc/hostname ./hostname`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use skewbridge_client::copy::{Options, Pod, Progress, Retries, copy_from};
use skewbridge_client::remote_command::FallbackExecutor;
use skewbridge_client::{Endpoint, Kubeconfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [pod, from, to] = &words[..] else {
        return Err("usage: copy_a_file POD PATH TARGET".into());
    };
    let bytes = copy(&Kubeconfig::load(None)?, pod, from, Path::new(to)).await?;
    println!("{bytes} bytes");
    Ok(())
}

/// Copies, and prints how much.
pub async fn copy(
    config: &Kubeconfig,
    pod: &str,
    from: &str,
    to: &Path,
) -> Result<u64, Box<dyn Error>> {
    let target = config.target(None)?;
    let endpoint = Endpoint::prepare(&target, None).await?;
    let pod = Pod {
        executor: Arc::new(FallbackExecutor::new(endpoint)),
        namespace: target.namespace.unwrap_or_else(|| "default".to_owned()),
        pod: pod.to_owned(),
        container: None,
    };
    let options = Options {
        // A lost connection is replaced, and the copy resumes.
        retries: Retries::AtMost(5),
        on_event: Some(Arc::new(|notice| eprintln!("{notice}"))),
        ..Options::default()
    };
    // Another task could read the progress and draw a progress bar.
    let progress = Arc::new(Progress::default());
    copy_from(&pod, from, to, &options, &progress).await?;
    Ok(progress.bytes())
}
