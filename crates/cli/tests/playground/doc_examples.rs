//! The examples in the documentation, for comparison with the real output.

const README: &str = include_str!("../../../../README.md");
const GUIDE: &str = include_str!("../../../../docs/playground.md");

/// The example of the first command in the README, up to the line with the keys, which is for
/// terminals.
pub(crate) fn readme_example() -> Vec<String> {
    let shown = example(README, "$ cargo run --profile demo -- playground");
    let mut shown = normalize(shown);
    shown.truncate(shown.iter().position(|it| it.starts_with("[1 ")).unwrap());
    shown
}

/// The example of the tour in the guide.
pub(crate) fn guide_example() -> Vec<String> {
    tour_lines(example(GUIDE, "$ skewbridge playground --tour"))
}

/// The example of the tour in the README.
pub(crate) fn readme_tour() -> Vec<String> {
    let at = README.find("1. An object").unwrap();
    tour_lines(README[at..].split("```").next().unwrap())
}

/// The lines of a tour, without the diagram before it, and without a system error.
pub(crate) fn tour_lines(tour: &str) -> Vec<String> {
    let at = tour.find("1. An object").unwrap();
    let mut lines = normalize(&tour[at..]);
    lines.retain(|it| !it.starts_with("✓ 503: "));
    lines
}

/// The output after a command.
fn example<'a>(text: &'a str, command: &str) -> &'a str {
    let (_, shown) = text.split_once(&format!("{command}\n")).unwrap();
    shown.split("```").next().unwrap()
}

/// Lines without ports, and with single spaces.
pub(crate) fn normalize(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let words = line.split_whitespace().map(|word| match word {
            _ if word.starts_with("127.0.0.1:") => "ADDRESS".to_owned(),
            _ if word.starts_with("http://127.0.0.1:") => {
                let path = word.splitn(4, '/').last().unwrap();
                format!("http://ADDRESS/{path}")
            }
            _ => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let lines = text.lines().map(line);
    lines.collect()
}
