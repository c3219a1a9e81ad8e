//! The flags about signed requests.

use std::path::PathBuf;
use std::time::Duration;

use http::uri::Authority;
use skewbridge_gateway::config::Signatures;
use skewbridge_gateway::signatures::keys::SignatureKeys;
use skewbridge_k8s_api::identity::IdentityHeaders;

use super::diagnostics::Diagnostics;
use super::flags::AuthenticationFlags;
use crate::flag_values::{self, Parsed};

const KEYS: &str = "--http-signature-keys";
const AUTHORITIES: &str = "--http-signature-authorities";

/// A longer age would need a longer replay memory.
const MAX_SIGNATURE_AGE: Duration = Duration::from_hours(1);

/// A larger difference means a broken clock.
const MAX_CLOCK_SKEW: Duration = Duration::from_mins(5);

/// Parses the flags; `None` without keys.
pub(super) fn read(
    flags: &AuthenticationFlags,
    headers: &IdentityHeaders,
    diagnostics: &mut Diagnostics,
) -> Option<Signatures> {
    let authorities = diagnostics.values(AUTHORITIES, &flags.http_signature_authorities, authority);
    let max_age = diagnostics.value(
        "--http-signature-max-age",
        flag_values::timeout(&flags.http_signature_max_age)
            .and_then(|it| bounded(it, MAX_SIGNATURE_AGE)),
    );
    let clock_skew = diagnostics.value(
        "--http-signature-clock-skew",
        flag_values::duration(&flags.http_signature_clock_skew)
            .and_then(|it| bounded(it, MAX_CLOCK_SKEW)),
    );
    let keys = flags.http_signature_keys.as_deref();
    let Some(keys) = keys.filter(|it| !it.is_empty()).map(PathBuf::from) else {
        if !authorities.is_empty() {
            diagnostics.problem(AUTHORITIES, None, format!("has no effect without {KEYS}"));
        }
        return None;
    };
    if let Err(wrong) = SignatureKeys::load(&keys, headers) {
        diagnostics.problem(KEYS, Some(&wrong.path), wrong.problem.to_string());
    }
    if flags
        .http_signature_authorities
        .iter()
        .all(String::is_empty)
    {
        diagnostics.problem(
            AUTHORITIES,
            None,
            format!(
                "required with {KEYS}: without it a request that was signed for another server \
                 would be accepted here"
            ),
        );
    }
    Some(Signatures {
        keys,
        authorities,
        max_age: max_age?,
        clock_skew: clock_skew?,
    })
}

fn authority(text: &str) -> Parsed<String> {
    let parsed: Option<Authority> = text.parse().ok();
    match parsed {
        Some(authority) if !text.contains('@') && !authority.host().is_empty() => {
            let normalized = skewbridge_http_signature::normalize_authority("https", text);
            Ok(normalized)
        }
        _ => Err(format!("{text:?} is not HOST or HOST:PORT")),
    }
}

fn bounded(duration: Duration, longest: Duration) -> Parsed<Duration> {
    if duration.subsec_nanos() != 0 {
        Err("must be whole seconds, as signatures count them".to_owned())
    } else if duration > longest {
        Err(format!("must not be more than {} s", longest.as_secs()))
    } else {
        Ok(duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_are_hosts_with_or_without_ports() {
        let rows = [
            ("kube.example", Some("kube.example")),
            ("Kube.Example:6443", Some("kube.example:6443")),
            ("kube.example:443", Some("kube.example")),
            ("10.0.0.1:6443", Some("10.0.0.1:6443")),
            ("[fd00::1]:6443", Some("[fd00::1]:6443")),
            ("https://kube.example", None),
            ("kube.example/path", None),
            ("user@kube.example", None),
            (":6443", None),
            ("", None),
        ];
        for (text, expected) in rows {
            assert_eq!(authority(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn durations_are_whole_seconds_within_bounds() {
        assert!(bounded(MAX_SIGNATURE_AGE, MAX_SIGNATURE_AGE).is_ok());
        assert!(
            bounded(
                MAX_SIGNATURE_AGE + Duration::from_secs(1),
                MAX_SIGNATURE_AGE
            )
            .is_err()
        );
        assert!(bounded(Duration::from_millis(1500), MAX_SIGNATURE_AGE).is_err());
    }
}
