//! The senders of the requests in the audit log of a kube-apiserver.

use std::collections::BTreeMap;

use serde_json::Value;

/// The users of `admin.conf` and `super-admin.conf`, and so of `skewbridge check`, whose name in
/// `User-Agent` is that of the bridge.
const ADMINISTRATORS: [&str; 2] = ["kubernetes-admin", "kubernetes-super-admin"];

/// How a request reached a kube-apiserver that listens on its loopback address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sender {
    /// A client, through a bridge: `X-Forwarded-For` has its address.
    ThroughBridge,
    /// The bridge itself.
    Bridge,
    /// kube-apiserver's own loopback client.
    Itself,
    /// kubelet's probes.
    Probe,
    /// Anything else.
    Direct,
}

impl Sender {
    fn of(event: &Value) -> Self {
        let agent = event["userAgent"].as_str().unwrap_or_default();
        let user = event["user"]["username"].as_str().unwrap_or_default();
        let path = event["requestURI"].as_str().unwrap_or_default();
        let addresses = event["sourceIPs"].as_array().map_or(0, Vec::len);
        // The address of the connection follows those of the header.
        if addresses > 1 {
            Self::ThroughBridge
        } else if agent.starts_with("skewbridge/") && !ADMINISTRATORS.contains(&user) {
            Self::Bridge
        } else if agent.starts_with("kube-apiserver/") && user == "system:apiserver" {
            Self::Itself
        } else if agent.starts_with("kube-probe/") && ["/livez", "/readyz"].contains(&path) {
            Self::Probe
        } else {
            Self::Direct
        }
    }
}

/// The log from the first request of the bridge on. kube-apiserver moved to its loopback address
/// with the start of its bridge.
pub(crate) fn since_the_bridge_started(log: &str) -> &str {
    let mut start = 0;
    for line in log.split_inclusive('\n') {
        let event = serde_json::from_str::<Value>(line);
        if event.is_ok_and(|it| Sender::of(&it) == Sender::Bridge) {
            return &log[start..];
        }
        start += line.len();
    }
    panic!("the bridge has sent no request");
}

/// The requests of a log, by sender, and one line for each program that came through a bridge or
/// directly.
pub(crate) fn senders(log: &str) -> BTreeMap<Sender, BTreeMap<String, usize>> {
    let mut all = BTreeMap::<Sender, BTreeMap<String, usize>>::new();
    for line in log.lines() {
        // The last line may be incomplete.
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let agent = event["userAgent"].as_str().unwrap_or_default();
        let program = agent.split('/').next().unwrap_or_default().to_owned();
        *all.entry(Sender::of(&event))
            .or_default()
            .entry(program)
            .or_default() += 1;
    }
    all
}

#[test]
fn a_log_begins_with_the_bridge_and_not_with_a_check() {
    let event = |user: &str, agent: &str| {
        format!(
            "{{\"user\":{{\"username\":\"{user}\"}},\"userAgent\":\"{agent}\",\"sourceIPs\":[\"::1\"]}}\n"
        )
    };
    let early = event("system:kube-scheduler", "kube-scheduler/v1.34.4")
        + &event(ADMINISTRATORS[0], "skewbridge/1");
    let late = event("system:apiserver", "skewbridge/1") + &event("a", "curl/8");
    let log = early + &late;
    assert_eq!(since_the_bridge_started(&log), late);
    let senders = senders(&late);
    assert_eq!(
        senders.keys().collect::<Vec<_>>(),
        [&Sender::Bridge, &Sender::Direct]
    );
}
