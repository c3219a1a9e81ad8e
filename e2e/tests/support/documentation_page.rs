//! The commands of a page of the documentation, and their documented output.
//!
//! A block ```` ```sh ```` is a script. A block ```` ```console ```` is a session: a line that
//! begins with `$ ` is a command, and the lines below it are its output, stdout and stderr, in
//! which `…` stands for any text. There are no other blocks.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;

use skewbridge_e2e::Machine;

/// The address of the node whose output the page has.
pub(crate) const FIRST_NODE: &str = "10.0.0.11";

/// The longest that a script may take whose commands are looked at one by one.
const SCRIPT_TIMEOUT_SECONDS: u32 = 360;

/// Before and after the output of a command, in what a script prints.
const OUTPUT_BEGINS: char = '\u{1e}';
const OUTPUT_ENDS: char = '\u{1f}';

/// A page, by the headings of its sections.
pub(crate) struct Page {
    sections: Vec<Section>,
}

struct Section {
    title: String,
    blocks: Vec<Block>,
    /// The cells of the rows of tables.
    rows: Vec<Vec<String>>,
}

struct Block {
    content: Content,
    has_run: Cell<bool>,
}

#[derive(Debug, PartialEq, Eq)]
enum Content {
    Script(String),
    Session(Vec<Exchange>),
}

/// A command of a script that was run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandRun {
    pub(crate) command: String,
    /// stdout and stderr.
    pub(crate) output: String,
    pub(crate) exit_code: i32,
}

/// A command and its output.
#[derive(Debug, PartialEq, Eq)]
struct Exchange {
    command: String,
    output: String,
}

impl Page {
    pub(crate) fn parse(text: &str) -> Self {
        let mut sections = Vec::<Section>::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(title) = line.strip_prefix("## ").or(line.strip_prefix("### ")) {
                sections.push(Section {
                    title: title.to_owned(),
                    blocks: Vec::new(),
                    rows: Vec::new(),
                });
            } else if let Some(kind) = line.strip_prefix("```") {
                let content: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
                let content = match kind {
                    "sh" => Content::Script(content.join("\n")),
                    "console" => Content::Session(session(&content)),
                    kind => panic!("a block {kind:?}, which is not run: {content:?}"),
                };
                let block = Block {
                    content,
                    has_run: Cell::new(false),
                };
                sections.last_mut().expect("a heading").blocks.push(block);
            } else if let (Some(row), Some(section)) = (cells(line), sections.last_mut()) {
                section.rows.push(row);
            }
        }
        Self { sections }
    }

    /// Runs the blocks of a section on a machine, and compares their output.
    pub(crate) fn run(&self, title: &str, machine: &Machine, directory: &Path) {
        let section = self.section(title);
        for block in &section.blocks {
            match &block.content {
                Content::Script(script) => {
                    let output = machine.try_shell(directory, script);
                    let error = String::from_utf8_lossy(&output.stderr);
                    println!("{}: {title}:\n{script}\n{error}", machine.name);
                    assert!(output.status.success(), "{title}: {script}: {error}");
                }
                Content::Session(exchanges) => {
                    for exchange in exchanges {
                        exchange.check(machine, directory);
                    }
                }
            }
            block.has_run.set(true);
        }
    }

    /// A script of a section, by its number. It counts as run.
    pub(crate) fn script(&self, title: &str, number: usize) -> &str {
        let block = self.section(title).blocks.get(number);
        let block = block.unwrap_or_else(|| panic!("{title:?} has no block {number}"));
        let Content::Script(script) = &block.content else {
            panic!("the block {number} of {title:?} is a session");
        };
        block.has_run.set(true);
        script
    }

    /// The rows of tables of a section, with headings.
    pub(crate) fn rows(&self, title: &str) -> &[Vec<String>] {
        &self.section(title).rows
    }

    /// Runs the commands of a section again, when they may print something else.
    pub(crate) fn repeat(&self, title: &str, machine: &Machine, directory: &Path) {
        for block in &self.section(title).blocks {
            let scripts = match &block.content {
                Content::Script(script) => vec![script],
                Content::Session(all) => all.iter().map(|it| &it.command).collect(),
            };
            for script in scripts {
                let output = machine.try_shell(directory, script);
                let printed = String::from_utf8_lossy(&output.stderr).into_owned();
                println!("{}: again: {script}\n{printed}", machine.name);
            }
        }
    }

    /// Runs the first script of a section, which has to fail.
    pub(crate) fn fails(&self, title: &str, machine: &Machine, directory: &Path) -> String {
        let first = self.section(title).blocks.first();
        let Some(Content::Script(script)) = first.map(|it| &it.content) else {
            panic!("{title} does not begin with a script");
        };
        let output = machine.try_shell(directory, script);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{title}: {script}: {error}");
        error
    }

    fn section(&self, title: &str) -> &Section {
        let section = self.sections.iter().find(|it| it.title == title);
        let section = section.unwrap_or_else(|| panic!("the page has no section {title:?}"));
        assert!(!section.blocks.is_empty(), "{title}");
        section
    }

    /// The sections with a block that has not been run.
    pub(crate) fn not_run(&self) -> Vec<&str> {
        let sections = self.sections.iter();
        let missing = sections.filter(|it| it.blocks.iter().any(|it| !it.has_run.get()));
        missing.map(|it| it.title.as_str()).collect()
    }
}

