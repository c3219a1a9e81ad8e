//! The command line of `serve`, joined with the file of `--config`: flags win.

use std::fs;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};

use super::config_file::{self, BridgeConfiguration, Setting};
use super::diagnostics::{Diagnostics, Problem, Problems};
use super::files;
use super::flag_definitions::{self, FlagDefinition};
use super::flags::Flags;

const CONFIG: &str = "--config";

/// The flags that were given. clap defines and parses them as [`Flags`].
#[derive(Debug, Clone)]
pub(crate) struct CommandLine {
    given: Vec<GivenFlag>,
    file: Option<PathBuf>,
    pub(crate) mode: Mode,
}

/// What to do with a valid configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Serve,
    /// `--dry-run`
    Print,
}

/// A flag on the command line, with its values.
#[derive(Debug, Clone, PartialEq, Eq)]
struct GivenFlag {
    flag: String,
    values: Vec<String>,
}

/// The flags of one bridge, from all sources.
#[derive(Debug)]
pub(crate) struct EffectiveFlags {
    pub(crate) parsed: Flags,
    /// In the order of `--help`.
    pub(crate) flags: Vec<EffectiveFlag>,
    file: Option<PathBuf>,
}

/// A flag and its values; none if it is not set and has no default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EffectiveFlag {
    pub(crate) definition: FlagDefinition,
    pub(crate) values: Vec<String>,
    pub(crate) source: Source,
}

/// Where a value is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    CommandLine,
    /// The file of `--config`.
    File,
    Default,
}

impl CommandLine {
    /// Whether the file of `--config`, or a flag beside `but`, is given.
    pub(crate) fn has_flags_beside(&self, but: &str) -> bool {
        self.file.is_some() || self.given.iter().any(|it| it.flag != but)
    }

    /// The value of a flag on the command line, by its name without dashes.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        let flag = self.given.iter().find(|it| it.flag == name)?;
        flag.values.last().map(String::as_str)
    }

    /// Reads the file of `--config`, and joins the flags.
    pub(crate) fn effective(&self) -> Result<EffectiveFlags, Problems> {
        let definitions = flag_definitions::all();
        let configuration = match &self.file {
            None => BridgeConfiguration::default(),
            Some(path) => read(path, &definitions)?,
        };
        let flags: Vec<_> = (definitions.into_iter())
            .map(|definition| effective(definition, &self.given, &configuration.settings))
            .collect();
        Ok(EffectiveFlags {
            parsed: parsed(&flags)?,
            flags,
            file: self.file.clone(),
        })
    }
}

fn read(path: &Path, definitions: &[FlagDefinition]) -> Result<BridgeConfiguration, Problems> {
    let mut diagnostics = Diagnostics::default();
    // A missing file is the only error of `fs::metadata` that the parser does not report better.
    if fs::metadata(path).is_ok_and(|found| found.is_dir()) {
        diagnostics.problem(CONFIG, Some(path), "is a directory; name a file");
        return diagnostics.conclude(None).map(|(found, _)| found);
    }
    let configuration = match files::text(path) {
        Ok(text) => config_file::parse(&text, definitions),
        Err(unreadable) => Err(vec![unreadable]),
    };
    match configuration {
        Ok(configuration) => Ok(configuration),
        Err(problems) => {
            for problem in problems {
                diagnostics.problem(CONFIG, Some(path), problem);
            }
            diagnostics.conclude(None).map(|(found, _)| found)
        }
    }
}

fn effective(
    definition: FlagDefinition,
    given: &[GivenFlag],
    settings: &[Setting],
) -> EffectiveFlag {
    let on_command_line = given.iter().find(|it| it.flag == definition.name);
    let in_file = settings.iter().find(|it| it.flag == definition.name);
    let (values, source) = match (on_command_line, in_file) {
        (Some(flag), _) => (flag.values.clone(), Source::CommandLine),
        (None, Some(setting)) => (setting.values.clone(), Source::File),
        (None, None) => (
            definition.default.iter().cloned().collect(),
            Source::Default,
        ),
    };
    EffectiveFlag {
        definition,
        values,
        source,
    }
}

/// Has clap parse all values again, as if they had been on the command line.
fn parsed(flags: &[EffectiveFlag]) -> Result<Flags, Problems> {
    let set = flags.iter().filter(|it| it.source != Source::Default);
    let arguments = set.flat_map(|it| {
        let name = &it.definition.name;
        it.values
            .iter()
            .map(move |value| format!("--{name}={value}"))
    });
    let command = Flags::augment_args(clap::Command::new("serve").no_binary_name(true));
    let matches = command.try_get_matches_from(arguments);
    // Every name is of a definition, and the types of `Flags` accept any text.
    matches
        .and_then(|matches| Flags::from_arg_matches(&matches))
        .map_err(|error| {
            let message = error.to_string();
            let flag = CONFIG.to_owned();
            Problems(vec![Problem {
                flag,
                file: None,
                message,
            }])
        })
}

