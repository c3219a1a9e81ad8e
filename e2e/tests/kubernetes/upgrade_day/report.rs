//! What `skewbridge check upgrade` prints.

/// A line of the report that is not a note.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) topic: String,
    /// Whether it says that something is not known.
    pub(super) is_unknown: bool,
    /// Its lines, as one.
    pub(super) text: String,
}

/// The findings below the verdict, which is the first line.
pub(super) fn findings(report: &str) -> Vec<Finding> {
    let mut findings = Vec::<Finding>::new();
    let mut topic = "";
    let mut is_note = false;
    for line in report.lines().skip(1).filter(|it| !it.is_empty()) {
        if let Some(rest) = line.strip_prefix(' ') {
            if let (false, Some(finding)) = (is_note, findings.last_mut()) {
                finding.text += " ";
                finding.text += rest.trim();
            }
            continue;
        }
        is_note = line.starts_with('·');
        match line.strip_prefix("✗ ").or(line.strip_prefix("? ")) {
            Some(text) => findings.push(Finding {
                topic: topic.to_owned(),
                is_unknown: line.starts_with('?'),
                text: text.to_owned(),
            }),
            None if is_note => {}
            None => topic = line,
        }
    }
    findings
}

#[test]
fn findings_are_read_by_topic() {
    let report = "upgrade to 1.36: 2 findings\n\nAPIs\n· new APIs\n    a, b\n\nversions\n\
                  ✗ 10.0.0.11:6443\n    it is\n    old\n? kubelet\n    no\n";
    let finding = |is_unknown, text: &str| Finding {
        topic: "versions".to_owned(),
        is_unknown,
        text: text.to_owned(),
    };
    let expected = [
        finding(false, "10.0.0.11:6443 it is old"),
        finding(true, "kubelet no"),
    ];
    assert_eq!(findings(report), expected);
}
