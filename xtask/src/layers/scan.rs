//! The dependencies between top-level modules, from the tokens of source files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::Edges;
use crate::step::StepError;

/// A line of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SourceLine {
    file: PathBuf,
    line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// The edges between the top-level modules below `source`.
pub(crate) fn edges(source: &Path) -> Result<Edges, StepError> {
    let mut files = Vec::new();
    collect(source, &mut files)?;
    files.sort();
    let mut found = ModuleScan::default();
    for file in &files {
        let text = std::fs::read_to_string(file)
            .map_err(|error| StepError(format!("{}: {error}", file.display())))?;
        let tokens: TokenStream = text
            .parse()
            .map_err(|error| StepError(format!("{}: {error}", file.display())))?;
        let shown = file.strip_prefix(source).unwrap_or(file);
        found.file(shown, tokens);
    }
    Ok(found.resolve())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), StepError> {
    let failed = |error: std::io::Error| StepError(format!("{}: {error}", directory.display()));
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// A path from the root of the crate, as a file names it.
#[derive(Debug)]
struct PathReference {
    from: Vec<String>,
    to: String,
    place: SourceLine,
}

#[derive(Debug, Default)]
struct ModuleScan {
    /// Every module that a file or a block declares, by its path.
    modules: BTreeSet<Vec<String>>,
    mentions: Vec<PathReference>,
    /// Modules that only tests have.
    tests: BTreeSet<Vec<String>>,
    /// What the root re-exports, and from which module.
    reexports: BTreeMap<String, String>,
}

impl ModuleScan {
    fn file(&mut self, file: &Path, tokens: TokenStream) {
        let module = module_of(file);
        self.modules.insert(module.clone());
        if module.is_empty() {
            self.reexports(&tokens);
        }
        self.scan(file, &module, tokens);
    }

    /// `use module::{A, B as C};` in the root of the crate: `crate::A` is `crate::module::A`.
    fn reexports(&mut self, tokens: &TokenStream) {
        let tokens: Vec<_> = tokens.clone().into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            if !is_word(token, "use") {
                continue;
            }
            let rest = &tokens[index + 1..];
            let end = rest.iter().position(|it| is_sign(it, ';'));
            let Some(rest) = end.map(|end| &rest[..end]) else {
                continue;
            };
            let rest = match rest {
                [first, a, b, rest @ ..]
                    if (is_word(first, "self") || is_word(first, "crate"))
                        && is_sign(a, ':')
                        && is_sign(b, ':') =>
                {
                    rest
                }
                rest => rest,
            };
            let [TokenTree::Ident(module), below @ ..] = rest else {
                continue;
            };
            let mut words = Vec::new();
            flatten(below, &mut words);
            for word in words {
                self.reexports.insert(word, module.to_string());
            }
        }
    }

    fn scan(&mut self, file: &Path, module: &[String], tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut index = 0;
        while let Some(token) = tokens.get(index) {
            index += 1;
            match token {
                TokenTree::Punct(sign) if sign.as_char() == '#' => {
                    let Some(TokenTree::Group(attribute)) = tokens.get(index) else {
                        continue;
                    };
                    index += 1;
                    if is_cfg_test(attribute) {
                        index = self.skip_item(module, &tokens, index);
                    }
                }
                TokenTree::Ident(word) if *word == "mod" => {
                    let Some(TokenTree::Ident(name)) = tokens.get(index) else {
                        continue;
                    };
                    let mut path = module.to_vec();
                    path.push(name.to_string());
                    self.modules.insert(path.clone());
                    index += 1;
                    if let Some(TokenTree::Group(body)) = tokens.get(index) {
                        index += 1;
                        self.scan(file, &path, body.stream());
                    }
                }
                TokenTree::Ident(word) if *word == "crate" => {
                    index = self.mention(file, module, &tokens, index, 0, word.span());
                }
                TokenTree::Ident(word) if *word == "super" => {
                    let mut up = 1;
                    while let [a, b, again, ..] = &tokens[index.min(tokens.len())..]
                        && is_sign(a, ':')
                        && is_sign(b, ':')
                        && is_word(again, "super")
                    {
                        up += 1;
                        index += 3;
                    }
                    let left = module.len().saturating_sub(up);
                    index = self.mention(file, module, &tokens, index, left, word.span());
                }
                TokenTree::Group(group) => self.scan(file, module, group.stream()),
                _ => {}
            }
        }
    }

    /// What stands behind `crate` or `super`, where that is the root (`left` is 0).
    fn mention(
        &mut self,
        file: &Path,
        module: &[String],
        tokens: &[TokenTree],
        index: usize,
        left: usize,
        span: proc_macro2::Span,
    ) -> usize {
        let [a, b, target, ..] = &tokens[index.min(tokens.len())..] else {
            return index;
        };
        if !is_sign(a, ':') || !is_sign(b, ':') {
            return index;
        }
        if left > 0 {
            return index + 2;
        }
        let targets = match target {
            TokenTree::Ident(word) => vec![word.to_string()],
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                first_segments(group)
            }
            _ => Vec::new(),
        };
        for to in targets {
            let place = SourceLine {
                file: file.to_owned(),
                line: span.start().line,
            };
            self.mentions.push(PathReference {
                from: module.to_vec(),
                to,
                place,
            });
        }
        index + 3
    }

    /// An item that only tests have ends with a block or a semicolon.
    fn skip_item(&mut self, module: &[String], tokens: &[TokenTree], mut index: usize) -> usize {
        let mut names_module = false;
        while let Some(token) = tokens.get(index) {
            index += 1;
            match token {
                TokenTree::Ident(word) if *word == "mod" => names_module = true,
                TokenTree::Ident(name) if names_module => {
                    let mut path = module.to_vec();
                    path.push(name.to_string());
                    self.tests.insert(path);
                    names_module = false;
                }
                TokenTree::Punct(sign) if sign.as_char() == ';' => break,
                TokenTree::Group(group)
                    if group.delimiter() == Delimiter::Brace
                        && !tokens.get(index).is_some_and(|next| is_sign(next, ';')) =>
                {
                    break;
                }
                _ => {}
            }
        }
        index
    }

    fn resolve(self) -> Edges {
        let Self {
            modules,
            mentions,
            tests,
            reexports,
        } = self;
        let is_test = |path: &[String]| (1..=path.len()).any(|end| tests.contains(&path[..end]));
        let tops: BTreeSet<&String> = modules
            .iter()
            .filter(|path| !is_test(path))
            .filter_map(|path| path.first())
            .collect();
        let mut edges: Edges = tops
            .iter()
            .map(|top| ((*top).clone(), BTreeMap::new()))
            .collect();
        for PathReference { from, to, place } in mentions {
            let Some(top) = from.first().filter(|_| !is_test(&from)) else {
                continue;
            };
            let to = if tops.contains(&to) {
                to
            } else if let Some(module) = reexports.get(&to).filter(|it| tops.contains(it)) {
                module.clone()
            } else {
                continue;
            };
            if *top != to {
                edges
                    .entry(top.clone())
                    .or_default()
                    .entry(to)
                    .or_insert(place);
            }
        }
        edges
    }
}

