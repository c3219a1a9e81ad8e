//! `skewbridge man`: manual pages, made from the definitions of the commands.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap_mangen::Man;

use crate::client_command::print_stderr;

const HELP: &str = "\
Examples:
  skewbridge man | man -l -
  skewbridge man --directory /usr/local/share/man/man1";

// The flags of `man`. The description of the command is in `main.rs`.
#[derive(Debug, Clone, Args)]
#[command(after_help = HELP)]
pub(crate) struct Flags {
    /// Write a page per command to this directory, instead of printing
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Prints the main page, or writes all pages.
pub(crate) fn run(flags: &Flags, command: clap::Command) -> ExitCode {
    let written = match &flags.directory {
        None => page(&command).map(|text| {
            // Write errors are ignored: the reader may have closed the pipe.
            let _ = io::stdout().write_all(&text);
        }),
        Some(directory) => write_all(command, directory),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let directory = flags.directory.as_deref().unwrap_or(Path::new("stdout"));
            print_stderr(format_args!(
                "error: --directory {}: {error}",
                directory.display()
            ));
            ExitCode::FAILURE
        }
    }
}

fn write_all(command: clap::Command, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}

fn page(command: &clap::Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text)?;
    Ok(text)
}
