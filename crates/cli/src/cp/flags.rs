//! The flags of `cp`: kubectl's names, and a few more.

use clap::{ArgAction, Args};
use skewbridge_client::copy::{CopySpec, Options, Preserve, Retries};

use crate::cluster_flags::ClusterFlags;

const HELP: &str = "\
SRC or DEST is in a pod, or both are:

  PATH                       a local path; with a colon in it, ./PATH
  POD:PATH                   in a pod of the namespace
  NAMESPACE/POD:PATH         in a pod of another namespace

If DEST is a directory, SRC is copied into it. The exception is a directory from a
pod, as with kubectl: its content is copied into DEST. A / at the end of SRC follows
a symlink.

The container needs only tar; without it, single files are copied by cat. Nothing is
written outside of DEST, whatever is in the pod's archive: symlinks out of it,
devices and pipes are skipped with a message, and the exit code is 1. A file gets its
name only when it is complete.

Examples:
  # A directory to a pod, and back
  skewbridge cp ./site web-0:/var/www/site
  skewbridge cp web-0:/var/www/site ./site

  # A large file over a bad connection: resume up to 10 times
  skewbridge cp --retries=10 batch/loader-0:/data/dump.sql dump.sql

  # From one pod to another
  skewbridge cp -c app web-0:/etc/app web-1:/tmp/app";

// The flags of `cp`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_flag = true, after_help = HELP)]
pub(crate) struct Flags {
    /// Source
    #[arg(value_name = "SRC")]
    source: String,
    /// Destination
    #[arg(value_name = "DEST")]
    target: String,
    /// Container, of both pods if there are two [default: that of the pod]
    #[arg(short, long, value_name = "NAME")]
    pub(super) container: Option<String>,
    /// How often to resume after a lost connection; negative for no limit
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    retries: i64,
    /// Do not preserve permissions, times, and owners in a pod
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "BOOL",
          default_value_t = false, default_missing_value = "true", hide_default_value = true,
          hide_possible_values = true, action = ArgAction::Set)]
    no_preserve: bool,
    /// Maximum size of a download [default: the free disk space]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,
    /// Print errors only
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Print this help
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub(super) cluster: ClusterFlags,
}

/// Source and destination.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Direction {
    pub(super) source: CopySpec,
    pub(super) target: CopySpec,
}

impl Flags {
    /// Source and destination, or kubectl's message if they are invalid.
    pub(super) fn direction(&self) -> Result<Direction, String> {
        let place = |text: &str| CopySpec::parse(text).map_err(|error| error.to_string());
        let (source, target) = (place(&self.source)?, place(&self.target)?);
        if let (CopySpec::Local(_), CopySpec::Local(_)) = (&source, &target) {
            return Err("one of src or dest must be a remote file specification".to_owned());
        }
        Ok(Direction { source, target })
    }

    pub(super) fn options(&self) -> Options {
        Options {
            preserve: if self.no_preserve {
                Preserve::No
            } else {
                Preserve::Yes
            },
            retries: Retries::from_number(self.retries),
            max_bytes: self.max_bytes,
            ..Options::default()
        }
    }
}

/// A number of bytes, with Kubernetes' suffixes.
fn size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 8] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let unit = UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1));
    let bytes = number.parse::<u64>().ok();
    bytes
        .and_then(|number| number.checked_mul(factor))
        .ok_or_else(|| format!("{text:?} is not a size; write it like 500Mi or 10G"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn parse(words: &[&str]) -> Flags {
        let words = ["cp"].iter().chain(words);
        Line::try_parse_from(words).unwrap().flags
    }

    #[test]
    fn source_or_destination_must_be_in_a_pod() {
        let reported = parse(&["a", "b"]).direction().unwrap_err();
        assert_eq!(
            reported,
            "one of src or dest must be a remote file specification"
        );
        let reported = parse(&["a", "pod:"]).direction().unwrap_err();
        assert_eq!(reported, "filepath can not be empty");
        for places in [["a", "pod:b"], ["pod:a", "b"], ["a:a", "b/b:b"]] {
            assert!(parse(&places).direction().is_ok(), "{places:?}");
        }
    }

    #[test]
    fn flags_are_parsed_as_by_kubectl() {
        let plain = parse(&["a", "p:b"]).options();
        assert_eq!(
            (plain.preserve, plain.retries),
            (Preserve::Yes, Retries::AtMost(0))
        );
        let words = [
            "a",
            "p:b",
            "--no-preserve",
            "--retries=-1",
            "--max-bytes=10Gi",
        ];
        let reported = parse(&words).options();
        assert_eq!(
            (reported.preserve, reported.retries),
            (Preserve::No, Retries::Forever)
        );
        assert_eq!(reported.max_bytes, Some(10 << 30));
        let reported = parse(&["a", "p:b", "--no-preserve=false", "--retries", "3"]).options();
        assert_eq!(
            (reported.preserve, reported.retries),
            (Preserve::Yes, Retries::AtMost(3))
        );
        assert!(size("10X").is_err() && size("-1").is_err() && size("99999999Ti").is_err());
    }
}
