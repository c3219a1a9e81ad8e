//! Readiness and certificates of the servers.

use std::time::Duration;

use crate::facts::{Bridge, Facts};
use crate::finding::{Finding, Severity, Topic};

/// Certificates that expire within this time are to be renewed first: an upgrade and a rollback
/// may take days.
pub const MIN_CERTIFICATE_VALIDITY: Duration = Duration::from_hours(7 * 24);

pub(crate) fn findings(facts: &Facts) -> Vec<Finding> {
    let unlisted = facts.unlisted.iter().map(|why| {
        let message = format!(
            "the addresses that they publish in the Service default/kubernetes could not be read: {why}; \
             name each server with --server"
        );
        Finding::new(Topic::Servers, Severity::NotKnown, "kube-apiservers", message)
    });
    let unqueried = facts.unqueried.iter().map(|host| {
        let message = "a bridge lists it, and it was not queried: name each server with --server";
        Finding::new(Topic::Servers, Severity::NotKnown, host, message)
    });
    let mut findings: Vec<_> = unlisted.chain(unqueried).collect();
    for server in &facts.servers {
        let finding = |severity, message: String| {
            Finding::new(Topic::Servers, severity, &server.name, message)
        };
        if server.bridge == Some(Bridge::Balancer) {
            let message = "a bridge in front of several kube-apiservers answers: these results are of \
                           any one of them; name each with --server";
            findings.push(finding(Severity::NotKnown, message.to_owned()));
        }
        match &server.failing_checks {
            Ok(checks) if checks.is_empty() => {}
            Ok(checks) => findings.push(
                finding(
                    Severity::Finding,
                    format!("it is not ready: {}", checks.join(", ")),
                )
                .commands(["kubectl get --raw '/readyz?verbose'".to_owned()]),
            ),
            Err(why) => findings.push(finding(
                Severity::NotKnown,
                format!("/readyz could not be read: {why}"),
            )),
        }
        match &server.certificate_expiry {
            Err(why) => findings.push(finding(
                Severity::NotKnown,
                format!("its serving certificate could not be read: {why}"),
            )),
            Ok(expiry) => match expiry.duration_since(facts.read_at) {
                Ok(left) if left >= MIN_CERTIFICATE_VALIDITY => {}
                Ok(left) => findings.push(
                    finding(
                        Severity::Finding,
                        format!(
                            "its serving certificate expires in {} h",
                            left.as_secs() / 3600
                        ),
                    )
                    .commands(["kubeadm certs renew apiserver".to_owned()]),
                ),
                Err(_) => findings.push(
                    finding(
                        Severity::Finding,
                        "its serving certificate has expired".to_owned(),
                    )
                    .commands(["kubeadm certs renew apiserver".to_owned()]),
                ),
            },
        }
        if let Err(why) = &server.discovery {
            findings.push(finding(
                Severity::NotKnown,
                format!("its discovery could not be read: {why}"),
            ));
        }
    }
    findings
}
