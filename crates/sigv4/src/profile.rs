//! The two files of AWS: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

/// The settings of one profile.
#[derive(Default)]
pub(super) struct Profile(BTreeMap<String, Zeroizing<String>>);

/// The file that a text is from: the two files name profiles differently.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    Credentials,
    Config,
}

impl Profile {
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key).map(|it| it.as_str());
        value.filter(|it| !it.is_empty())
    }

    /// Adds the settings that this text has for a profile. Settings that exist stay: the file of
    /// credentials is read first and takes precedence. Returns whether the text has the profile.
    pub(super) fn read(&mut self, text: &str, kind: FileKind, profile: &str) -> bool {
        let (mut inside, mut found) = (false, false);
        let mut settings: BTreeMap<String, Zeroizing<String>> = BTreeMap::new();
        for line in text.lines() {
            // Indented lines belong to a setting with nested settings (`s3 =`).
            let nested = line.starts_with([' ', '\t']);
            let line = strip_comment(line).trim();
            if line.is_empty() || nested {
                continue;
            }
            if let Some(header) = line.strip_prefix('[') {
                let name = header.split(']').next().unwrap_or_default().trim();
                inside = is_profile(name, kind, profile);
                found |= inside;
                continue;
            }
            if let (true, Some((key, value))) = (inside, line.split_once('=')) {
                let value = Zeroizing::new(value.trim().to_owned());
                settings.insert(key.trim().to_ascii_lowercase(), value);
            }
        }
        for (key, value) in settings {
            self.0.entry(key).or_insert(value);
        }
        found
    }
}

/// Removes a comment: a whole line, or the part behind a space and `#` or `;`.
fn strip_comment(line: &str) -> &str {
    if line.starts_with(['#', ';']) {
        return "";
    }
    let ends = [" #", " ;", "\t#", "\t;"].map(|mark| line.find(mark));
    let end = ends.into_iter().flatten().min();
    &line[..end.unwrap_or(line.len())]
}

fn is_profile(section: &str, kind: FileKind, profile: &str) -> bool {
    match kind {
        FileKind::Credentials => section == profile,
        FileKind::Config => {
            let named = section
                .strip_prefix("profile")
                .filter(|rest| rest.starts_with([' ', '\t']));
            match named {
                Some(name) => name.trim().trim_matches('"') == profile,
                // Only this profile is named without the prefix.
                None => section == "default" && profile == "default",
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "
# a comment
[default]
aws_access_key_id=AKID
aws_secret_access_key = secret # not a part of it
[other]
aws_access_key_id = A#B
aws_access_key_id = LAST
[ spaced ]
REGION = r
";

    const CONFIG: &str = "
[default]
region = eu-west-1
aws_access_key_id = shadowed
s3 =
    region = nested
[profile other]
region=us-east-1
[profile \"quoted name\"]
region = q
[bare]
region = b
[sso-session other]
region = s
";

    fn of(profile: &str) -> (Profile, bool) {
        let mut read = Profile::default();
        let first = read.read(CREDENTIALS, FileKind::Credentials, profile);
        let second = read.read(CONFIG, FileKind::Config, profile);
        (read, first || second)
    }

    #[test]
    fn both_files_are_read_and_credentials_take_precedence() {
        let rows = [
            ("default", "aws_access_key_id", Some("AKID")),
            ("default", "aws_secret_access_key", Some("secret")),
            ("default", "region", Some("eu-west-1")),
            ("default", "s3", None),
            ("other", "aws_access_key_id", Some("LAST")),
            ("other", "region", Some("us-east-1")),
            ("quoted name", "region", Some("q")),
            ("spaced", "region", Some("r")),
        ];
        for (profile, key, expected) in rows {
            let (read, found) = of(profile);
            assert!(found, "{profile}");
            assert_eq!(read.get(key), expected, "{profile} {key}");
        }
        for absent in ["bare", "profile other", "nobody", "sso-session other"] {
            assert!(!of(absent).1, "{absent}");
        }
    }
}
