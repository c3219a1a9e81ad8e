//! A client that can be killed: this test program, as a process of its own.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skewbridge_client::{Endpoint, Kubeconfig};

use crate::stage::{LIMITS, Stage, ask};

/// If nobody ends it.
const LIFE: Duration = Duration::from_mins(5);

#[test]
#[ignore = "it is executed by the other tests"]
fn a_client() {
    let Ok(config) = std::env::var("CLIENT_KUBECONFIG") else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let config = Kubeconfig::load(Some(Path::new(&config))).unwrap();
        let target = config.target(None).unwrap();
        let said = match Endpoint::prepare_with_timeouts(&target, LIMITS).await {
            Err(error) => error.to_string(),
            Ok(endpoint) => {
                let answer = ask(&endpoint, "/from-the-client").await;
                let told = answer.unwrap_or_else(|error| error.to_string());
                if std::env::var_os("CLIENT_LETS_GO").is_some() {
                    drop((endpoint, target, config));
                }
                let whole = format!("{told}\n");
                std::fs::write(std::env::var("CLIENT_SAID").unwrap(), whole).unwrap();
                tokio::time::sleep(LIFE).await;
                return;
            }
        };
        std::fs::write(std::env::var("CLIENT_SAID").unwrap(), format!("{said}\n")).unwrap();
    });
}

/// Starts a client of the stage's plugin, which writes what it is answered to
/// `client-said`, with a line break behind it.
pub(crate) fn start(stage: &Stage, variables: &[(&str, &str)]) -> Child {
    let config = stage.kubeconfig("u", &stage.plugin());
    let config = stage.dir.write("kubeconfig", config);
    let runtime = stage.dir.path().join("runtime");
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&runtime);
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "client_process::a_client"])
        .env("CLIENT_KUBECONFIG", config)
        .env("CLIENT_SAID", stage.dir.path().join("client-said"))
        .env("XDG_RUNTIME_DIR", runtime)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