/// Runs a script in one shell, as an administrator does: a command that fails does not end it.
pub(crate) fn run_commands(script: &str, machine: &Machine, directory: &Path) -> Vec<CommandRun> {
    let commands = commands(script);
    let marked = |command: &String| {
        format!(
            "printf '{OUTPUT_BEGINS}'\n{{ {command}\n}} 2>&1\nprintf '{OUTPUT_ENDS}%s\\n' \"$?\"\n"
        )
    };
    let text = "set -u\n".to_owned() + &commands.iter().map(marked).collect::<String>();
    let file = directory.join(format!("script-{}", machine.name));
    std::fs::write(&file, text).unwrap();
    let shell = format!("timeout {SCRIPT_TIMEOUT_SECONDS} sh '{}'", file.display());
    let printed = machine.try_shell(directory, &shell);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let mut outputs = printed.split(OUTPUT_BEGINS).skip(1);
    let mut ended = Vec::new();
    for command in commands {
        let output = outputs.next().unwrap_or_default();
        let (output, exit_code) = output
            .rsplit_once(OUTPUT_ENDS)
            .unwrap_or_else(|| panic!("{}: {command}: it does not end: {output}", machine.name));
        println!("{}: {command}\n{output}exit code {exit_code}", machine.name);
        ended.push(CommandRun {
            command,
            output: output.to_owned(),
            exit_code: exit_code.trim().parse().unwrap(),
        });
    }
    ended
}

/// The commands of a script. One ends with the first line at which the shell does not expect more.
fn commands(script: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut command = String::new();
    for line in script.lines() {
        command += line;
        let is_complete = Command::new("sh")
            .args(["-n", "-c", &command])
            .output()
            .is_ok_and(|it| it.status.success());
        if is_complete && !line.ends_with('\\') {
            commands.push(std::mem::take(&mut command));
        } else {
            command.push('\n');
        }
    }
    assert_eq!(command, "", "an incomplete command");
    commands
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<String>> {
    let row = line.strip_prefix("| ")?.strip_suffix(" |")?;
    Some(row.split(" | ").map(|it| it.trim().to_owned()).collect())
}

fn session(lines: &[&str]) -> Vec<Exchange> {
    let mut exchanges = Vec::<Exchange>::new();
    for line in lines {
        match (line.strip_prefix("$ "), exchanges.last_mut()) {
            (Some(command), _) => exchanges.push(Exchange {
                command: command.to_owned(),
                output: String::new(),
            }),
            (None, Some(exchange)) if exchange.command.ends_with('\\') => {
                exchange.command += "\n";
                exchange.command += line;
            }
            (None, Some(exchange)) => {
                exchange.output += line;
                exchange.output.push('\n');
            }
            (None, None) => panic!("a session begins with a command: {line}"),
        }
    }
    exchanges
}

impl Exchange {
    fn check(&self, machine: &Machine, directory: &Path) {
        // The exit code is not part of a session: `diff` has 1.
        let script = format!("{{ {}\n}} 2>&1 || true", self.command);
        let output = machine.try_shell(directory, &script);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{}: $ {}\n{printed}", machine.name, self.command);
        // The page shows the first node. Its address stands for that of each node.
        let own = self
            .output
            .replace(FIRST_NODE, &machine.address.to_string());
        assert!(
            matches(&self.output, &printed) || matches(&own, &printed),
            "{}: $ {}\n--- printed\n{printed}--- documented\n{}",
            machine.name,
            self.command,
            self.output
        );
    }
}

/// Whether a text is as documented: equal, but for what `…` stands for.
fn matches(documented: &str, text: &str) -> bool {
    let mut parts = documented.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    true
}

#[test]
fn scripts_and_sessions_are_found_by_section() {
    let page = Page::parse(
        "# T\n## A\n```sh\na\nb\n```\nx\n### B\n```console\n$ one\nout\n$ two \\\n  more\n```\n",
    );
    let titles: Vec<_> = page.sections.iter().map(|it| it.title.as_str()).collect();
    assert_eq!(titles, ["A", "B"]);
    assert_eq!(page.not_run(), ["A", "B"]);
    assert_eq!(page.script("A", 0), "a\nb");
    assert_eq!(page.not_run(), ["B"]);
    let exchange = |command: &str, output: &str| Exchange {
        command: command.to_owned(),
        output: output.to_owned(),
    };
    let expected = vec![exchange("one", "out\n"), exchange("two \\\n  more", "")];
    assert_eq!(
        page.sections[1].blocks[0].content,
        Content::Session(expected)
    );
}

#[test]
fn a_section_has_run_when_all_of_its_blocks_have() {
    let page = Page::parse("## A\n```sh\na\n```\n```sh\nb\n```\n| `a` | b |\n");
    assert_eq!(page.script("A", 0), "a");
    assert_eq!(page.not_run(), ["A"]);
    assert_eq!(page.script("A", 1), "b");
    assert_eq!(page.not_run(), Vec::<&str>::new());
    assert_eq!(page.rows("A"), [["`a`", "b"]]);
}

#[test]
fn a_command_ends_where_the_shell_expects_no_more() {
    let script = "one a && two\nthree \\\n  b\nfour=$(five \\\n  c)\nuntil d; do\nsleep 1\ndone\n";
    let expected = [
        "one a && two",
        "three \\\n  b",
        "four=$(five \\\n  c)",
        "until d; do\nsleep 1\ndone",
    ];
    assert_eq!(commands(script), expected);
}

#[test]
fn an_ellipsis_stands_for_any_text() {
    let rows = [
        ("a\n", "a\n", true),
        ("a\n", "a\nb\n", false),
        ("a…c\n", "abc\n", true),
        ("a…c…e\n", "abcde\n", true),
        ("a…\n", "a\nb\n", true),
        ("…z\n", "a\n", false),
        ("b…\n", "a\n", false),
    ];
    for (documented, text, expected) in rows {
        assert_eq!(
            matches(documented, text),
            expected,
            "{documented:?} {text:?}"
        );
    }
}
