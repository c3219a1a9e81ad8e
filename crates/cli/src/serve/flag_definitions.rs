//! The flags of `serve` as data, read from clap's definitions: one source for the configuration
//! file, `--dry-run` and lists of effective flags.

use clap::{ArgAction, Args as _};

use super::flags::Flags;

/// Flags that control a start of the program. They configure nothing, and are not part of a
/// configuration.
const CONTROLS: [&str; 3] = ["config", "dry-run", "help"];

/// One flag of `serve`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlagDefinition {
    /// Its name, without dashes.
    pub(crate) name: String,
    /// Its name in a configuration file: `tlsCertFile` for `tls-cert-file`.
    pub(crate) key: String,
    pub(crate) arity: Arity,
    /// The value without the flag, if it has one.
    pub(crate) default: Option<String>,
    /// The group in `--help`.
    pub(crate) group: String,
}

/// How many values a flag has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arity {
    One,
    /// The flag may be repeated.
    List,
    /// One value, whose items are separated by commas.
    JoinedList,
}

/// All flags that configure a bridge, in the order of `--help`.
pub(crate) fn all() -> Vec<FlagDefinition> {
    let command = Flags::augment_args(clap::Command::new("serve"));
    command.get_arguments().filter_map(definition).collect()
}

fn definition(argument: &clap::Arg) -> Option<FlagDefinition> {
    let name = argument.get_long()?;
    if CONTROLS.contains(&name) {
        return None;
    }
    let takes_list = (argument.get_value_names())
        .is_some_and(|names| names.iter().any(|name| name.as_str() == "LIST"));
    let arity = match argument.get_action() {
        ArgAction::Append => Arity::List,
        _ if takes_list => Arity::JoinedList,
        _ => Arity::One,
    };
    let default = argument.get_default_values().first();
    Some(FlagDefinition {
        name: name.to_owned(),
        key: camel_case(name),
        arity,
        default: default.map(|value| value.to_string_lossy().into_owned()),
        group: argument.get_help_heading().unwrap_or_default().to_owned(),
    })
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut key, word| {
        let mut letters = word.chars();
        key.extend(letters.next().map(|it| it.to_ascii_uppercase()));
        key.push_str(letters.as_str());
        key
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_are_flag_names_in_camel_case() {
        let rows = [
            ("upstream", "upstream"),
            ("tls-cert-file", "tlsCertFile"),
            (
                "http2-max-streams-per-connection",
                "http2MaxStreamsPerConnection",
            ),
            ("v", "v"),
        ];
        for (name, key) in rows {
            assert_eq!(camel_case(name), key);
        }
    }

    #[test]
    fn every_flag_that_configures_a_bridge_has_a_key_of_its_own() {
        let all = all();
        let keys: BTreeSet<_> = all.iter().map(|it| &it.key).collect();
        assert_eq!(keys.len(), all.len());
        assert!(all.iter().all(|it| !it.group.is_empty()), "{all:?}");
        for name in CONTROLS {
            assert!(all.iter().all(|it| it.name != name), "{name}");
        }
    }

    #[test]
    fn flags_have_one_value_or_a_list() {
        let all = all();
        let arity = |name: &str| all.iter().find(|it| it.name == name).map(|it| it.arity);
        assert_eq!(arity("secure-port"), Some(Arity::One));
        assert_eq!(arity("upstream"), Some(Arity::List));
        assert_eq!(arity("peer-registry"), Some(Arity::JoinedList));
    }
}
