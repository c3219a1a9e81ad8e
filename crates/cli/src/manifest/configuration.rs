//! The text of a configuration file for `skewbridge serve --config`.

use std::fmt::Write as _;

use crate::serve::{CONFIGURATION_API_VERSION, CONFIGURATION_KIND, yaml_scalar};

/// Where the file is installed.
pub(super) const PATH: &str = "/etc/skewbridge/config.yaml";

/// The state directory of an installed bridge.
pub(super) const STATE_DIRECTORY: &str = "/var/lib/skewbridge";

/// A configuration file under construction.
#[derive(Debug, Clone)]
pub(super) struct ConfigurationText(String);

impl ConfigurationText {
    /// Starts a file with this comment at its top.
    pub(super) fn new(comment: &str) -> Self {
        Self(format!(
            "{comment}apiVersion: {CONFIGURATION_API_VERSION}\nkind: {CONFIGURATION_KIND}\n"
        ))
    }

    /// A comment that begins a paragraph.
    pub(super) fn paragraph(&mut self, comment: &str) {
        self.0.push('\n');
        for line in comment.lines() {
            self.line(format_args!("# {line}"));
        }
    }

    /// A key with one value.
    pub(super) fn value(&mut self, key: &str, value: &str) {
        self.line(format_args!("{key}: {}", yaml_scalar(value)));
    }

    /// A key with a list of values.
    pub(super) fn list<'v>(&mut self, key: &str, values: impl IntoIterator<Item = &'v str>) {
        self.line(format_args!("{key}:"));
        for value in values {
            self.line(format_args!("- {}", yaml_scalar(value)));
        }
    }

    pub(super) fn text(self) -> String {
        self.0
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
    }
}
