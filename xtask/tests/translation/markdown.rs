//! The parts of a Markdown page that a page and its translation have in common.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// A page, as the sections between its headings.
pub(crate) struct Page {
    /// The first section is the text before the first heading.
    pub(crate) sections: Vec<Section>,
    /// Targets of reference links by label.
    definitions: BTreeMap<String, String>,
}

/// A heading and the text below it.
#[derive(Default)]
pub(crate) struct Section {
    /// The number of `#`; 0 before the first heading.
    pub(crate) level: usize,
    pub(crate) title: String,
    pub(crate) elements: Vec<Element>,
}

/// A paragraph, item, table row or code block.
pub(crate) struct Element {
    pub(crate) shape: Shape,
    /// The text with its lines joined, without the marker of an item; of a code block all lines
    /// with the fences.
    pub(crate) text: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    Paragraph,
    Item { indent: usize, marker: String },
    Row { cells: usize },
    CodeBlock,
}

impl fmt::Display for Shape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paragraph => write!(out, "a paragraph"),
            Self::Item { indent, marker } => {
                write!(out, "an item `{marker}` indented by {indent}")
            }
            Self::Row { cells } => write!(out, "a table row of {cells} cells"),
            Self::CodeBlock => write!(out, "a code block"),
        }
    }
}

impl Page {
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self {
            sections: vec![Section::default()],
            definitions: BTreeMap::new(),
        };
        let mut fence = None;
        let mut is_continued = false;
        for line in text.split('\n') {
            let section = page.sections.last_mut().unwrap();
            if let Some(length) = fence {
                let block = &mut section.elements.last_mut().unwrap().text;
                *block += "\n";
                *block += line;
                if backticks(line) >= length && line.trim().chars().all(|it| it == '`') {
                    fence = None;
                }
            } else if backticks(line) >= 3 {
                fence = Some(backticks(line));
                section.push(Shape::CodeBlock, line);
                is_continued = false;
            } else if let Some((level, title)) = heading(line) {
                page.sections.push(Section {
                    level,
                    title: title.to_owned(),
                    elements: Vec::new(),
                });
                is_continued = false;
            } else if let Some((label, target)) = definition(line) {
                page.definitions.insert(label.to_owned(), target.to_owned());
                is_continued = false;
            } else if line.trim().is_empty() {
                is_continued = false;
            } else {
                let shape = shape(line);
                if is_continued && shape == Shape::Paragraph {
                    let element = &mut section.elements.last_mut().unwrap().text;
                    *element += " ";
                    *element += line.trim();
                } else {
                    // A row ends with its line.
                    is_continued = !matches!(shape, Shape::Row { .. });
                    let marker = match &shape {
                        Shape::Item { marker, .. } => marker.as_str(),
                        _ => "",
                    };
                    let line = line.trim();
                    let text = line
                        .strip_prefix(marker)
                        .unwrap_or(line)
                        .trim_start()
                        .to_owned();
                    section.push(shape, &text);
                }
            }
        }
        page
    }

    /// The anchors of the headings, in their order, by the rules of GitHub.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let mut used: HashMap<String, usize> = HashMap::new();
        let headings = self.sections.iter().filter(|it| it.level > 0);
        headings
            .map(|section| {
                let anchor = anchor(&section.title);
                let count = used.entry(anchor.clone()).or_default();
                *count += 1;
                match *count {
                    1 => anchor,
                    more => format!("{anchor}-{}", more - 1),
                }
            })
            .collect()
    }

    /// The targets of the links in an element of this page.
    pub(crate) fn links(&self, element: &Element) -> Vec<String> {
        let prose = prose(&element.text);
        let links = prose.split('[').skip(1).filter_map(|part| {
            let (label, after) = part.split_once(']')?;
            match after.strip_prefix('(') {
                Some(rest) => rest.split_once(')').map(|(target, _)| target),
                None => self.definitions.get(label).map(String::as_str),
            }
        });
        links.map(str::to_owned).collect()
    }
}

impl Section {
    fn push(&mut self, shape: Shape, line: &str) {
        let text = line.to_owned();
        self.elements.push(Element { shape, text });
    }
}

/// The code spans of a text.
pub(crate) fn code_spans(text: &str) -> Vec<String> {
    split_code(text).1
}

/// The text without its code spans.
pub(crate) fn prose(text: &str) -> String {
    split_code(text).0
}

/// The number of sentences that end in a text, English or Chinese.
pub(crate) fn sentences(text: &str) -> usize {
    let prose = prose(text);
    let ends = prose.char_indices().filter(|(at, it)| match it {
        '。' | '？' => true,
        // Not in a number or file name.
        '.' | '?' => {
            let next = prose[at + 1..].chars().next();
            next.is_none_or(|it| it.is_whitespace() || matches!(it, ')' | '*' | '|' | '"'))
        }
        _ => false,
    });
    ends.count()
}

fn split_code(text: &str) -> (String, Vec<String>) {
    let (mut prose, mut spans, mut rest) = (String::new(), Vec::new(), text);
    while let Some(start) = rest.find('`') {
        let (before, from) = rest.split_at(start);
        let after = from.trim_start_matches('`');
        let opening = &from[..from.len() - after.len()];
        prose += before;
        if let Some((span, following)) = split_at_backticks(after, opening) {
            spans.push(span.to_owned());
            rest = following;
        } else {
            prose += opening;
            rest = after;
        }
    }
    prose += rest;
    (prose, spans)
}