impl EffectiveFlags {
    /// The first value of a flag, by its name without dashes. An empty value is none.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let flag = self.flags.iter().find(|it| it.definition.name == name)?;
        flag.values
            .first()
            .map(String::as_str)
            .filter(|it| !it.is_empty())
    }

    /// Adds the key and the file to problems and warnings about values of the file.
    pub(crate) fn locate(&self, mut problem: Problem) -> Problem {
        let Some(file) = &self.file else {
            return problem;
        };
        let about = |it: &&EffectiveFlag| {
            let named = problem.flag.split(", ").next().unwrap_or_default();
            it.source == Source::File && named.strip_prefix("--") == Some(&it.definition.name)
        };
        if let Some(flag) = self.flags.iter().find(about) {
            let key = &flag.definition.key;
            problem.flag = format!("{} ({key} in {})", problem.flag, file.display());
        }
        problem
    }
}

impl FromArgMatches for CommandLine {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        // Values that clap refuses are refused here.
        let flags = Flags::from_arg_matches(matches)?;
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let given = flag_definitions::all().into_iter().filter_map(|it| {
            let id = it.name.replace('-', "_");
            let values = matches.get_raw(&id).filter(|_| is_given(&id))?;
            Some(GivenFlag {
                flag: it.name,
                values: values.map(|it| it.to_string_lossy().into_owned()).collect(),
            })
        });
        Ok(Self {
            given: given.collect(),
            file: flags
                .generic
                .config
                .filter(|it| !it.is_empty())
                .map(PathBuf::from),
            mode: if flags.generic.dry_run {
                Mode::Print
            } else {
                Mode::Serve
            },
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for CommandLine {
    fn group_id() -> Option<clap::Id> {
        Flags::group_id()
    }

    fn augment_args(command: clap::Command) -> clap::Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Flags::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    const HEAD: &str = "apiVersion: skewbridge.io/v1alpha1\nkind: BridgeConfiguration\n";

    fn command_line(arguments: &[String]) -> CommandLine {
        let command = CommandLine::augment_args(clap::Command::new("serve").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments).unwrap();
        CommandLine::from_arg_matches(&matches).unwrap()
    }

    fn joined(file: &str, arguments: &[&str]) -> Result<EffectiveFlags, Problems> {
        let directory = ScratchDir::new();
        let path = directory.path().join("config.yaml");
        fs::write(&path, format!("{HEAD}{file}")).unwrap();
        let config = format!("--config={}", path.display());
        let arguments = arguments.iter().map(ToString::to_string);
        command_line(&arguments.chain([config]).collect::<Vec<_>>()).effective()
    }

    fn found<'a>(effective: &'a EffectiveFlags, name: &str) -> (Vec<&'a str>, Source) {
        let all = &effective.flags;
        let flag = all.iter().find(|it| it.definition.name == name).unwrap();
        (
            flag.values.iter().map(String::as_str).collect(),
            flag.source,
        )
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = "securePort: 7443\nbindAddress: 10.0.0.11\n\
                    upstream: [https://10.0.0.1:6443, https://10.0.0.2:6443]\n";
        let line = ["--secure-port=8443", "--upstream=https://10.0.0.3:6443"];
        let effective = joined(file, &line).unwrap();
        let rows: [(&str, &[&str], Source); 5] = [
            ("secure-port", &["8443"], Source::CommandLine),
            ("upstream", &["https://10.0.0.3:6443"], Source::CommandLine),
            ("bind-address", &["10.0.0.11"], Source::File),
            ("idle-timeout", &["1m30s"], Source::Default),
            ("peer-ca-file", &[], Source::Default),
        ];
        for (name, values, source) in rows {
            assert_eq!(found(&effective, name), (values.to_vec(), source), "{name}");
        }
        assert_eq!(effective.parsed.serving.secure_port, "8443");
        assert_eq!(effective.parsed.serving.bind_address, "10.0.0.11");
        assert_eq!(
            effective.parsed.upstream.upstream,
            ["https://10.0.0.3:6443"]
        );
    }

    #[test]
    fn a_problem_with_a_value_of_the_file_names_key_and_file() {
        let effective = joined("securePort: x\n", &["--v=11"]).unwrap();
        let located = |flag: &str| {
            let problem = Problem {
                flag: flag.to_owned(),
                file: None,
                message: String::new(),
            };
            effective.locate(problem).flag
        };
        assert!(located("--secure-port").starts_with("--secure-port (securePort in /"));
        assert_eq!(located("--v"), "--v");
        assert_eq!(located("--idle-timeout"), "--idle-timeout");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_a_problem_of_its_flag() {
        let directory = ScratchDir::new();
        let rows = [
            (directory.path().join("missing"), "no such file"),
            (directory.path().to_owned(), "is a directory"),
        ];
        for (path, expected) in rows {
            let line = command_line(&[format!("--config={}", path.display())]);
            let Problems(problems) = line.effective().unwrap_err();
            assert_eq!(problems.len(), 1);
            assert_eq!(problems[0].flag, CONFIG);
            assert_eq!(problems[0].file.as_ref(), Some(&path));
            assert!(problems[0].message.contains(expected), "{problems:?}");
        }
    }
}
