//! The dependencies between the modules of each folder, from the tokens of source files.

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

/// The edges between the modules of each folder below `source`; the root has an empty path.
pub(crate) fn edges(source: &Path) -> Result<BTreeMap<ModulePath, Edges>, StepError> {
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

/// A module, by the names from the root of the crate.
pub(crate) type ModulePath = Vec<String>;

/// A path that a file names, from the root of the crate.
#[derive(Debug)]
struct PathReference {
    from: ModulePath,
    to: Vec<String>,
    place: SourceLine,
}

#[derive(Debug, Default)]
struct ModuleScan {
    /// Every module that a file or a block declares, by its path.
    modules: BTreeSet<ModulePath>,
    mentions: Vec<PathReference>,
    /// Modules that only tests have.
    tests: BTreeSet<ModulePath>,
    /// What a module re-exports, and from which of its modules.
    reexports: BTreeMap<ModulePath, BTreeMap<String, String>>,
}

impl ModuleScan {
    fn file(&mut self, file: &Path, tokens: TokenStream) {
        let module = module_of(file);
        self.modules.insert(module.clone());
        self.reexports(&module, &tokens);
        self.scan(file, &module, tokens);
    }

    /// `use module::{A, B as C};` in the root of the crate: `crate::A` is `crate::module::A`. The
    /// same in the file of a folder.
    fn reexports(&mut self, of: &[String], tokens: &TokenStream) {
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
                    if (is_word(first, "self") || of.is_empty() && is_word(first, "crate"))
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
                let all = self.reexports.entry(of.to_vec()).or_default();
                all.insert(word, module.to_string());
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
                    let from_root = &[];
                    index =
                        self.record_reference(file, module, &tokens, index, from_root, word.span());
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
                    let base = &module[..module.len().saturating_sub(up)];
                    index = self.record_reference(file, module, &tokens, index, base, word.span());
                }
                TokenTree::Group(group) => self.scan(file, module, group.stream()),
                _ => {}
            }
        }
    }

    /// Records the paths after `crate` or `super`, which is the module `base`.
    fn record_reference(
        &mut self,
        file: &Path,
        module: &[String],
        tokens: &[TokenTree],
        index: usize,
        base: &[String],
        span: proc_macro2::Span,
    ) -> usize {
        let rest = &tokens[index.min(tokens.len())..];
        let mut targets = Vec::new();
        let used = paths(rest, base, &mut targets);
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
        index + used
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

    fn resolve(self) -> BTreeMap<ModulePath, Edges> {
        let Self {
            modules,
            mentions,
            tests,
            reexports,
        } = self;
        let is_test = |path: &[String]| (1..=path.len()).any(|end| tests.contains(&path[..end]));
        let mut folders: BTreeMap<ModulePath, Edges> = BTreeMap::new();
        for path in modules.iter().filter(|path| !is_test(path)) {
            if let Some((name, folder)) = path.split_last() {
                let edges = folders.entry(folder.to_vec()).or_default();
                edges.insert(name.clone(), BTreeMap::new());
            }
        }
        for PathReference { from, to, place } in &mentions {
            if is_test(from) {
                continue;
            }
            let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            // The folder that has both: in folders above it both are in one module.
            let (Some(own), Some(other)) = (from.get(common), to.get(common)) else {
                continue;
            };
            let folder = &from[..common];
            let Some(edges) = folders.get_mut(folder) else {
                continue;
            };
            let exported = reexports.get(folder).and_then(|it| it.get(other));
            let target = [Some(other), exported]
                .into_iter()
                .flatten()
                .find(|it| edges.contains_key(*it))
                .filter(|it| *it != own);
            let Some(target) = target.cloned() else {
                continue;
            };
            if let Some(targets) = edges.get_mut(own) {
                targets.entry(target).or_insert_with(|| place.clone());
            }
        }
        folders
    }
}

/// The paths that begin with `::` here, below a module; returns how many tokens they have.
fn paths(tokens: &[TokenTree], base: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = base.to_vec();
    let mut used = 0;
    while let [a, b, next, ..] = &tokens[used..]
        && is_sign(a, ':')
        && is_sign(b, ':')
    {
        match next {
            TokenTree::Ident(word) => path.push(word.to_string()),
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<_> = group.stream().into_iter().collect();
                for one in inner.split(|it| is_sign(it, ',')) {
                    if let [TokenTree::Ident(first), rest @ ..] = one {
                        let mut below = path.clone();
                        if *first != "self" {
                            below.push(first.to_string());
                        }
                        paths(rest, &below, found);
                    }
                }
                return used + 3;
            }
            _ => break,
        }
        used += 3;
    }
    if path.len() > base.len() || used == 0 {
        found.push(path);
    }
    used
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
        let mut folders = found.resolve();
        pairs(&folders.remove(&Vec::new()).unwrap())
    }

    fn pairs(edges: &Edges) -> Vec<(String, String)> {
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

    #[test]
    fn modules_of_a_folder_have_edges_of_their_own() {
        let mut found = ModuleScan::default();
        let files = [
            ("lib.rs", "mod a; mod z;"),
            ("z.rs", ""),
            ("a/mod.rs", "mod b; mod c; mod d; pub use self::d::Thing;"),
            ("a/b.rs", "use super::c::{C, More}; use crate::z::Z;"),
            (
                "a/c.rs",
                "use crate::a::{Thing, b}; fn f() { super::local() }",
            ),
            (
                "a/d.rs",
                "#[cfg(test)] mod tests { use super::super::b::B; }",
            ),
        ];
        for (file, text) in files {
            found.file(Path::new(file), text.parse().unwrap());
        }
        let folders = found.resolve();
        assert_eq!(pairs(&folders[&Vec::new()]), [pair("a", "z")]);
        let inner = pairs(&folders[&vec!["a".to_owned()]]);
        assert_eq!(inner, [pair("b", "c"), pair("c", "b"), pair("c", "d")]);
    }
}
