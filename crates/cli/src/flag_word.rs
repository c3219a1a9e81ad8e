//! Flags as words of a command line that is not complete or not valid, so that clap does not parse
//! it.

use clap::{Arg, Command};

/// A word that begins with a dash.
pub(crate) struct FlagWord<'a> {
    pub(crate) flag: &'a Arg,
    /// The word without its value.
    pub(crate) name: &'a str,
    pub(crate) value: Option<&'a str>,
}

/// A single dash is a value: standard input.
pub(crate) fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

impl<'a> FlagWord<'a> {
    /// `--name`, `--name=value`, `-n`, `-n=value`, `-nvalue`, or letters without values before such
    /// a letter (`-itc=app`).
    pub(crate) fn parse(command: &'a Command, word: &'a str) -> Option<Self> {
        let find = |matches: &dyn Fn(&Arg) -> bool| command.get_arguments().find(|it| matches(it));
        if let Some(long) = word.strip_prefix("--") {
            let (long, value) = match long.split_once('=') {
                Some((long, value)) => (long, Some(value)),
                None => (long, None),
            };
            let flag = find(&|it| it.get_long() == Some(long))?;
            let name = &word[..word.len() - value.map_or(0, str::len)];
            return Some(Self { flag, name, value });
        }
        let mut rest = word.strip_prefix('-')?;
        loop {
            let letter = rest.chars().next()?;
            rest = &rest[letter.len_utf8()..];
            let flag = find(&|it| it.get_short() == Some(letter))?;
            let is_given = rest.starts_with('=') || (needs_value(flag) && !rest.is_empty());
            if is_given {
                let value = rest.strip_prefix('=').unwrap_or(rest);
                let name = &word[..word.len() - value.len()];
                return Some(Self {
                    flag,
                    name,
                    value: Some(value),
                });
            }
            if rest.is_empty() {
                return Some(Self {
                    flag,
                    name: word,
                    value: None,
                });
            }
        }
    }
}

/// Whether the next word is the value of this flag if it has none.
pub(crate) fn needs_value(flag: &Arg) -> bool {
    let takes = flag.get_num_args().is_some_and(|it| it.min_values() > 0);
    takes && flag.get_action().takes_values()
}
