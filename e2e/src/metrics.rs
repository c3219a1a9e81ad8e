//! The metrics of a bridge.

use std::net::SocketAddr;

use crate::control_plane::{ControlPlane, admin_at};

/// A scrape of metrics.
#[derive(Debug, Clone)]
pub struct Metrics(String);

impl Metrics {
    /// The sum of all series with this name and these labels, such as `kind="exec"`.
    pub fn sum(&self, name: &str, labels: &[&str]) -> u64 {
        let lines = self.0.lines().filter_map(|line| line.rsplit_once(' '));
        let lines = lines.filter(|(series, _)| {
            let (its_name, its_labels) = series.split_once('{').unwrap_or((series, ""));
            its_name == name && labels.iter().all(|label| its_labels.contains(label))
        });
        let values = lines.map(|(_, value)| value.parse::<u64>().expect("a whole number"));
        values.sum()
    }
}

impl ControlPlane {
    /// Scrapes the bridge with this admin address.
    pub async fn metrics(&self, admin: SocketAddr) -> Metrics {
        match admin_at(admin, "/metrics").await {
            Some((200, text)) => Metrics(text),
            answer => panic!("no metrics: {answer:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_selected_by_name_and_labels() {
        let text = "# HELP a_total of\na_total{x=\"1\",y=\"2\"} 3\na_total{x=\"1\",y=\"3\"} 4\n\
                    a_total_more{x=\"1\"} 5\nb 6\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.sum("a_total", &[]), 7);
        assert_eq!(metrics.sum("a_total", &["x=\"1\"", "y=\"3\""]), 4);
        assert_eq!(metrics.sum("a_total", &["x=\"2\""]), 0);
        assert_eq!(metrics.sum("b", &[]), 6);
    }
}
