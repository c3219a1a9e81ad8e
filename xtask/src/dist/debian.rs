//! The Debian package: the program, the unit, manual pages and completions. It creates the user
//! and the directories of the service, and does not start it.

use std::path::Path;
use std::process::Command;

use super::elf::GlibcVersion;
use super::platform::Architecture;
use super::staging::{Mode, Staging};
use crate::step::{self, StepError, output};

/// The directories of the service, which the program does not create as an unprivileged user.
pub(super) const DIRECTORIES: [&str; 2] = ["etc/skewbridge", "var/lib/skewbridge"];

/// The unit of the service.
const UNIT: &str = "usr/lib/systemd/system/skewbridge.service";

const POSTINST: &str = r#"#!/bin/sh
# Creates the user and group of the service. It does not enable or start the service: that needs
# /etc/skewbridge/config.yaml, which is different on each machine.
set -e

# Sets owner and mode of a directory that dpkg has just created.
own() {
    if [ "$(stat --format=%U:%G "$1")" = root:root ]; then
        chown "$2" "$1"
        chmod "$3" "$1"
    fi
}

if [ "$1" = configure ]; then
    adduser --quiet --system --group --no-create-home --home /var/lib/skewbridge \
        --gecos "Skewbridge" skewbridge
    own /etc/skewbridge root:skewbridge 0750
    own /var/lib/skewbridge skewbridge:skewbridge 0700
    # Records which links `systemctl enable` makes, so that a removal finds them.
    deb-systemd-helper update-state skewbridge.service >/dev/null || true
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    fi
fi
"#;

const PRERM: &str = r#"#!/bin/sh
# Stops the service before its program is removed. An upgrade does not restart it.
set -e

if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop skewbridge.service >/dev/null || true
fi
"#;

const POSTRM: &str = r#"#!/bin/sh
# Disables and forgets the unit, and with `purge` the state. Files in /etc/skewbridge and the user
# stay: they may be named elsewhere, as the owner of files or in the RBAC of the cluster.
set -e

# Removes the links of `systemctl enable`, which would point to no file. A unit in /etc is one of the
# administrator: it may run another program, and stays enabled.
if [ ! -f /etc/systemd/system/skewbridge.service ] && [ -x /usr/bin/deb-systemd-helper ]; then
    case "$1" in
    remove) deb-systemd-helper disable skewbridge.service >/dev/null || true ;;
    purge) deb-systemd-helper purge skewbridge.service >/dev/null || true ;;
    esac
fi
if [ "$1" = purge ]; then
    rm -rf /var/lib/skewbridge
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
"#;

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Skewbridge

Files: *
Copyright: 2026 The authors of Skewbridge
License: Apache-2.0
 On Debian systems, the text of this licence is in /usr/share/common-licenses/Apache-2.0.
 The licences of the libraries in the program are listed in skewbridge.cdx.json.
";

/// Debian requires a maintainer; this address is a placeholder.
const MAINTAINER: &str = "Skewbridge <skewbridge@localhost>";

/// What is in a package.
pub(super) struct Contents<'a> {
    pub(super) version: &'a str,
    pub(super) architecture: Architecture,
    pub(super) program: &'a Path,
    /// The newest symbol version that the program needs.
    pub(super) glibc: GlibcVersion,
    /// The text of `skewbridge.service`.
    pub(super) unit: &'a str,
    /// The directory with manual pages and completions.
    pub(super) documents: &'a Staging,
    pub(super) sbom: &'a str,
}

