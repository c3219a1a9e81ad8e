//! Compares the pages in `docs/zh` with the English pages.
//!
//! A page and its translation have the same headings, paragraphs, items, table rows and code blocks
//! in the same order. Each paragraph, item and row has the same code spans, links and number of
//! sentences. The wording is not compared.

mod markdown;

pub(crate) use markdown::Page;

use markdown::{Element, Section, Shape, code_spans, prose, sentences};
use std::collections::{BTreeMap, BTreeSet};

/// The directory of the translations.
pub(crate) const CHINESE: &str = "docs/zh/";

/// The page for translators, which is not a translation.
pub(crate) const TERMS: &str = "docs/zh/TERMS.md";

/// Paragraphs with at least as many words outside of code have to differ from the English ones.
const MIN_WORDS_TRANSLATED: usize = 3;

/// The pages of a repository, by their paths from its root.
pub(crate) struct Repository<'a> {
    pub(crate) pages: BTreeMap<String, Page>,
    /// Names of pages that have to be translated.
    pub(crate) required: &'a [&'a str],
    /// Whether a file or directory exists that is not a page.
    pub(crate) exists: &'a dyn Fn(&str) -> bool,
}

/// An English page and its translation, with their paths.
struct Pair<'a> {
    english_path: &'a str,
    english: &'a Page,
    chinese_path: &'a str,
    chinese: &'a Page,
}

impl Repository<'_> {
    /// The differences between all pages and their translations.
    pub(crate) fn findings(&self) -> Vec<String> {
        let required = self.required.iter().map(|name| chinese_path(name));
        let present = self.pages.keys().filter(|it| it.starts_with(CHINESE));
        let mut paths: BTreeSet<String> = required.chain(present.cloned()).collect();
        paths.remove(TERMS);
        let mut found = Vec::new();
        for chinese_path in &paths {
            let english_path = &english_path(chinese_path);
            match (self.pages.get(english_path), self.pages.get(chinese_path)) {
                (None, _) => found.push(format!("{chinese_path}: {english_path} does not exist")),
                (_, None) => found.push(format!("{chinese_path}: the translation is missing")),
                (Some(english), Some(chinese)) => self.compare_pages(
                    &Pair {
                        english_path,
                        english,
                        chinese_path,
                        chinese,
                    },
                    &mut found,
                ),
            }
        }
        found
    }

    fn compare_pages(&self, pair: &Pair<'_>, found: &mut Vec<String>) {
        let path = pair.chinese_path;
        let expected = format!("[English]({})", from_chinese(pair.english_path));
        let preamble = &pair.chinese.sections[0].elements;
        if preamble.len() != 1 || preamble[0].text != expected {
            found.push(format!(
                "{path}: the text before the title is not {expected}"
            ));
        }
        let english = headings(pair.english);
        let chinese = headings(pair.chinese);
        for (position, section) in english.iter().enumerate() {
            let translated = chinese.get(position);
            if translated.is_none_or(|it| it.level != section.level) {
                let translated = translated.map_or("no heading".to_owned(), |it| name(it));
                let section = name(section);
                found.push(format!("{path}: {translated} in the place of {section}"));
                return;
            }
        }
        if let Some(more) = chinese.get(english.len()) {
            found.push(format!("{path}: {} is not in the English page", name(more)));
            return;
        }
        for (english, chinese) in english.into_iter().zip(chinese) {
            self.compare_sections(pair, english, chinese, found);
        }
    }

    fn compare_sections(
        &self,
        pair: &Pair<'_>,
        english: &Section,
        chinese: &Section,
        found: &mut Vec<String>,
    ) {
        let place = format!(
            "{}, {} ({})",
            pair.chinese_path,
            name(chinese),
            english.title
        );
        let in_heading = difference(code_spans(&english.title), code_spans(&chinese.title));
        found.extend(in_heading.map(|it| format!("{place}: code in the heading: {it}")));
        let is_content = |it: &&Element| !is_language_link(pair, it);
        let english: Vec<_> = english.elements.iter().filter(is_content).collect();
        let chinese: Vec<_> = chinese.elements.iter().collect();
        for position in 0..english.len().max(chinese.len()) {
            let shape = |it: Option<&&Element>| it.map(|it| &it.shape).cloned();
            let (original, translated) = (english.get(position), chinese.get(position));
            if shape(original) != shape(translated) {
                let original = original.map_or("nothing".to_owned(), |it| describe(it));
                let translated = translated.map_or("nothing".to_owned(), |it| describe(it));
                found.push(format!("{place}: {translated} in the place of {original}"));
                return;
            }
        }
        for (english, chinese) in english.into_iter().zip(chinese) {
            for finding in self.compare_elements(pair, english, chinese) {
                found.push(format!("{place}, {}: {finding}", describe(english)));
            }
        }
    }

    fn compare_elements(
        &self,
        pair: &Pair<'_>,
        english: &Element,
        chinese: &Element,
    ) -> Vec<String> {
        let mut found = Vec::new();
        if english.shape == Shape::CodeBlock {
            let mut lines = english.text.split('\n').zip(chinese.text.split('\n'));
            if let Some((line, other)) = lines.find(|(line, other)| line != other) {
                found.push(format!("{other:?} in the place of {line:?}"));
            } else if english.text != chinese.text {
                found.push("the blocks have different lengths".to_owned());
            }
            return found;
        }
        let is_text = !matches!(english.shape, Shape::Row { .. });
        let words = prose(&english.text)
            .split_whitespace()
            .filter(|word| word.contains(|it: char| it.is_ascii_alphabetic()))
            .count();
        if is_text && words >= MIN_WORDS_TRANSLATED && english.text == chinese.text {
            found.push("is not translated".to_owned());
        }
        let (original, translated) = (sentences(&english.text), sentences(&chinese.text));
        if original != translated {
            found.push(format!("{translated} sentences in the place of {original}"));
        }
        let difference_in_code = difference(code_spans(&english.text), code_spans(&chinese.text));
        found.extend(difference_in_code.map(|it| format!("code: {it}")));
        let links = pair.english.links(english);
        let targets = links.iter().map(|it| self.chinese_target(pair, it));
        match targets.collect::<Result<Vec<_>, _>>() {
            Ok(targets) => {
                let difference = difference(targets, pair.chinese.links(chinese));
                found.extend(difference.map(|it| format!("links: {it}")));
            }
            Err(broken) => found.push(broken),
        }
        found
    }

    /// The target that a link of the English page has in the translation.
    fn chinese_target(&self, pair: &Pair<'_>, target: &str) -> Result<String, String> {
        if target.contains("://") {
            return Ok(target.to_owned());
        }
        let (file, anchor) = match target.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor)),
            None => (target, None),
        };
        let path = match file {
            "" => pair.english_path.to_owned(),
            _ => resolve(pair.english_path, file),
        };
        if !self.pages.contains_key(&path) && !(self.exists)(&path) {
            return Err(format!(
                "the English page links to {path}, which does not exist"
            ));
        }
        let translation = self.translation(&path);
        let new_file = match (&translation, file) {
            (_, "") => String::new(),
            (Some(translation), _) => translation.trim_start_matches(CHINESE).to_owned(),
            (None, _) => from_chinese(&path),
        };
        let Some(anchor) = anchor else {
            return Ok(new_file);
        };
        let anchors = |path: &str| self.pages.get(path).map(Page::anchors).unwrap_or_default();
        let position = anchors(&path).iter().position(|it| it == anchor);
        let Some(position) = position else {
            return Err(format!(
                "the English page links to {target}, which has no such heading"
            ));
        };
        let new_anchor = match translation {
            Some(translation) => anchors(&translation).get(position).cloned(),
            None => Some(anchor.to_owned()),
        };
        let new_anchor =
            new_anchor.ok_or_else(|| format!("{new_file} has no heading for {target}"))?;
        Ok(format!("{new_file}#{new_anchor}"))
    }

    /// The path of the translation of a page, if it has or needs one.
    fn translation(&self, english: &str) -> Option<String> {
        let name = english.trim_start_matches("docs/").strip_suffix(".md")?;
        let chinese = chinese_path(name);
        let is_translated = self.required.contains(&name) || self.pages.contains_key(&chinese);
        (is_translated && english_path(&chinese) == english).then_some(chinese)
    }
}

