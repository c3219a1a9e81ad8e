//! `skewbridge run`, with a command that has no support for plugins. The command and the plugin
//! are this test program.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod credentials;
mod lifecycle;
mod listener;
mod proxy_suites;
#[path = "../support/run_fixture.rs"]
mod run_fixture;
mod terminal;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use http::{Method, StatusCode};
use skewbridge_client::{Endpoint, Kubeconfig, Request};
use skewbridge_exec_proxy::forward::BoxFuture;
use skewbridge_exec_proxy::{ExecInfo, ExecProxy, ModifyError, Outgoing, RequestModifier};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::run_fixture::{PLUGIN_HEADER, REQUEST_TIMEOUT};

#[test]
#[ignore = "the other tests execute it"]
fn a_plugin() {
    struct AddHeader;
    impl RequestModifier for AddHeader {
        fn name(&self) -> &'static str {
            "badge"
        }
        fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
            Box::pin(async move {
                let badge = http::HeaderValue::from_static("4711");
                request.headers.insert(PLUGIN_HEADER, badge);
                Ok(())
            })
        }
    }
    let Ok(dir) = std::env::var("PLUGIN_DIR") else {
        return;
    };
    let mut options = OpenOptions::new();
    let execs = options
        .create(true)
        .append(true)
        .open(Path::new(&dir).join("execs"));
    writeln!(execs.unwrap(), "{}", std::process::id()).unwrap();
    let pipe = OpenOptions::new()
        .write(true)
        .open("/proc/self/fd/3")
        .unwrap();
    rustix::stdio::dup2_stdout(pipe).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let exec_info = ExecInfo::from_environment().unwrap();
    runtime
        .block_on(ExecProxy::new().modifier(AddHeader).run(&exec_info))
        .unwrap();
    std::process::exit(0);
}

#[test]
#[ignore = "the other tests execute it"]
fn a_command() {
    let Ok(action) = std::env::var("CHILD_ACTION") else {
        return;
    };
    let dir = PathBuf::from(std::env::var("CHILD_DIR").unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let target = Kubeconfig::load(None).unwrap().target(None).unwrap();
        assert_eq!(target.context, "c");
        assert_eq!(target.namespace.as_deref(), Some("shop"));
        let endpoint = Endpoint::prepare(&target, REQUEST_TIMEOUT).await.unwrap();
        let mut connection = endpoint.connect().await.unwrap();
        if action == "upgrade" {
            let request = Request::new(Method::POST, "/upgrade")
                .header("connection", "Upgrade")
                .header("upgrade", "SPDY/3.1");
            let answer = connection.send(&request).await.unwrap();
            assert_eq!(answer.status, StatusCode::SWITCHING_PROTOCOLS);
            let (mut stream, early) = connection.into_parts().unwrap();
            assert!(early.is_empty());
            stream.write_all(b"ping").await.unwrap();
            stream.flush().await.unwrap();
            let mut received = [0; 4];
            stream.read_exact(&mut received).await.unwrap();
            assert_eq!(&received, b"pong");
        }
        let mut connection = endpoint.connect().await.unwrap();
        if let Some(first) = action.strip_prefix("first ") {
            let request = match first {
                "" => Request::get("/first"),
                path if path.starts_with('/') => Request::get(path),
                token => Request::get("/first").header("authorization", token),
            };
            let answer = connection.send(&request).await.unwrap();
            std::fs::write(dir.join("first"), answer.status.as_str()).unwrap();
        }
        let answer = connection.send(&Request::get("/path")).await.unwrap();
        std::fs::write(dir.join("answer"), &answer.body).unwrap();
        std::fs::write(dir.join("server"), &target.cluster.server).unwrap();
    });
}
