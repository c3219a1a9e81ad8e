//! The diagram of the cluster, and commands to try.

use std::fmt::Write as _;
use std::path::Path;

use skewbridge_fake_cluster::cluster::{Cluster, POD, POD_PORT, POLICY_PATH};

use crate::console::Color;

/// The content of the diagram.
pub(super) struct Topology {
    /// Names and addresses of bridges and their servers.
    rows: Vec<[String; 4]>,
    kubeconfig: String,
    /// The command to run this program.
    program: String,
    control: Option<String>,
    /// Names and admin addresses of bridges.
    admins: Vec<[String; 2]>,
}

impl Topology {
    pub(super) fn of(cluster: &Cluster, control: Option<String>) -> Self {
        let pairs = cluster.bridges().iter().zip(cluster.servers());
        let rows = pairs.map(|(bridge, server)| {
            [
                bridge.name().to_owned(),
                bridge.address().to_string(),
                server.name().to_owned(),
                server.address().to_string(),
            ]
        });
        let admins = cluster.bridges().iter().map(|bridge| {
            let address = bridge.admin_address();
            [bridge.name().to_owned(), address.to_string()]
        });
        Self {
            admins: admins.collect(),
            rows: rows.collect(),
            kubeconfig: shell_quoted(cluster.kubeconfig()),
            program: program(),
            control,
        }
    }

    /// The diagram and the commands to try.
    pub(super) fn draw(&self, color: Color) -> String {
        let mut out = self.draw_topology(color);
        self.draw_commands(color, &mut out);
        out
    }

    /// The diagram.
    pub(super) fn draw_topology(&self, color: Color) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "{}\n",
            color.bold(
                "Three API servers of three versions over one store, a bridge in front of each."
            )
        );
        let middle = self.rows.len() / 2;
        for (index, [bridge, bridge_address, server, server_address]) in
            self.rows.iter().enumerate()
        {
            let (corner, rest) = match index {
                0 => ('┐', ""),
                _ if index == middle => ('┼', "─▶ one store ◀── node, pods"),
                _ => ('┘', ""),
            };
            let client = if index == middle {
                "kubectl ─▶"
            } else {
                "        ─▶"
            };
            let _ = writeln!(
                out,
                "  {client} {} {} ─▶ {} {} ─{corner}{rest}",
                color.name(bridge),
                color.dim(format_args!("{bridge_address:<15}")),
                color.name(server),
                color.dim(format_args!("{server_address:<15}")),
            );
            if index + 1 < self.rows.len() {
                let gap = 2 + 10 + 1 + bridge.len();
                let rest = 4 + 15 + server.len() + 1 + 15 + 2;
                let _ = writeln!(out, "{:gap$}↕{:rest$}│", "", "");
            }
        }
        out.push('\n');
        out
    }

    fn draw_commands(&self, color: Color, out: &mut String) {
        let _ = writeln!(out, "{}", color.bold("Try, in another terminal:"));
        let width = self.commands().iter().map(|(it, _)| it.len()).max();
        let width = width.unwrap_or_default();
        let _ = writeln!(out, "  export KUBECONFIG={}", self.kubeconfig);
        for (command, why) in self.commands() {
            let why = color.dim(format_args!("# {why}"));
            let _ = writeln!(out, "  {command:width$}  {why}");
        }
        if let Some(control) = &self.control {
            let _ = writeln!(
                out,
                "\n{}\n  {control}",
                color.bold("Stop, start, kill, upgrade or downgrade a server:")
            );
        }
        if let Some([bridge, address]) = self.admins.first() {
            let of = color.dim(format_args!("# as {bridge} sees it"));
            let _ = writeln!(
                out,
                "\n{}\n  http://{address}/status  {of}",
                color.bold("Watch the control plane on a page, in a browser:")
            );
        }
        let _ = writeln!(
            out,
            "\n{}",
            color.bold(
                "Ask a bridge at its admin port for health, metrics, and where it sends a request:"
            )
        );
        for [bridge, address] in &self.admins {
            let of = color.dim(format_args!("# {bridge}"));
            let _ = writeln!(out, "  curl http://{address}/metrics  {of}");
        }
        if let Some([_, address]) = self.admins.first() {
            let _ = writeln!(
                out,
                "  {} route --admin-address {address} GET {POLICY_PATH}",
                self.program
            );
        }
        out.push('\n');
    }

    fn commands(&self) -> Vec<(String, &'static str)> {
        let kubectl = |context: &str, rest: &str| format!("kubectl --context={context} {rest}");
        let policies = "get mutatingadmissionpolicies";
        vec![
            (
                kubectl("server-1.28", policies),
                "the old server does not have this API",
            ),
            (
                kubectl("bridge-1.28", policies),
                "through its bridge it is served",
            ),
            (
                kubectl("bridge-1.28", "api-resources"),
                "the APIs of all servers, in one list",
            ),
            (
                kubectl("bridge-1.28", &format!("exec -it {POD} -- sh")),
                "by WebSocket, to a server that only has SPDY",
            ),
            (
                kubectl("bridge-1.28", &format!("logs -f {POD}")),
                "the log of the pod",
            ),
            (
                kubectl("bridge-1.28", &format!("port-forward {POD} {POD_PORT}")),
                "its port",
            ),
            (
                kubectl("visitor", "delete pod web"),
                "the visitor can only read",
            ),
            (
                format!("{} skew", self.program),
                "the differences between the servers",
            ),
        ]
    }
}

/// The command to run this program from the current directory.
fn program() -> String {
    let Ok(file) = std::env::current_exe() else {
        return "skewbridge".to_owned();
    };
    let here = std::env::current_dir().unwrap_or_default();
    match file.strip_prefix(here) {
        Ok(below) => shell_quoted(below),
        Err(_) => shell_quoted(&file),
    }
}

/// Quoted for a shell.
pub(super) fn shell_quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "/._-".contains(it);
    if text.chars().all(is_plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_where_a_shell_needs_it() {
        assert_eq!(shell_quoted(Path::new("/tmp/a-b")), "/tmp/a-b");
        assert_eq!(shell_quoted(Path::new("/tmp/it's")), "'/tmp/it'\\''s'");
        assert_eq!(
            shell_quoted(Path::new("/tmp/a b/token")),
            "'/tmp/a b/token'"
        );
    }

    #[test]
    fn the_drawing_is_aligned() {
        let row = |version: &str, port: u16| {
            [
                format!("bridge-{version}"),
                format!("127.0.0.1:{port}"),
                format!("server-{version}"),
                format!("127.0.0.1:{}", port + 1),
            ]
        };
        let scene = Topology {
            rows: vec![row("1.28", 40_000), row("1.34", 4000), row("1.36", 40_004)],
            kubeconfig: "/tmp/k".to_owned(),
            program: "skewbridge".to_owned(),
            control: None,
            admins: Vec::new(),
        };
        let drawn = scene.draw(Color::Plain);
        let lines: Vec<Vec<char>> = drawn.lines().map(|it| it.chars().collect()).collect();
        let at = |line: usize, what: char| lines[line].iter().rposition(|it| *it == what);
        let column = at(2, '┐').unwrap();
        for (line, what) in [(3, '│'), (4, '┼'), (5, '│'), (6, '┘')] {
            assert_eq!(at(line, what), Some(column), "{drawn}");
        }
    }
}
