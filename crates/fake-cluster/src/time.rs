//! Times in the format of `metav1.Time`, and durations in the format of kubectl.

pub use skewbridge_k8s_api::time::Time;

const SECONDS_PER_DAY: i64 = 86_400;

/// A duration in kubectl's format: the longer, the coarser.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / SECONDS_PER_DAY);
    let pair = |large: i64, unit: char, small: i64, subunit: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{subunit}"),
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => pair(days, 'd', hours % 24, 'h'),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_by_kubectl() {
        let (minute, hour, day) = (60, 3600, SECONDS_PER_DAY);
        let rows = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (10 * minute + 5, "10m"),
            (179 * minute, "179m"),
            (3 * hour, "3h"),
            (3 * hour + 7 * minute, "3h7m"),
            (9 * hour + 7 * minute, "9h"),
            (2 * day, "2d"),
            (2 * day + hour, "2d1h"),
            (8 * day + hour, "8d"),
            (730 * day, "2y"),
            (731 * day, "2y1d"),
            (3000 * day, "8y"),
        ];
        for (seconds, text) in rows {
            assert_eq!(human_duration(seconds), text, "{seconds}");
        }
    }
}