/// Splits a text at the first run of as many backticks as in `run`.
fn split_at_backticks<'a>(text: &'a str, run: &str) -> Option<(&'a str, &'a str)> {
    let mut from = 0;
    while let Some(found) = text[from..].find(run) {
        let start = from + found;
        let after = text[start..].trim_start_matches('`');
        let end = text.len() - after.len();
        if end - start == run.len() {
            return Some((&text[..start], after));
        }
        from = end;
    }
    None
}

/// The backticks that a line begins with.
fn backticks(line: &str) -> usize {
    let line = line.trim_start();
    line.len() - line.trim_start_matches('`').len()
}

fn heading(line: &str) -> Option<(usize, &str)> {
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    let title = title.strip_prefix(' ')?;
    (1..=6).contains(&level).then_some((level, title.trim()))
}

fn definition(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix('[')?.split_once("]: ")
}

fn shape(line: &str) -> Shape {
    let text = line.trim_start();
    if text.starts_with('|') {
        let bars = text.matches('|').count() - text.matches("\\|").count();
        return Shape::Row { cells: bars - 1 };
    }
    let marker = text.split(' ').next().unwrap_or_default();
    let number = marker.strip_suffix('.').unwrap_or_default();
    let is_number = !number.is_empty() && number.chars().all(|it| it.is_ascii_digit());
    if is_number || marker == "-" || marker == "*" {
        return Shape::Item {
            indent: line.len() - text.len(),
            marker: marker.to_owned(),
        };
    }
    Shape::Paragraph
}

fn anchor(title: &str) -> String {
    let is_kept = |it: &char| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_');
    let kept: String = title.to_lowercase().chars().filter(is_kept).collect();
    kept.replace(' ', "-")
}

#[test]
fn anchors_follow_the_rules_of_github() {
    let rules = [
        ("8. Roll back", "8-roll-back"),
        ("8. 回滚", "8-回滚"),
        (
            "流：exec、attach 和 port-forward（旧）",
            "流execattach-和-port-forward旧",
        ),
        ("The `--state_dir` flag", "the---state_dir-flag"),
        ("When it fails: 503 or 404", "when-it-fails-503-or-404"),
    ];
    for (title, expected) in rules {
        assert_eq!(anchor(title), expected, "{title}");
    }
    let page = Page::parse("# One\n## One\n## 一\n## One\n## 一\n");
    assert_eq!(page.anchors(), ["one", "one-1", "一", "one-2", "一-1"]);
}

#[test]
fn code_spans_are_found() {
    let rules: [(&str, &[&str], &str); 6] = [
        ("no code", &[], "no code"),
        ("`a` and `b`", &["a", "b"], " and "),
        ("``a `b` c`` d", &["a `b` c"], " d"),
        ("a ` alone", &[], "a ` alone"),
        ("`a \\| b` c", &["a \\| b"], " c"),
        ("中文`a`中文", &["a"], "中文中文"),
    ];
    for (text, spans, rest) in rules {
        assert_eq!(code_spans(text), spans, "{text}");
        assert_eq!(prose(text), rest, "{text}");
    }
}

#[test]
fn sentences_are_counted() {
    let rules = [
        ("no end", 0),
        ("One. Two: see [a.md](a.md). **Three.** (Four.)", 4),
        ("Version 1.36.4 of `a. b`. Is it?", 2),
        ("一。二？三（四。）见 [a.md](a.md)。", 4),
        ("| one. | two. |", 2),
    ];
    for (text, expected) in rules {
        assert_eq!(sentences(text), expected, "{text}");
    }
}

#[test]
fn a_page_is_split_into_its_elements() {
    let page = Page::parse(
        "# Title\n\nOne\nparagraph.\n- item\n  goes on\n  - inner\n\n1. first\n\n| a | `b \\| c` |\n|---|---|\n\
         ```sh\n# no heading\n\n- no item\n```\nEnd.\n\n[label]: https://example.org\n",
    );
    assert_eq!(page.sections.len(), 2);
    let elements = &page.sections[1].elements;
    let found: Vec<_> = elements
        .iter()
        .map(|it| (it.shape.clone(), it.text.as_str()))
        .collect();
    let item = |indent, marker: &str| Shape::Item {
        indent,
        marker: marker.to_owned(),
    };
    let expected = [
        (Shape::Paragraph, "One paragraph."),
        (item(0, "-"), "item goes on"),
        (item(2, "-"), "inner"),
        (item(0, "1."), "first"),
        (Shape::Row { cells: 2 }, "| a | `b \\| c` |"),
        (Shape::Row { cells: 2 }, "|---|---|"),
        (Shape::CodeBlock, "```sh\n# no heading\n\n- no item\n```"),
        (Shape::Paragraph, "End."),
    ];
    assert_eq!(found, expected);
}

#[test]
fn links_are_found() {
    let page = Page::parse(
        "[a](b.md#c) `[no](link)` [`code`](d.md), [label]; [other]\n\n[label]: https://example.org\n",
    );
    let links = page.links(&page.sections[0].elements[0]);
    assert_eq!(links, ["b.md#c", "d.md", "https://example.org"]);
}
