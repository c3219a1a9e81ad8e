//! Runs a command in a pod, forwards its output, and exits with its exit code: `cargo run -p
//! skewbridge-client --example run_a_command -- POD COMMAND [ARGUMENT]...`

use std::process::ExitCode;

use skewbridge_client::remote_command::{ExecRequest, Executor, ExitStatus, FallbackExecutor};
use skewbridge_client::{Endpoint, Error, Kubeconfig};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Error> {
    let mut words = std::env::args().skip(1);
    let pod = words.next().unwrap_or_else(|| "web".to_owned());
    let target = Kubeconfig::load(None)?.target(None)?;
    let executor = FallbackExecutor::new(Endpoint::prepare(&target, None).await?);
    let request = ExecRequest {
        namespace: target.namespace.unwrap_or_else(|| "default".to_owned()),
        pod,
        command: words.collect(),
        stdout: true,
        stderr: true,
        ..ExecRequest::default()
    };
    let mut process = executor.start(&request).await?;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let writing = async {
        if let Some(mut stdout) = stdout {
            let _ = tokio::io::copy(&mut stdout, &mut tokio::io::stdout()).await;
        }
    };
    let complaining = async {
        if let Some(mut stderr) = stderr {
            let _ = tokio::io::copy(&mut stderr, &mut tokio::io::stderr()).await;
        }
    };
    let ((), (), status) = tokio::join!(writing, complaining, process.wait());
    Ok(match status {
        ExitStatus::Success => ExitCode::SUCCESS,
        ExitStatus::Code(code) => ExitCode::from(code.number()),
        other => {
            eprintln!("{other:?}");
            ExitCode::FAILURE
        }
    })
}
