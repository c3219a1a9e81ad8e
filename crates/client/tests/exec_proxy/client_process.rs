//! A client that can be killed: this test program, as a separate process.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use skewbridge_client::{Endpoint, Kubeconfig};

use crate::fixture::{Fixture, TIMEOUTS, get};

/// The maximum lifetime of the process.
const MAX_LIFETIME: Duration = Duration::from_mins(5);

#[test]
#[ignore = "the other tests execute it"]
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
        let output = match Endpoint::prepare_with_timeouts(&target, TIMEOUTS).await {
            Err(error) => error.to_string(),
            Ok(endpoint) => {
                let answer = get(&endpoint, "/from-the-client").await;
                let message = answer.unwrap_or_else(|error| error.to_string());
                if std::env::var_os("CLIENT_LETS_GO").is_some() {
                    drop((endpoint, target, config));
                }
                let whole = format!("{message}\n");
                std::fs::write(std::env::var("CLIENT_OUTPUT").unwrap(), whole).unwrap();
                tokio::time::sleep(MAX_LIFETIME).await;
                return;
            }
        };
        std::fs::write(
            std::env::var("CLIENT_OUTPUT").unwrap(),
            format!("{output}\n"),
        )
        .unwrap();
    });
}

/// Starts a client of the fixture's plugin, which writes the response and a line break to
/// `client-output`.
pub(crate) fn start(fixture: &Fixture, variables: &[(&str, &str)]) -> Child {
    let config = fixture.kubeconfig("u", &fixture.plugin());
    let config = fixture.dir.write("kubeconfig", config);
    let runtime = fixture.dir.path().join("runtime");
    let _ = std::fs::DirBuilder::new().mode(0o700).create(&runtime);
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "client_process::a_client"])
        .env("CLIENT_KUBECONFIG", config)
        .env("CLIENT_OUTPUT", fixture.dir.path().join("client-output"))
        .env("XDG_RUNTIME_DIR", runtime)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
