//! Candidates for a word, and the format in which programs made with cobra print them.

/// A candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) word: String,
    /// One line.
    pub(super) description: Option<String>,
}

/// All candidates for a word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Candidates {
    pub(super) all: Vec<Candidate>,
    /// Whether the shell offers files if there is no candidate.
    pub(super) or_files: bool,
}

/// Cobra's `ShellCompDirectiveNoSpace`.
const NO_SPACE: u8 = 2;

/// Cobra's `ShellCompDirectiveNoFileComp`.
const NO_FILES: u8 = 4;

/// A word that ends with one of these is not complete.
const OPEN_ENDS: [char; 3] = ['/', ':', '='];

impl Candidate {
    pub(super) fn new(word: impl Into<String>) -> Self {
        Self {
            word: word.into(),
            description: None,
        }
    }

    pub(super) fn described(word: impl Into<String>, description: Option<String>) -> Self {
        let first_line = |text: String| text.lines().next().unwrap_or_default().to_owned();
        Self {
            word: word.into(),
            description: description.map(first_line),
        }
    }
}

impl Candidates {
    pub(super) fn none() -> Self {
        Self::default()
    }

    pub(super) fn files() -> Self {
        Self {
            all: Vec::new(),
            or_files: true,
        }
    }

    /// Names may come from a server: those with control characters are left out, because the shell
    /// prints them.
    pub(super) fn of(all: Vec<Candidate>) -> Self {
        let mut all = all;
        all.retain(|it| !it.word.is_empty() && !it.word.contains(char::is_control));
        let or_files = false;
        Self { all, or_files }
    }

    /// Only those that begin with what was typed.
    pub(super) fn starting_with(mut self, typed: &str) -> Self {
        self.all.retain(|it| it.word.starts_with(typed));
        self
    }

    /// The words with this before them: `--context=`.
    pub(super) fn after(mut self, flag: &str) -> Self {
        for candidate in &mut self.all {
            candidate.word.insert_str(0, flag);
        }
        self
    }

    /// Whether the only candidate is not complete, so that no space follows it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.all.as_slice(), [only] if only.word.ends_with(OPEN_ENDS))
    }

    /// A line per candidate, with a tab before its description, and the directive for the shell.
    pub(super) fn in_cobras_format(&self) -> String {
        let mut text = String::new();
        for Candidate { word, description } in &self.all {
            text += word;
            if let Some(description) = description {
                text.push('\t');
                text += description;
            }
            text.push('\n');
        }
        let space = if self.is_open() { NO_SPACE } else { 0 };
        let files = if self.or_files { 0 } else { NO_FILES };
        text + &format!(":{}\n", space | files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_printed_as_by_cobra() {
        let of =
            |words: &[&str]| Candidates::of(words.iter().map(|&it| Candidate::new(it)).collect());
        let rows = [
            (of(&["web", "db"]), "web\ndb\n:4\n"),
            (of(&["web", "db"]).starting_with("w"), "web\n:4\n"),
            (of(&["web", "db"]).starting_with("x"), ":4\n"),
            (of(&["jobs/", "db"]).starting_with("j"), "jobs/\n:6\n"),
            (of(&["jobs/", "services/"]), "jobs/\nservices/\n:4\n"),
            (of(&["a"]).after("--context="), "--context=a\n:4\n"),
            (Candidates::files(), ":0\n"),
            (of(&["a\nb", "a\u{1b}[2J", "", "c"]), "c\n:4\n"),
        ];
        for (candidates, expected) in rows {
            assert_eq!(candidates.in_cobras_format(), expected);
        }
        let described = Candidate::described("exec", Some("Run\nit".to_owned()));
        let described = Candidates::of(vec![described]);
        assert_eq!(described.in_cobras_format(), "exec\tRun\n:4\n");
    }
}