fn chinese_path(name: &str) -> String {
    format!("{CHINESE}{name}.md")
}

fn english_path(chinese: &str) -> String {
    match chinese.trim_start_matches(CHINESE) {
        "README.md" => "README.md".to_owned(),
        name => format!("docs/{name}"),
    }
}

/// A link to a path from a page in the directory of the translations.
fn from_chinese(path: &str) -> String {
    match path.strip_prefix("docs/") {
        Some(path) => format!("../{path}"),
        None => format!("../../{path}"),
    }
}

/// The path that a link in a page leads to.
fn resolve(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether this only leads from an English page to its translation.
fn is_language_link(pair: &Pair<'_>, element: &Element) -> bool {
    let links = pair.english.links(element);
    let is_alone = element.text.starts_with('[') && element.text.ends_with(')');
    is_alone && links.len() == 1 && resolve(pair.english_path, &links[0]) == pair.chinese_path
}

fn headings(page: &Page) -> Vec<&Section> {
    page.sections.iter().filter(|it| it.level > 0).collect()
}

fn name(section: &Section) -> String {
    format!("{} {}", "#".repeat(section.level), section.title)
}

/// The shape of an element, and how its text begins.
fn describe(element: &Element) -> String {
    let start: String = element.text.chars().take(40).collect();
    format!("{} ({})", element.shape, start.replace('\n', " "))
}

/// What only one of two lists has, in any order.
fn difference(english: Vec<String>, mut chinese: Vec<String>) -> Option<String> {
    let mut missing = Vec::new();
    for item in english {
        match chinese.iter().position(|it| *it == item) {
            Some(position) => {
                chinese.remove(position);
            }
            None => missing.push(item),
        }
    }
    let is_different = !missing.is_empty() || !chinese.is_empty();
    is_different.then(|| format!("{missing:?} missing, {chinese:?} unexpected"))
}
