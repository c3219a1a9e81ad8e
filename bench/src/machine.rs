//! The machine of a measurement.

use std::fs;
use std::thread::available_parallelism;

/// One line: processors, their model and the kernel.
pub(crate) fn description() -> String {
    let processors = available_parallelism().map_or(1, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    describe(processors, model_name(&model), kernel.trim())
}

fn describe(processors: usize, model: Option<&str>, kernel: &str) -> String {
    let unit = if processors == 1 {
        "processor"
    } else {
        "processors"
    };
    let model = model.map_or(String::new(), |model| format!(" ({model})"));
    // The release of a build for one machine or provider is longer.
    let kernel = kernel.split('-').next().unwrap_or_default();
    format!("{processors} {unit}{model}, Linux {kernel}")
}

fn model_name(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_and_the_release_are_named() {
        let cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: AMD EPYC\n";
        let text = describe(2, model_name(cpuinfo), "6.18.5-custom+");
        assert_eq!(text, "2 processors (AMD EPYC), Linux 6.18.5");
        assert_eq!(describe(1, model_name(""), "6.1"), "1 processor, Linux 6.1");
    }
}
