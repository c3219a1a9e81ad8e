//! The static pod manifest of a kube-apiserver: its flags, and its text with the layout "the same
//! port on two addresses" applied or reverted.
//!
//! The text is edited by lines, so that everything else in it stays as it is, to the last byte.
//! Before and after are then parsed and compared: an edit that would change anything else is
//! refused.

use std::net::IpAddr;

use serde_json::Value;

/// The first line of an edited manifest, by which its comment is found again.
const COMMENT_MARK: &str = "# kube-apiserver behind a bridge";

/// How the last paragraph of that comment begins, and each of its other lines.
const LAST_PARAGRAPH: &str = "# Undo:";
const CONTINUATION: &str = "#          ";

/// The parts of a container's command line: `args` where the image has the command.
const COMMAND_LINE: [&str; 2] = ["command", "args"];

const PROBES: [&str; 3] = ["livenessProbe", "readinessProbe", "startupProbe"];

/// The manifest of a kube-apiserver.
#[derive(Debug, Clone)]
pub(super) struct KubeApiserver {
    text: String,
    document: Value,
    flags: Vec<(String, String)>,
}

impl KubeApiserver {
    /// Parses a manifest; an error names what is missing.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document = parse(text)?;
        let flags: Vec<_> = words(&document).filter_map(flag).collect();
        if document["kind"] != "Pod" || flags.is_empty() {
            return Err(
                "is not the manifest of a kube-apiserver: it has no Pod whose command has flags"
                    .to_owned(),
            );
        }
        Ok(Self {
            text: text.to_owned(),
            document,
            flags,
        })
    }

    /// The value of a flag. Of several the last counts, as in kube-apiserver.
    pub(super) fn flag(&self, name: &str) -> Option<&str> {
        let mut found = self.flags.iter().rev().filter(|(flag, _)| flag == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// The value of a flag that the installation needs.
    pub(super) fn required(&self, name: &str) -> Result<&str, String> {
        self.flag(name)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| {
                format!("has no --{name}, which the bridge needs; add it to kube-apiserver")
            })
    }

    /// The address that kube-apiserver publishes.
    pub(super) fn advertise_address(&self) -> Result<IpAddr, String> {
        let text = self.required("advertise-address")?;
        let parsed = text.parse();
        parsed.map_err(|_| format!("--advertise-address={text} is not an IP address"))
    }

    /// Its port.
    pub(super) fn secure_port(&self) -> Result<u16, String> {
        let text = self.flag("secure-port").unwrap_or("6443");
        let parsed = text.parse();
        parsed.map_err(|_| format!("--secure-port={text} is not a port"))
    }

    /// The text of the manifest with kube-apiserver on its loopback address, below a comment.
    /// Applied to its own result, it changes nothing.
    pub(super) fn behind_a_bridge(&self, comment: &str) -> Result<String, String> {
        let original = self.without_a_bridge()?;
        let original = Self::parse(&original)?;
        let address = original.advertise_address()?;
        let loopback = loopback(address);
        let flag = format!("--bind-address={loopback}");
        let mut lines = original.lines();
        let last = original.last_flag_line(&lines)?;
        lines.insert(last + 1, format!("{}- {flag}", indentation(&lines[last])));
        replace_probe_hosts(&mut lines, &address.to_string(), &loopback.to_string());

        let mut expected = original.document.clone();
        let container = &mut expected["spec"]["containers"][0];
        if let Some(words) = container["command"].as_array_mut() {
            words.push(Value::from(flag));
        }
        set_probe_hosts(container, &loopback.to_string());
        let edited = checked(&lines, &expected)?;
        Ok(format!("{COMMENT_MARK}{comment}{edited}"))
    }

    /// The text as it was before [`Self::behind_a_bridge`], or before kubeadm applied the patches of
    /// the same layout. Other patches may have added flags after that of the layout.
    pub(super) fn without_a_bridge(&self) -> Result<String, String> {
        let address = self.advertise_address()?;
        let mut lines = self.lines();
        let had_comment = remove_comments(&mut lines);
        let mut expected = self.document.clone();
        let container = &mut expected["spec"]["containers"][0];
        let removed = remove_loopback_flags(container);
        if !had_comment && removed.is_empty() {
            self.listens_on_all_addresses()?;
            return Ok(self.text.clone());
        }
        for flag in &removed {
            remove_flag_line(&mut lines, flag)?;
            let bound = flag.split_once('=').map_or("", |(_, value)| value);
            replace_probe_hosts(&mut lines, bound, &address.to_string());
        }
        let loopback = loopback(address).to_string();
        replace_probe_hosts(&mut lines, &loopback, &address.to_string());
        set_probe_hosts(container, &address.to_string());
        let text = checked(&lines, &expected)?;
        Self::parse(&text)?.listens_on_all_addresses()?;
        Ok(text)
    }

    /// Without a bridge, a kube-apiserver on its loopback address is not reachable by its clients.
    fn listens_on_all_addresses(&self) -> Result<(), String> {
        let mut bound = (self.words()).filter_map(|word| word.strip_prefix("--bind-address="));
        // A value may also be a word of its own.
        let words: Vec<_> = self.words().collect();
        let mut pairs = words.windows(2).filter(|pair| pair[0] == "--bind-address");
        let is_marked = |line: &str| line.trim_start().starts_with(COMMENT_MARK);
        let remains = if bound.any(is_loopback) || pairs.any(|pair| is_loopback(pair[1])) {
            "--bind-address with a loopback address"
        } else if self.text.lines().any(is_marked) {
            "the comment of the layout, not at its top"
        } else {
            return Ok(());
        };
        Err(format!(
            "has {remains}, and cannot be edited; restore by hand what kubeadm writes"
        ))
    }

    fn words(&self) -> impl Iterator<Item = &str> {
        words(&self.document)
    }

    fn lines(&self) -> Vec<String> {
        self.text.split('\n').map(str::to_owned).collect()
    }

    /// The line of the last item of `command`.
    fn last_flag_line(&self, lines: &[String]) -> Result<usize, String> {
        let words = self.document["spec"]["containers"][0]["command"].as_array();
        let last = words.and_then(|words| words.last()?.as_str());
        let item = format!("- {}", last.unwrap_or_default());
        let found = lines.iter().rposition(|line| line.trim_start() == item);
        found.ok_or_else(|| {
            "is not in the form that kubeadm writes, one flag a line, and cannot be edited; edit it \
             by hand, or give another --secure-port, which needs no edit"
                .to_owned()
        })
    }
}