impl Contents<'_> {
    pub(super) fn file_name(&self) -> String {
        let architecture = self.architecture.name();
        format!("skewbridge_{}_{architecture}.deb", self.version)
    }

    /// Makes the package below `directory`, in a staging directory `staging`.
    pub(super) fn build(
        &self,
        staging: &Staging,
        directory: &Path,
        epoch: u64,
    ) -> Result<(), StepError> {
        self.stage(staging, epoch)?;
        let mut build = Command::new("dpkg-deb");
        build
            .args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"])
            .arg(staging.root())
            .arg(directory.join(self.file_name()))
            // The time of all files.
            .env("SOURCE_DATE_EPOCH", epoch.to_string());
        step::run(&mut build)
    }

    fn stage(&self, staging: &Staging, epoch: u64) -> Result<(), StepError> {
        staging.copy("usr/bin/skewbridge", Mode::Executable, self.program)?;
        // The kubectl plugin, and its completion.
        for plugin in ["kubectl-skewbridge", "kubectl_complete-skewbridge"] {
            staging.link(&format!("usr/bin/{plugin}"), "skewbridge")?;
        }
        for directory in DIRECTORIES {
            staging.directory(directory)?;
        }
        staging.write(UNIT, Mode::Data, self.unit.as_bytes())?;
        for name in self.documents.files()? {
            if let Some(installed) = installed_document(&name) {
                staging.copy(&installed, Mode::Data, &self.documents.root().join(&name))?;
            }
        }
        let documents = "usr/share/doc/skewbridge";
        let name = format!("{documents}/copyright");
        staging.write(&name, Mode::Data, COPYRIGHT.as_bytes())?;
        let name = format!("{documents}/skewbridge.cdx.json");
        staging.write(&name, Mode::Data, self.sbom.as_bytes())?;
        let name = format!("{documents}/changelog");
        staging.write(&name, Mode::Data, self.changelog(epoch)?.as_bytes())?;
        let mut compress = Command::new("gzip");
        compress.args(["-9", "--no-name", &name]);
        step::run(compress.current_dir(staging.root()))?;
        let control = self.control(installed_size(staging)?);
        staging.write("DEBIAN/control", Mode::Data, control.as_bytes())?;
        for (name, script) in [("postinst", POSTINST), ("prerm", PRERM), ("postrm", POSTRM)] {
            let name = format!("DEBIAN/{name}");
            staging.write(&name, Mode::Executable, script.as_bytes())?;
        }
        Ok(())
    }

    /// Debian's changelog has one entry: the changes themselves are in the sources.
    fn changelog(&self, epoch: u64) -> Result<String, StepError> {
        let mut date = Command::new("date");
        date.args(["--utc", "--rfc-email"]).env("LC_ALL", "C");
        let date = output(date.arg(format!("--date=@{epoch}")))?;
        Ok(format!(
            "skewbridge ({}) stable; urgency=medium\n\n  * See CHANGELOG.md of the sources.\n\n \
             -- {MAINTAINER}  {date}\n",
            self.version
        ))
    }

    fn control(&self, installed_kib: u64) -> String {
        format!(
            "\
Package: skewbridge
Version: {version}
Architecture: {architecture}
Maintainer: {MAINTAINER}
Installed-Size: {installed_kib}
Depends: adduser, libc6 (>= {glibc}), libgcc-s1 | libgcc1
Section: admin
Priority: optional
Description: Kubernetes control planes of mixed versions that behave as one
 A gateway beside, or in front of, kube-apiservers of different versions.
 Requests for APIs that one server does not serve are answered by another one,
 and discovery shows the APIs of all.
 .
 The package also has the kubectl plugin \"kubectl skewbridge\".
",
            version = self.version,
            architecture = self.architecture.name(),
            glibc = self.glibc,
        )
    }
}

/// Where Debian has the documents of an archive.
fn installed_document(name: &str) -> Option<String> {
    Some(match name {
        "completions/skewbridge.bash" => {
            "usr/share/bash-completion/completions/skewbridge".to_owned()
        }
        "completions/_skewbridge" => "usr/share/zsh/vendor-completions/_skewbridge".to_owned(),
        "completions/skewbridge.fish" => {
            "usr/share/fish/vendor_completions.d/skewbridge.fish".to_owned()
        }
        _ => {
            let page = name.strip_prefix("man/")?;
            format!("usr/share/man/man1/{page}")
        }
    })
}

/// In KiB, rounded up for each file.
fn installed_size(staging: &Staging) -> Result<u64, StepError> {
    let mut size = 0;
    for name in staging.files()? {
        let path = staging.root().join(name);
        let file = std::fs::symlink_metadata(&path).map_err(super::staging::failed(&path))?;
        size += file.len().div_ceil(1024);
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_where_debian_has_them() {
        let rows = [
            (
                "man/skewbridge-serve.1.gz",
                Some("usr/share/man/man1/skewbridge-serve.1.gz"),
            ),
            (
                "completions/skewbridge.bash",
                Some("usr/share/bash-completion/completions/skewbridge"),
            ),
            (
                "completions/_skewbridge",
                Some("usr/share/zsh/vendor-completions/_skewbridge"),
            ),
            ("completions/skewbridge.ps1", None),
        ];
        for (name, installed) in rows {
            assert_eq!(installed_document(name).as_deref(), installed, "{name}");
        }
    }
}
