//! What names and labels may look like, and kube-apiserver's words for those
//! that do not.

/// What the name of an object has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameRule {
    /// `a.b-c`: nearly everywhere.
    Subdomain,
    /// `b-c`: namespaces and services.
    Label,
    /// `system:node`: whatever fits in a path.
    PathSegment,
}

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
/// Of labels: keys without their prefix, and values.
const LONGEST_LABEL: usize = 63;
const LONGEST_NAME: usize = 253;

impl NameRule {
    /// Of a resource.
    pub fn of(group: &str, resource: &str) -> Self {
        match (group, resource) {
            ("", "namespaces" | "services") => Self::Label,
            ("rbac.authorization.k8s.io", _) => Self::PathSegment,
            _ => Self::Subdomain,
        }
    }

    /// What is wrong with a name; nothing, as a rule.
    pub fn faults(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => subdomain_faults(name),
            Self::Label => label_faults(name),
            Self::PathSegment => path_segment_faults(name),
        }
    }
}

/// What is wrong with the key of a label.
pub fn label_key_faults(key: &str) -> Vec<String> {
    let explained = explain(
        "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
         an alphanumeric character",
        KEY,
        &["MyName", "my.name", "123-abc"],
    );
    let mut faults = Vec::new();
    let parts: Vec<&str> = key.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                faults.push("prefix part must be non-empty".to_owned());
            } else {
                let wrong = subdomain_faults(prefix).into_iter();
                faults.extend(wrong.map(|fault| format!("prefix part {fault}")));
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
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > LONGEST_LABEL {
        faults.push(format!(
            "name part must be no more than {LONGEST_LABEL} bytes"
        ));
    }
    if !is_word(name) {
        faults.push(format!("name part {explained}"));
    }
    faults
}

/// What is wrong with the value of a label.
pub fn label_value_faults(value: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if value.len() > LONGEST_LABEL {
        faults.push(format!("must be no more than {LONGEST_LABEL} bytes"));
    }
    if !value.is_empty() && !is_word(value) {
        faults.push(explain(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', \
             '_' or '.', and must start and end with an alphanumeric character",
            &format!("({KEY})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    faults
}

fn subdomain_faults(name: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if name.len() > LONGEST_NAME {
        faults.push(format!("must be no more than {LONGEST_NAME} bytes"));
    }
    if !name.split('.').all(is_label) {
        faults.push(explain(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character",
            &format!("{LABEL}(\\.{LABEL})*"),
            &["example.com"],
        ));
    }
    faults
}

fn label_faults(name: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if name.len() > LONGEST_LABEL {
        faults.push(format!("must be no more than {LONGEST_LABEL} bytes"));
    }
    if !is_label(name) {
        if name.split('.').all(is_label) {
            faults.push("must not contain dots".to_owned());
        } else {
            faults.push(explain(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters \
                 or '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            ));
        }
    }
    faults
}

fn path_segment_faults(name: &str) -> Vec<String> {
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
            let faults = NameRule::of(group, resource).faults(name);
            assert_eq!(faults.is_empty(), good, "{resource} {name}: {faults:?}");
        }
    }

    #[test]
    fn faults_are_told_in_kube_apiservers_words() {
        assert_eq!(
            NameRule::Subdomain.faults("A"),
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
              characters, '-' or '.', and must start and end with an alphanumeric character \
              (e.g. 'example.com', regex used for validation is \
              '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert_eq!(
            label_value_faults("-x"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, \
              '-', '_' or '.', and must start and end with an alphanumeric character (e.g. \
              'MyValue',  or 'my_value',  or '12345', regex used for validation is \
              '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
        assert_eq!(label_key_faults("example.com/a_b"), [""; 0]);
        assert_eq!(label_key_faults("/a"), ["prefix part must be non-empty"]);
        assert_eq!(label_key_faults("a/b/c").len(), 1);
        assert_eq!(NameRule::Label.faults("a.b"), ["must not contain dots"]);
    }
}
