//! The effective configuration: for `--dry-run` as a file for `--config`, and for `/flagz`. No flag has
//! a secret as its value: keys and passwords are in files, and URLs with passwords are refused.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::command_line::{EffectiveFlag, EffectiveFlags, Source};
use super::config_file::{API_VERSION, KIND};
use super::flag_definitions::Arity;

/// The file. Keys that are not set are comments, so that all keys can be seen.
pub(crate) fn yaml(effective: &EffectiveFlags) -> String {
    let mut text = format!("apiVersion: {API_VERSION}\nkind: {KIND}\n");
    let mut group = "";
    for flag in &effective.flags {
        if flag.definition.group != group {
            group = &flag.definition.group;
            // Writing to a string does not fail.
            let _ = write!(text, "\n# {group}\n");
        }
        entry(&mut text, flag);
    }
    text
}

/// The values of all flags by name, for `/flagz`. Several values are in brackets, as Kubernetes
/// prints them.
pub(crate) fn by_name(effective: &EffectiveFlags) -> BTreeMap<String, String> {
    let flags = effective.flags.iter().map(|flag| {
        let value = match flag.definition.arity {
            Arity::List => format!("[{}]", flag.values.join(",")),
            Arity::One | Arity::JoinedList => flag.values.join(","),
        };
        (flag.definition.name.clone(), value)
    });
    flags.collect()
}

fn entry(text: &mut String, flag: &EffectiveFlag) {
    let key = &flag.definition.key;
    let note = match flag.source {
        Source::CommandLine => "  # from the command line",
        Source::File => "",
        Source::Default => "  # default",
    };
    let values: Vec<_> = flag.values.iter().map(|value| scalar(value)).collect();
    // Writing to a string does not fail.
    let _ = match (flag.definition.arity, values.as_slice()) {
        (Arity::List, []) => writeln!(text, "# {key}: []"),
        (_, []) => writeln!(text, "# {key}:"),
        // As `--flag=`: an empty list.
        (Arity::List, [empty]) if empty == "\"\"" => writeln!(text, "{key}: []{note}"),
        (Arity::List, values) => {
            let items = values.iter().map(|value| format!("\n- {value}"));
            writeln!(text, "{key}:{note}{}", items.collect::<String>())
        }
        (Arity::One | Arity::JoinedList, [value, ..]) => writeln!(text, "{key}: {value}{note}"),
    };
}

/// A YAML scalar that reads as this text: plain where that is safe, else in quotes.
pub(crate) fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"/._-:,=".contains(&byte))
        && !text.ends_with(':')
        && !["null", "true", "false", "yes", "no"].contains(&text.to_ascii_lowercase().as_str());
    if is_plain {
        text.to_owned()
    } else {
        // Strings of JSON are strings of YAML.
        serde_json::Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::super::config_file;
    use super::super::flag_definitions::{self, FlagDefinition};
    use super::*;

    #[test]
    fn a_scalar_is_read_as_it_was() {
        let definitions = flag_definitions::all();
        for value in [
            "6443",
            "on",
            "1m30s",
            "https://[::1]:6443",
            "::",
            "https://127.0.0.1:6443",
            "X=true,Y=false",
            "",
            "a b",
            "a: b",
            "a #b",
            "\u{e4}\"\\",
            "null",
            "~",
            "- a",
            "-1",
            "file:/etc/peers.yaml",
        ] {
            let text = format!(
                "apiVersion: {API_VERSION}\nkind: {KIND}\nstateDir: {}\n",
                scalar(value)
            );
            let read = config_file::parse(&text, &definitions).expect(&text);
            assert_eq!(read.settings[0].values, [value], "{text}");
        }
    }

    #[test]
    fn the_source_of_each_value_is_shown() {
        let flag = |name: &str, values: &[&str], source| {
            let definition = (flag_definitions::all().into_iter())
                .find(|it: &FlagDefinition| it.name == name)
                .expect(name);
            let mut text = String::new();
            let values = values.iter().map(ToString::to_string).collect();
            let flag = EffectiveFlag {
                definition,
                values,
                source,
            };
            entry(&mut text, &flag);
            text
        };
        let rows: [(&str, &[&str], Source, &str); 6] = [
            (
                "secure-port",
                &["6443"],
                Source::Default,
                "securePort: 6443  # default\n",
            ),
            ("secure-port", &["7443"], Source::File, "securePort: 7443\n"),
            ("state-dir", &[], Source::Default, "# stateDir:\n"),
            (
                "bridge-groups",
                &[],
                Source::Default,
                "# bridgeGroups: []\n",
            ),
            ("bridge-groups", &[""], Source::File, "bridgeGroups: []\n"),
            (
                "upstream",
                &["https://a", "https://b"],
                Source::CommandLine,
                "upstream:  # from the command line\n- https://a\n- https://b\n",
            ),
        ];
        for (name, values, source, expected) in rows {
            assert_eq!(flag(name, values, source), expected);
        }
    }
}
