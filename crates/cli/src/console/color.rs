//! Colored output.

use std::fmt;
use std::io::IsTerminal as _;

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Color {
    Colour,
    Plain,
}

impl Color {
    /// Colored on a terminal, unless `NO_COLOR` is set (no-color.org).
    pub(crate) fn of_stdout() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty())
            || std::env::var_os("TERM").is_some_and(|it| it == "dumb");
        if std::io::stdout().is_terminal() && !unwanted {
            Self::Colour
        } else {
            Self::Plain
        }
    }

    pub(crate) fn bold(self, text: impl fmt::Display) -> String {
        self.color("1", text)
    }

    pub(crate) fn dim(self, text: impl fmt::Display) -> String {
        self.color("2", text)
    }

    pub(crate) fn success(self, text: impl fmt::Display) -> String {
        self.color("32", text)
    }

    pub(crate) fn warning(self, text: impl fmt::Display) -> String {
        self.color("33", text)
    }

    pub(crate) fn failure(self, text: impl fmt::Display) -> String {
        self.color("31", text)
    }

    pub(crate) fn name(self, text: impl fmt::Display) -> String {
        self.color("36", text)
    }

    fn color(self, code: &str, text: impl fmt::Display) -> String {
        match self {
            Self::Colour => format!("\x1b[{code}m{text}\x1b[0m"),
            Self::Plain => text.to_string(),
        }
    }
}
