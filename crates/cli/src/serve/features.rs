//! `--feature-gates`: kube-apiserver's syntax, this bridge's gates.

use skewbridge_gateway::config::{Feature, Features};

use super::diagnostics::Diagnostics;
use crate::flag_values;

const FLAG: &str = "--feature-gates";

/// Lists the gates once, for parsing and for the help. A variant of [`Feature`] that is not in
/// the list does not compile.
macro_rules! gates {
    ($first:ident $(, $other:ident)*) => {
        /// Every gate, by its name in Kubernetes where it has one.
        const GATES: &[(&str, Feature)] = &[
            (stringify!($first), Feature::$first)
            $(, (stringify!($other), Feature::$other))*
        ];

        /// The help of the flag.
        pub(crate) const HELP: &str = concat!(
            "NAME=true|false, separated by commas; all gates are on by default: ",
            stringify!($first) $(, ", ", stringify!($other))*
        );

        const _: fn(Feature) = |feature| match feature {
            Feature::$first $(| Feature::$other)* => {}
        };
    };
}

gates!(
    CompleteDiscovery,
    PortForwardWebsockets,
    TranslateStreamCloseWebsocketRequests,
    UnknownVersionInteroperabilityProxy
);

/// The enabled gates: the defaults, changed by `A=true,B=false`; the last value of a gate
/// counts.
pub(crate) fn features(given: &[String], diagnostics: &mut Diagnostics) -> Features {
    let mut features = Features::default();
    for item in diagnostics.values(FLAG, given, |item| Ok(item.to_owned())) {
        let Some((name, value)) = item.split_once('=') else {
            diagnostics.problem(
                FLAG,
                None,
                format!("{item:?} has no value; write {item}=true"),
            );
            continue;
        };
        let name = name.trim();
        let value = flag_values::boolean(value.trim()).map_err(|wrong| format!("{name}: {wrong}"));
        let Some(on) = diagnostics.value(FLAG, value) else {
            continue;
        };
        match GATES.iter().find(|(gate, _)| *gate == name) {
            Some((_, feature)) if on => {
                features.0.insert(*feature);
            }
            Some((_, feature)) => {
                features.0.remove(feature);
            }
            None => unknown(name, diagnostics),
        }
    }
    features
}

fn unknown(name: &str, diagnostics: &mut Diagnostics) {
    match name {
        // Copied from kube-apiserver, they refer to its gates. They do not affect the bridge's
        // gates, because alpha gates differ between versions of Kubernetes.
        "AllAlpha" | "AllBeta" => diagnostics.warning(
            FLAG,
            None,
            format!("{name} has no effect; name the gates themselves"),
        ),
        "ClientExecProxy" => diagnostics.problem(
            FLAG,
            None,
            "ClientExecProxy is a gate of the client commands, not of serve",
        ),
        _ => {
            let known: Vec<_> = GATES.iter().map(|(gate, _)| *gate).collect();
            let known = known.join(", ");
            diagnostics.problem(
                FLAG,
                None,
                format!("unknown gate {name:?}; known are {known}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[&str]) -> (Features, Diagnostics) {
        let given: Vec<_> = given.iter().map(ToString::to_string).collect();
        let mut diagnostics = Diagnostics::default();
        (features(&given, &mut diagnostics), diagnostics)
    }

    #[test]
    fn gates_are_on_unless_turned_off() {
        let (all, diagnostics) = read(&[]);
        assert!(diagnostics.conclude(Some(())).is_ok());
        assert_eq!(all, Features::default());
        let (some, diagnostics) = read(&[
            "PortForwardWebsockets=false, UnknownVersionInteroperabilityProxy=F",
            "PortForwardWebsockets=true",
        ]);
        assert!(diagnostics.conclude(Some(())).is_ok());
        assert!(some.enabled(Feature::PortForwardWebsockets));
        assert!(some.enabled(Feature::TranslateStreamCloseWebsocketRequests));
        assert!(!some.enabled(Feature::UnknownVersionInteroperabilityProxy));
    }

    #[test]
    fn every_invalid_gate_is_reported() {
        let (_, diagnostics) = read(&["Nonsense=true,PortForwardWebsockets=maybe,AllAlpha"]);
        let text = diagnostics.conclude(Some(())).unwrap_err().to_string();
        for expected in [
            "unknown gate \"Nonsense\"; known are CompleteDiscovery, PortForwardWebsockets, Trans",
            "PortForwardWebsockets: \"maybe\" is neither true nor false",
            "\"AllAlpha\" has no value; write AllAlpha=true",
        ] {
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn the_help_lists_every_gate() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            _flags: super::super::flags::FeatureFlags,
        }
        let help = <Line as clap::CommandFactory>::command().render_long_help();
        let words = help
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(Features::default().0.len(), GATES.len());
        for (gate, feature) in GATES {
            assert!(Features::default().enabled(*feature), "{gate}");
            assert!(words.contains(gate), "{gate}: {words}");
        }
    }

    #[test]
    fn all_alpha_is_accepted_and_does_nothing() {
        let (features, diagnostics) = read(&["AllAlpha=false,AllBeta=true"]);
        let ((), warnings) = diagnostics.conclude(Some(())).unwrap();
        assert_eq!(warnings.len(), 2);
        assert_eq!(features, Features::default());
    }
}