/// `a/b.rs` and `a/b/mod.rs` are the module `a::b`; `lib.rs` and `main.rs` are the root.
fn module_of(file: &Path) -> Vec<String> {
    let mut path: Vec<String> = file
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    if path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    if matches!(path.as_slice(), [only] if only == "lib" || only == "main") {
        path.clear();
    }
    path
}

/// The first word of each path in `{a::b, c}`.
fn first_segments(group: &Group) -> Vec<String> {
    let mut found = Vec::new();
    let mut at_start = true;
    for token in group.stream() {
        match token {
            TokenTree::Punct(sign) if sign.as_char() == ',' => at_start = true,
            TokenTree::Ident(word) if at_start => {
                found.push(word.to_string());
                at_start = false;
            }
            _ => at_start = false,
        }
    }
    found
}

/// Every word of a `use` below its module; too many words do no harm.
fn flatten(tokens: &[TokenTree], words: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => words.push(word.to_string()),
            TokenTree::Group(group) => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                flatten(&inner, words);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn is_cfg_test(attribute: &Group) -> bool {
    let text = attribute.stream().to_string().replace(' ', "");
    text == "cfg(test)" || text.starts_with("cfg(all(test")
}

fn is_word(token: &TokenTree, word: &str) -> bool {
    matches!(token, TokenTree::Ident(it) if *it == word)
}

fn is_sign(token: &TokenTree, sign: char) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges_of(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut found = ModuleScan::default();
        for (file, text) in files {
            found.file(Path::new(file), text.parse().unwrap());
        }
        let edges = found.resolve();
        let pairs = edges.iter().flat_map(|(from, to)| {
            let to = to.keys();
            to.map(move |to| (from.clone(), to.clone()))
        });
        pairs.collect()
    }

    fn pair(from: &str, to: &str) -> (String, String) {
        (from.to_owned(), to.to_owned())
    }

    #[test]
    fn paths_from_the_root_are_edges() {
        let root = (
            "lib.rs",
            "mod a; mod b; mod c; mod d; pub use d::{Thing as Other, More};",
        );
        let a = (
            "a.rs",
            "use crate::{b::B, c}; fn f() { macro!(crate::d::x) }",
        );
        let b = ("b/mod.rs", "use super::c::C; mod inner;");
        let inner = (
            "b/inner.rs",
            "use super::local; use super::super::d::D; use crate::b::B;",
        );
        let c = ("c.rs", "use crate::More;");
        let d = ("d.rs", "//! crate::a\nconst A: &str = \"crate::a\";");
        assert_eq!(
            edges_of(&[root, a, b, inner, c, d]),
            [
                pair("a", "b"),
                pair("a", "c"),
                pair("a", "d"),
                pair("b", "c"),
                pair("b", "d"),
                pair("c", "d"),
            ]
        );
    }

    #[test]
    fn tests_are_left_out() {
        let root = ("lib.rs", "mod a; mod b;");
        let a = (
            "a.rs",
            "#[cfg(test)] mod tests; #[cfg(test)] mod inline { use crate::b; } #[cfg(test)] use crate::b::X; fn f() {}",
        );
        let tests = (
            "a/tests.rs",
            "use crate::b::B; mod more { use crate::b::C; }",
        );
        let b = ("b.rs", "");
        assert_eq!(edges_of(&[root, a, tests, b]), []);
    }

    #[test]
    fn a_block_is_a_module_on_the_way_up() {
        let root = ("lib.rs", "mod a; mod b;");
        let a = (
            "a.rs",
            "mod inner { use super::f; use super::super::b::B; }",
        );
        assert_eq!(edges_of(&[root, a, ("b.rs", "")]), [pair("a", "b")]);
    }
}
