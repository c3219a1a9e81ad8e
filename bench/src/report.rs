//! Medians, and tables that fit a terminal of 80 columns.

use std::fmt;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};

use anyhow::Result;
use serde::Serialize;

use crate::args::Output;
use crate::machine;

/// The median of some measurements and their range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` without measurements.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], upper)
        } else {
            upper
        };
        Some(Self {
            median,
            min: *values.first()?,
            max: *values.last()?,
        })
    }

    /// Two cells: the median, and `min..max`.
    pub(crate) fn cells(&self, decimals: usize) -> [String; 2] {
        [
            format!("{:.decimals$}", self.median),
            format!("{:.decimals$}..{:.decimals$}", self.min, self.max),
        ]
    }
}

/// Rows of cells: the first column to the left, the others to the right.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(head: [&str; N]) -> Self {
        Self {
            rows: vec![head.map(str::to_owned).to_vec()],
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    write!(line, "  {cell:<width$}")?;
                } else {
                    write!(line, "  {cell:>width$}")?;
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Prints a result in the requested format.
pub(crate) fn print<R: Serialize + fmt::Display>(result: &R, output: Output) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        Output::Table => write!(out, "{result}")?,
        Output::Json => {
            serde_json::to_writer_pretty(&mut out, result)?;
            writeln!(out)?;
        }
        Output::Markdown => write!(out, "{}", markdown(result, &machine::description()))?,
    }
    Ok(())
}

/// The tables as they are, which a page shows in columns.
fn markdown(result: &impl fmt::Display, machine: &str) -> String {
    let result = result.to_string();
    format!("```text\n{machine}\n\n{}\n```\n", result.trim_end())
}

/// Prints a progress line at a terminal; nothing in a log or a pipe.
pub(crate) fn progress(line: fmt::Arguments<'_>) {
    if std::io::stderr().is_terminal() {
        eprintln!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_middles() {
        let odd = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            odd,
            Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            }
        );
        assert_eq!(
            Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap().cells(1),
            ["2.5", "1.0..4.0"]
        );
        assert_eq!(Spread::of([7.0]).unwrap().cells(0), ["7", "7..7"]);
    }

    #[test]
    fn without_measurements_there_is_no_median() {
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        let spread = Spread::of([1.0, 1.0, 1.0, 1.0, 900.0]).unwrap();
        assert_eq!(spread.cells(0), ["1", "1..900"]);
    }

    #[test]
    fn a_page_shows_the_tables_as_they_are() {
        let page = markdown(&"  a  1\n", "2 processors");
        assert_eq!(page, "```text\n2 processors\n\n  a  1\n```\n");
    }

    #[test]
    fn a_table_is_aligned_by_characters_not_bytes() {
        let mut table = Table::new(["", "µs", "spread"]);
        table.row(["nginx", "7", "1..9"].map(str::to_owned));
        table.row(["bridge", "12", "10..140"].map(str::to_owned));
        let expected = "          µs   spread\n  nginx    7     1..9\n  bridge  12  10..140\n";
        assert_eq!(table.to_string(), expected);
    }
}