/// The loopback address of the same family.
pub(super) fn loopback(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(_) => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
    }
}

fn parse(text: &str) -> Result<Value, String> {
    serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())
}

/// The command line of a manifest.
fn words(document: &Value) -> impl Iterator<Item = &str> {
    let container = &document["spec"]["containers"][0];
    let lists = COMMAND_LINE.map(|key| container[key].as_array());
    let words = lists.into_iter().flatten().flatten();
    words.filter_map(Value::as_str)
}

/// `--name=value`; a flag without a value is a boolean.
fn flag(word: &str) -> Option<(String, String)> {
    let word = word.strip_prefix("--")?;
    let (name, value) = word.split_once('=').unwrap_or((word, "true"));
    Some((name.to_owned(), value.to_owned()))
}

fn is_loopback(address: &str) -> bool {
    let address = address.parse();
    address.is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Removes `--bind-address` with loopback addresses from a command line, and returns these flags.
fn remove_loopback_flags(container: &mut Value) -> Vec<String> {
    let mut removed = Vec::new();
    for key in COMMAND_LINE {
        let Some(words) = container.get_mut(key).and_then(Value::as_array_mut) else {
            continue;
        };
        words.retain(|word| {
            let word = word.as_str().unwrap_or_default();
            let value = word.strip_prefix("--bind-address=");
            let is_loopback_flag = value.is_some_and(is_loopback);
            if is_loopback_flag {
                removed.push(word.to_owned());
            }
            !is_loopback_flag
        });
    }
    removed
}

/// Removes one line with this flag.
fn remove_flag_line(lines: &mut Vec<String>, flag: &str) -> Result<(), String> {
    let found = lines.iter().rposition(|line| {
        let item = line.trim().strip_prefix("- ").unwrap_or_default();
        item.trim_matches(['\'', '"']) == flag
    });
    let line = found.ok_or_else(|| {
        format!(
            "has {flag} in a form other than one flag a line, and cannot be edited; restore by \
             hand what kubeadm writes"
        )
    })?;
    lines.remove(line);
    Ok(())
}

/// Removes the comments of [`KubeApiserver::behind_a_bridge`], each of which ends with a paragraph
/// about undoing it, and returns whether there was one.
fn remove_comments(lines: &mut Vec<String>) -> bool {
    let mut removed = false;
    while let Some(start) = lines.iter().position(|it| it.starts_with(COMMENT_MARK)) {
        let mut is_last_paragraph = false;
        let comment = lines[start..].iter().take_while(|line| {
            let is_part =
                line.starts_with('#') && (!is_last_paragraph || line.starts_with(CONTINUATION));
            is_last_paragraph |= line.starts_with(LAST_PARAGRAPH);
            is_part
        });
        let end = start + comment.count();
        lines.drain(start..end);
        removed = true;
    }
    removed
}

fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Only probes have a `host`. Which ones were replaced is checked on the parsed document.
fn replace_probe_hosts(lines: &mut [String], from: &str, to: &str) {
    for line in lines {
        let indentation = indentation(line).to_owned();
        let Some(value) = line.trim_start().strip_prefix("host: ") else {
            continue;
        };
        let quote = value.chars().next().filter(|it| "'\"".contains(*it));
        let bare = quote.map_or(value, |quote| value.trim_matches(quote));
        if bare == from {
            let quote = quote.map(String::from).unwrap_or_default();
            *line = format!("{indentation}host: {quote}{to}{quote}");
        }
    }
}

fn set_probe_hosts(container: &mut Value, host: &str) {
    for probe in PROBES {
        if let Some(request) = container[probe]["httpGet"].as_object_mut() {
            request.insert("host".to_owned(), Value::from(host));
        }
    }
}

/// The lines as text, if they parse as the expected document.
fn checked(lines: &[String], expected: &Value) -> Result<String, String> {
    let text = lines.join("\n");
    if parse(&text)? == *expected {
        return Ok(text);
    }
    Err(
        "has probes whose `host` is neither --advertise-address nor the loopback address, or a \
         `host` elsewhere, and cannot be edited; edit it by hand, or give another --secure-port, \
         which needs no edit"
            .to_owned(),
    )
}
