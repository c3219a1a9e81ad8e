//! The Chinese pages in `docs/zh` are in step with the English pages.
#![allow(clippy::unwrap_used)] // a test ends where it cannot go on

mod translation;

use std::collections::BTreeMap;
use std::path::Path;
use translation::{CHINESE, Page, Repository, TERMS};

/// The pages that have to be translated.
const TRANSLATED: [&str; 5] = [
    "README",
    "install-kubeadm",
    "upgrade-day",
    "peers",
    "streams",
];

#[test]
fn translations_are_in_step_with_the_english_pages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut pages = BTreeMap::new();
    for directory in ["", "docs/", CHINESE] {
        for entry in std::fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|it| it == "md") {
                let name = path.file_name().unwrap().to_string_lossy();
                let text = std::fs::read_to_string(&path).unwrap();
                pages.insert(format!("{directory}{name}"), Page::parse(&text));
            }
        }
    }
    let repository = Repository {
        pages,
        required: &TRANSLATED,
        exists: &|path| root.join(path).exists(),
    };
    let found = repository.findings();
    assert!(found.is_empty(), "{found:#?}");
}

/// A page with everything that is compared.
const GUIDE: &str = "\
# Guide

[中文](zh/guide.md)

Read `code` in [other](other.md#a-part) and [below](#second-step).

## First step

- One item with `a` and `b`, see [README](../README.md#start).
- Another one, see [the licence](../LICENSE).

```sh
run --flag

run
```

## Second step

| flag | default |
|---|---|
| `--x` | see [first](#first-step) |
| `--y` | none, see [KEP] |

### The `z` part

The end of the guide.

[KEP]: https://example.org/kep
";

const GUIDE_CHINESE: &str = "\
[English](../guide.md)

# 指南

参阅[其他](../other.md#a-part)和[下文](#第二步)中的 `code`。

## 第一步

- 含有 `b` 和 `a` 的一项，请参阅 [README](README.md#开始)。
- 另一项，请参阅[许可证](../../LICENSE)。

```sh
run --flag

run
```

## 第二步

| 标志 | 默认值 |
|---|---|
| `--x` | 请参阅[第一步](#第一步) |
| `--y` | 无，请参阅 [KEP] |

### 关于 `z`

指南结束。

[KEP]: https://example.org/kep
";

/// The findings after one text in one page is replaced.
fn findings_after(page: &str, old: &str, new: &str) -> Vec<String> {
    let texts = [
        ("README.md", "# Start\n"),
        ("docs/guide.md", GUIDE),
        ("docs/other.md", "# Other\n## A part\n"),
        ("docs/zh/README.md", "[English](../../README.md)\n# 开始\n"),
        ("docs/zh/TERMS.md", "# Terms\n"),
        ("docs/zh/guide.md", GUIDE_CHINESE),
    ];
    let mut pages = BTreeMap::new();
    for (path, text) in texts {
        let mut text = text.to_owned();
        if path == page {
            assert!(text.contains(old), "{page} does not contain {old}");
            text = text.replacen(old, new, 1);
        }
        // An empty page stands for one that does not exist.
        if !text.is_empty() {
            pages.insert(path.to_owned(), Page::parse(&text));
        }
    }
    let repository = Repository {
        pages,
        required: &["README", "guide"],
        exists: &|path| path == "LICENSE",
    };
    repository.findings()
}

/// A text of one page is replaced by another: the page, both texts, and what is found.
type Rule = (&'static str, &'static str, &'static str, &'static str);

const ENGLISH_GUIDE: &str = "docs/guide.md";
const CHINESE_GUIDE: &str = "docs/zh/guide.md";
const CHINESE_README: &str = "docs/zh/README.md";

#[rustfmt::skip] // one rule a line
const HEADINGS: &[Rule] = &[
    (CHINESE_GUIDE, "### 关于", "## 关于", "## 关于 `z` in the place of ### The `z`"),
    (CHINESE_GUIDE, "### 关于 `z`\n", "", "no heading in the place of ### The `z`"),
    (CHINESE_GUIDE, "指南结束", "## 更多\n指南结束", "## 更多 is not in the English page"),
    (ENGLISH_GUIDE, "The end", "## More\nThe end", "no heading in the place of ## More"),
    (CHINESE_GUIDE, "关于 `z`", "关于 z", r#"heading: ["z"] missing"#),
];

#[rustfmt::skip] // one rule a line
const ELEMENTS: &[Rule] = &[
    (CHINESE_GUIDE, "[English](../guide.md)\n", "", "before the title is not [English](../guide.md)"),
    (CHINESE_GUIDE, "../guide.md", "../other.md", "before the title is not [English](../guide.md)"),
    (CHINESE_GUIDE, "\n# 指南", "更多\n\n# 指南", "before the title is not [English](../guide.md)"),
    (CHINESE_GUIDE, "指南结束。\n", "", "nothing in the place of a paragraph (The end"),
    (CHINESE_GUIDE, "指南结束", "指南\n\n结束", "a paragraph (结束。) in the place of nothing"),
    (CHINESE_GUIDE, "指南结束。", "The end of the guide.", "is not translated"),
    (CHINESE_GUIDE, "指南结束。", "指南。结束。", "2 sentences in the place of 1"),
    (ENGLISH_GUIDE, "The end of", "More. The end of", "1 sentences in the place of 2"),
    (ENGLISH_GUIDE, "Another one,", "Another one. Then", "1 sentences in the place of 2"),
    (CHINESE_GUIDE, "- 另一项", "", "a code block (```sh run --flag"),
    (CHINESE_GUIDE, "- 另一项", "  - 另一项", "an item `-` indented by 2"),
    (CHINESE_GUIDE, "- 另一项", "1. 另一项", "an item `1.`"),
    (CHINESE_GUIDE, "| `--y` | 无，请参阅 [KEP] |\n", "", "nothing in the place of a table row"),
    (CHINESE_GUIDE, "| 标志 | 默认值 |", "| 标志 |", "a table row of 1 cells"),
];

#[rustfmt::skip] // one rule a line
const CODE: &[Rule] = &[
    (CHINESE_GUIDE, "run --flag", "run --flags", r#""run --flags" in the place of "run --flag""#),
    (CHINESE_GUIDE, "run\n```", "run \n```", r#""run " in the place of "run""#),
    (CHINESE_GUIDE, "```sh", "```bash", r#""```bash" in the place of "```sh""#),
    (CHINESE_GUIDE, "--flag\n\nrun", "--flag\nrun", r#""run" in the place of """#),
    (ENGLISH_GUIDE, "\nrun\n```", "\nrun\n\n```", r#""```" in the place of """#),
    (CHINESE_GUIDE, "`code`", "code", r#"code: ["code"] missing, [] unexpected"#),
    (CHINESE_GUIDE, "`code`", "`代码`", r#"code: ["code"] missing, ["代码"] unexpected"#),
    (CHINESE_GUIDE, "`code`", "`code` `code`", r#"code: [] missing, ["code"] unexpected"#),
    (CHINESE_GUIDE, "`--x` |", "`--y` |", r#"code: ["--x"] missing, ["--y"] unexpected"#),
    (ENGLISH_GUIDE, "`a` and `b`", "`a` and `a`", r#"code: ["a"] missing, ["b"] unexpected"#),
];

#[rustfmt::skip] // one rule a line
const LINKS: &[Rule] = &[
    (CHINESE_GUIDE, "[其他](../other.md#a-part)", "其他", r#"["../other.md#a-part"] missing"#),
    (CHINESE_GUIDE, "other.md#a-part", "other.md", r#"["../other.md"] unexpected"#),
    (CHINESE_GUIDE, "other.md#a-part", "other.md#a", r#"["../other.md#a"] unexpected"#),
    (CHINESE_GUIDE, "../other.md#a-part", "other.md#a-part", r#"["other.md#a-part"] unexpected"#),
    (CHINESE_GUIDE, "(#第二步)", "(#second-step)", r##"["#second-step"] unexpected"##),
    (CHINESE_GUIDE, "(#第二步)", "(../guide.md#second-step)", r##"["#第二步"] missing"##),
    (CHINESE_GUIDE, "(#第二步)", "(#第一步)", r##"["#第二步"] missing, ["#第一步"] unexpected"##),
    (CHINESE_GUIDE, "## 第二步", "## 下一步", r##"["#下一步"] missing, ["#第二步"] unexpected"##),
    (CHINESE_GUIDE, "README.md#开始", "../../README.md#start", r#"["README.md#开始"] missing"#),
    (CHINESE_README, "# 开始", "# 入门", r#"["README.md#入门"] missing, ["README.md#开始"] unexpected"#),
    (CHINESE_GUIDE, "../../LICENSE", "../LICENSE", r#"["../../LICENSE"] missing"#),
    (CHINESE_GUIDE, "https://example.org", "https://example.com", r#"["https://example.org/kep"] missing"#),
    (CHINESE_GUIDE, "\n[KEP]: https://example.org/kep", "", r#"["https://example.org/kep"] missing, [] unexpected"#),
    (ENGLISH_GUIDE, "#a-part", "#a", "links to other.md#a, which has no such heading"),
    (ENGLISH_GUIDE, "../LICENSE", "../LICENCE", "links to LICENCE, which does not exist"),
];

#[test]
fn each_kind_of_difference_is_found() {
    let same = findings_after(ENGLISH_GUIDE, "", "");
    assert!(same.is_empty(), "{same:#?}");
    for (page, old, new, expected) in [HEADINGS, ELEMENTS, CODE, LINKS].concat() {
        let found = findings_after(page, old, new);
        let is_found = found.len() == 1 && found[0].contains(expected);
        assert!(is_found, "{page}, {old:?} to {new:?}: {found:#?}");
    }
}

#[test]
fn a_missing_page_is_found() {
    let rules = [
        (
            CHINESE_GUIDE,
            GUIDE_CHINESE,
            "docs/zh/guide.md: the translation is missing",
        ),
        (
            ENGLISH_GUIDE,
            GUIDE,
            "docs/zh/guide.md: docs/guide.md does not exist",
        ),
    ];
    for (page, text, expected) in rules {
        assert_eq!(findings_after(page, text, ""), [expected]);
    }
}

#[test]
fn a_page_without_an_english_page_is_found() {
    let mut pages = BTreeMap::new();
    for path in [TERMS, "docs/zh/more.md"] {
        pages.insert(path.to_owned(), Page::parse("# 更多\n"));
    }
    let repository = Repository {
        pages,
        required: &[],
        exists: &|_| false,
    };
    assert_eq!(
        repository.findings(),
        ["docs/zh/more.md: docs/more.md does not exist"]
    );
}
