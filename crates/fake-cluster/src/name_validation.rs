//! Validation of names and labels, with kube-apiserver's messages.

/// The rule for the name of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// `a.b-c`: nearly everywhere.
    Subdomain,
    /// `b-c`: namespaces and services.
    Label,
    /// `system:node`: any valid path segment.
    PathSegment,
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
/// Maximum length of label keys without their prefix, and of label values.
const MAX_LABEL_BYTES: usize = 63;
const MAX_NAME_BYTES: usize = 253;

impl NameRule {
    /// The rule of a resource.
    pub fn of(group: &str, resource: &str) -> Self {
        match (group, resource) {
            ("", "namespaces" | "services") => Self::Label,
            ("rbac.authorization.k8s.io", _) => Self::PathSegment,
            _ => Self::Subdomain,
        }
    }

    /// The errors of a name.
    pub fn errors(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => subdomain_errors(name),
            Self::Label => label_errors(name),
            Self::PathSegment => path_segment_errors(name),
        }
    }
}

/// The errors of a label key.
pub fn label_key_errors(key: &str) -> Vec<String> {
    let explained = explain(
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
         an alphanumeric character",
        KEY,
        &["MyName", "my.name", "123-abc"],
    );
    let mut errors = Vec::new();
    let parts: Vec<&str> = key.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                let wrong = subdomain_errors(prefix).into_iter();
                errors.extend(wrong.map(|fault| format!("prefix part {fault}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a valid label key {explained} with an optional DNS subdomain prefix and '/' \
                 (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LABEL_BYTES {
        errors.push(format!(
            "name part must be no more than {MAX_LABEL_BYTES} bytes"
        ));
    }
    if !is_word(name) {
        errors.push(format!("name part {explained}"));
    }
    errors
}

/// The errors of a label value.
pub fn label_value_errors(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_LABEL_BYTES {
        errors.push(format!("must be no more than {MAX_LABEL_BYTES} bytes"));
    }
    if !value.is_empty() && !is_word(value) {
        errors.push(explain(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', \
             '_' or '.', and must start and end with an alphanumeric character",
            &format!("({KEY})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

fn subdomain_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > MAX_NAME_BYTES {
        errors.push(format!("must be no more than {MAX_NAME_BYTES} bytes"));
    }
    if !name.split('.').all(is_label) {
        errors.push(explain(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character",
            &format!("{LABEL}(\\.{LABEL})*"),
            &["example.com"],
        ));
    }
    errors
}

fn label_errors(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > MAX_LABEL_BYTES {
        errors.push(format!("must be no more than {MAX_LABEL_BYTES} bytes"));
    }
    if !is_label(name) {
        if name.split('.').all(is_label) {
            errors.push("must not contain dots".to_owned());
        } else {
            errors.push(explain(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
                 or '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    errors
}

fn path_segment_errors(name: &str) -> Vec<String> {
    if matches!(name, "." | "..") {
        return vec![format!("may not be '{name}'")];
    }
    let within = ["/", "%"].into_iter().filter(|it| name.contains(it));
    within.map(|it| format!("may not contain '{it}'")).collect()
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    is_enclosed(text, inner, |byte| inner(byte) || byte == b'-')
}

fn is_word(text: &str) -> bool {
    is_enclosed(
        text,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte),
    )
}

fn is_enclosed(text: &str, end: impl Fn(u8) -> bool, inside: impl Fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [only] => end(*only),
        [first, middle @ .., last] => {
            end(*first) && end(*last) && middle.iter().all(|byte| inside(*byte))
        }
    }
}

fn explain(rule: &str, pattern: &str, examples: &[&str]) -> String {
    let examples: Vec<_> = examples.iter().map(|it| format!("'{it}', ")).collect();
    let examples = examples.join(" or ");
    format!("{rule} (e.g. {examples}regex used for validation is '{pattern}')")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule_of_their_resource() {
        let long = "a".repeat(254);
        let rows = [
            ("", "configmaps", "a.b-c", true),
            ("", "configmaps", "A", false),
            ("", "configmaps", "a..b", false),
            ("", "configmaps", "-a", false),
            ("", "configmaps", "", false),
            ("", "configmaps", &long, false),
            ("", "namespaces", "shop", true),
            ("", "namespaces", "shop.old", false),
            (
                "rbac.authorization.k8s.io",
                "clusterroles",
                "system:Node",
                true,
            ),
            ("rbac.authorization.k8s.io", "clusterroles", "a/b", false),
            ("rbac.authorization.k8s.io", "clusterroles", "..", false),
        ];
        for (group, resource, name, good) in rows {
            let errors = NameRule::of(group, resource).errors(name);
            assert_eq!(errors.is_empty(), good, "{resource} {name}: {errors:?}");
        }
    }

    #[test]
    fn errors_have_kube_apiservers_messages() {
        assert_eq!(
            NameRule::Subdomain.errors("A"),
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
              characters, '-' or '.', and must start and end with an alphanumeric character \
              (e.g. 'example.com', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert_eq!(
            label_value_errors("-x"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, \
              '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
              'MyValue',  or 'my_value',  or '12345', regex used for validation is \
              '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
        assert_eq!(label_key_errors("example.com/a_b"), [""; 0]);
        assert_eq!(label_key_errors("/a"), ["prefix part must be non-empty"]);
        assert_eq!(label_key_errors("a/b/c").len(), 1);
        assert_eq!(NameRule::Label.errors("a.b"), ["must not contain dots"]);
    }
}
