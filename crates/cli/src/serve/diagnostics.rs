//! Errors and warnings of a command line, collected so that all are reported at once.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::flag_values::Parsed;

/// A reason why `serve` cannot start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// With its dashes; several, if the message is about all of them.
    pub(crate) flag: String,
    /// The file that the flag names, if the message is about the file.
    pub(crate) file: Option<PathBuf>,
    pub(crate) message: String,
}

/// All problems, as printed.
#[derive(Debug)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

/// A problem with which `serve` can start, and which its administrator should know.
pub(crate) type Warning = Problem;

/// The problems and warnings found so far.
#[derive(Debug, Default)]
pub(crate) struct Diagnostics {
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Diagnostics {
    /// The value, or `None` and a problem.
    pub(crate) fn value<T>(&mut self, flag: &str, parsed: Parsed<T>) -> Option<T> {
        parsed
            .map_err(|message| self.problem(flag, None, message))
            .ok()
    }

    /// All valid values; the others are problems.
    pub(crate) fn values<T>(
        &mut self,
        flag: &str,
        given: &[String],
        parse: impl Fn(&str) -> Parsed<T>,
    ) -> Vec<T> {
        let items = self
            .value(flag, crate::flag_values::list(given))
            .unwrap_or_default();
        items
            .iter()
            .filter_map(|item| self.value(flag, parse(item)))
            .collect()
    }

    /// Records a problem.
    pub(crate) fn problem(&mut self, flag: &str, file: Option<&Path>, message: impl Into<String>) {
        self.problems.push(finding(flag, file, message.into()));
    }

    /// Records a warning.
    pub(crate) fn warning(&mut self, flag: &str, file: Option<&Path>, message: impl Into<String>) {
        self.warnings.push(finding(flag, file, message.into()));
    }

    /// The result, if there was no error. Without a result there is always an error.
    pub(crate) fn conclude<T>(self, built: Option<T>) -> Result<(T, Vec<Warning>), Problems> {
        match built {
            Some(built) if self.problems.is_empty() => Ok((built, self.warnings)),
            _ => Err(Problems(self.problems)),
        }
    }
}

fn finding(flag: &str, file: Option<&Path>, message: String) -> Problem {
    Problem {
        flag: flag.to_owned(),
        file: file.map(Path::to_owned),
        message,
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{} {}: {}", self.flag, file.display(), self.message),
            None => write!(f, "{}: {}", self.flag, self.message),
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            // One line per problem, whatever a parser message or a path contains.
            let line = problem.to_string().replace(['\n', '\r'], " ");
            writeln!(f, "skewbridge: {line}")?;
        }
        writeln!(f, "see skewbridge serve --help")
    }
}
