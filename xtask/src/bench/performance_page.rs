//! `docs/performance.md`: the result of each measurement between two markers.

use std::fs;
use std::path::{Path, PathBuf};

use crate::step::StepError;

/// Writes the result of a measurement into the page.
pub(super) fn record(name: &str, result: &str) -> Result<(), StepError> {
    let page = path();
    let failed = |error| StepError(format!("{}: {error}", page.display()));
    let text = fs::read_to_string(&page).map_err(failed)?;
    let text = replaced(&text, name, result).ok_or_else(|| {
        let (begin, end) = markers(name);
        StepError(format!("{}: no {begin} … {end}", page.display()))
    })?;
    fs::write(&page, text).map_err(failed)?;
    println!("recorded in {}", page.display());
    Ok(())
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/performance.md")
}

fn markers(name: &str) -> (String, String) {
    (
        format!("<!-- bench {name} -->"),
        format!("<!-- end of bench {name} -->"),
    )
}

/// The page with another result; `None` if it has no place for it.
fn replaced(page: &str, name: &str, result: &str) -> Option<String> {
    let (begin, end) = markers(name);
    let (head, rest) = page.split_once(&begin)?;
    let (_, tail) = rest.split_once(&end)?;
    Some(format!("{head}{begin}\n{}\n{end}{tail}", result.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_replaces_the_earlier_one() {
        let page = "# A\n<!-- bench local -->\nnot measured yet\n<!-- end of bench local -->\nB\n";
        let expected = "# A\n<!-- bench local -->\n1.00\n<!-- end of bench local -->\nB\n";
        let once = replaced(page, "local", "1.00\n").unwrap();
        assert_eq!(once, expected);
        assert_eq!(replaced(&once, "local", "1.00").unwrap(), expected);
        assert_eq!(replaced(page, "scale", "1.00"), None);
    }

    #[test]
    fn the_page_has_a_place_for_each_measurement() {
        let page = fs::read_to_string(path()).unwrap();
        for name in super::super::NAMES {
            assert!(replaced(&page, name, "").is_some(), "{name}");
        }
    }
}
