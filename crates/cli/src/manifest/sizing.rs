//! Limits of a bridge by the size of its cluster, as in docs/sizing.md.

use clap::Args;

use super::configuration::ConfigurationText;

// The flag for the size of the cluster. The comment is the help text.
#[derive(Debug, Clone, Args)]
pub(super) struct SizeFlags {
    /// Nodes of the cluster: more than 1000 need more memory, connections and buffers
    #[arg(long, value_name = "NUMBER", default_value_t = STANDARD.nodes,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(LARGE.nodes)))]
    cluster_nodes: u32,
}

/// What a bridge of a cluster needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// The most nodes of the cluster.
    nodes: u32,
    /// As Kubernetes writes it.
    memory: &'static str,
    pub(super) open_files: u32,
    /// `--max-connections` and `--max-buffered-bytes`, if the defaults are too low.
    flags: Option<(u32, &'static str)>,
}

const STANDARD: Limits = Limits {
    nodes: 1000,
    memory: "1Gi",
    open_files: 65_536,
    flags: None,
};

const LARGE: Limits = Limits {
    nodes: 5000,
    memory: "2560Mi",
    open_files: 131_072,
    flags: Some((32_768, "512Mi")),
};

impl SizeFlags {
    pub(super) fn limits(&self) -> Limits {
        if self.cluster_nodes <= STANDARD.nodes {
            STANDARD
        } else {
            LARGE
        }
    }
}

impl Limits {
    /// The memory limit of a container.
    pub(super) fn container_memory(self) -> &'static str {
        self.memory
    }

    /// The same for systemd, whose `M` and `G` are powers of 1024.
    pub(super) fn unit_memory(self) -> &'static str {
        self.memory.trim_end_matches('i')
    }

    /// The values that differ from the defaults of the bridge.
    pub(super) fn configure(self, text: &mut ConfigurationText) {
        let Some((connections, buffered_bytes)) = self.flags else {
            return;
        };
        text.paragraph(&format!(
            "For clusters of up to {} nodes. The unit and the static pod have the memory limit.",
            self.nodes
        ));
        text.value("maxConnections", &connections.to_string());
        text.value("maxBufferedBytes", buffered_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_those_of_the_documentation() {
        let page = include_str!("../../../../docs/sizing.md");
        let (connections, buffered_bytes) = LARGE.flags.unwrap();
        let memory = LARGE.memory.replace("Mi", " MiB");
        let row = format!(
            "\n| 5,000 | {memory} | {connections} | {} | {buffered_bytes} |\n",
            LARGE.open_files
        );
        assert!(page.contains(&row), "{row}");
        // Up to 1000 nodes the defaults suffice.
        let row = format!(
            "\n| 1,000 | 768 MiB | 16384 (default) | {} |",
            STANDARD.open_files
        );
        assert!(page.contains(&row), "{row}");
        for (nodes, expected) in [
            (1, STANDARD),
            (1000, STANDARD),
            (1001, LARGE),
            (5000, LARGE),
        ] {
            let flags = SizeFlags {
                cluster_nodes: nodes,
            };
            assert_eq!(flags.limits(), expected, "{nodes}");
        }
    }
}
