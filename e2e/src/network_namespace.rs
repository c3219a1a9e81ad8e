//! Tests in a network namespace of their own: kube-apiserver publishes no loopback address.

use std::net::IpAddr;
use std::process::Command;

/// Set in the process that runs in the namespace.
const VARIABLE: &str = "SKEWBRIDGE_E2E_NETWORK_NAMESPACE";

/// Runs the test of this name again, in a new network namespace that has these addresses. Returns
/// whether this is the process in the namespace; in the other one, the test has passed.
pub fn run_in_network_namespace(test: &str, addresses: &[IpAddr]) -> bool {
    if std::env::var_os(VARIABLE).is_some() {
        ip(&["link", "set", "lo", "up"]);
        for address in addresses {
            // Packets to it never leave the namespace.
            ip(&["addr", "add", &address.to_string(), "dev", "lo"]);
        }
        return true;
    }
    let program = std::env::current_exe().expect("the path of the test program");
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--net"])
        .arg(program)
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(VARIABLE, "1")
        .status();
    let status = status.expect("the test in a network namespace");
    assert!(status.success(), "{test} in a network namespace: {status}");
    false
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output();
    let output = output.expect("the program ip");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments:?}: {error}");
}
