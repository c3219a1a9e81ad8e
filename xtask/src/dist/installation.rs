//! Installs the Debian package, and removes it, in a copy of this machine's file system that ends
//! with the test: an overlay in a mount namespace.

use std::path::Path;
use std::process::Command;

use super::packages::VERSION;
use super::platform::Architecture;
use super::staging::{Staging, failed};
use crate::debian_packages::{self, RequiredProgram};
use crate::step::{StepError, output};

const TOOLS: [RequiredProgram; 5] = [
    RequiredProgram {
        program: "bash",
        packages: &["bash"],
    },
    RequiredProgram {
        program: "deb-systemd-helper",
        packages: &["init-system-helpers"],
    },
    RequiredProgram {
        program: "systemctl",
        packages: &["systemd"],
    },
    RequiredProgram {
        program: "adduser",
        packages: &["adduser"],
    },
    RequiredProgram {
        program: "unshare",
        packages: &["util-linux"],
    },
];

/// Runs the second script in a copy of `/`. Arguments: an empty directory, the package.
const IN_A_COPY: &str = r#"
set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --bind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
cp "$2" "$1/root/skewbridge.deb"
chroot "$1/root" sh -c "$3"
"#;

/// What an administrator does. Each line that starts with `=` is compared.
const INSTALL_AND_REMOVE: &str = r#"
set -eu
export DEBIAN_FRONTEND=noninteractive
unit=/usr/lib/systemd/system/skewbridge.service
own_unit=/etc/systemd/system/skewbridge.service
enablement=/etc/systemd/system/multi-user.target.wants/skewbridge.service
state=/var/lib/systemd/deb-systemd-helper-enabled
# `/lib` is a link to `/usr/lib`.
link() { (readlink "$enablement" || echo none) | sed s,^/usr/lib/,/lib/,; }

dpkg --install /skewbridge.deb
for directory in /etc/skewbridge /var/lib/skewbridge; do
    echo "= $(stat --format='%n %U:%G %a' $directory)"
done
echo "= $(skewbridge version)"
echo "= $(kubectl-skewbridge skew --help | grep -o 'kubectl skewbridge skew' | head -n 1)"
echo "= $(gzip --decompress --stdout /usr/share/man/man1/skewbridge-serve.1.gz | grep -c '^\.TH')"
echo "= $(grep '^ExecStart=' $unit)"
echo "= bash: $(bash -c '. "$1" && complete -p skewbridge' bash \
    /usr/share/bash-completion/completions/skewbridge | grep -o 'skewbridge$')"
echo "= zsh: $(head -n 1 /usr/share/zsh/vendor-completions/_skewbridge)"
echo "= fish: $(grep -c -m 1 'complete .*skewbridge' \
    /usr/share/fish/vendor_completions.d/skewbridge.fish)"
echo "= enablement: $(link)"

systemctl enable skewbridge.service
dpkg --install /skewbridge.deb
echo "= again $(getent passwd skewbridge | cut -d : -f 1,6,7)"
echo "= enablement again: $(link)"
dpkg --remove skewbridge
echo "= removed $(find /usr/bin/skewbridge $unit 2>/dev/null | wc -l)"
echo "= enablement removed: $(link)"

dpkg --install /skewbridge.deb
cp $unit $own_unit
systemctl enable skewbridge.service
dpkg --remove skewbridge
dpkg --purge skewbridge
echo "= enablement of an own unit: $(link)"

rm $own_unit $enablement
dpkg --install /skewbridge.deb
systemctl enable skewbridge.service
dpkg --purge skewbridge
echo "= enablement purged: $(link)"
echo "= purged $(find /var/lib/skewbridge $state -path '*skewbridge*' 2>/dev/null | wc -l)"
"#;

/// Installs the package several times, removes and purges it, with the service enabled.
pub(super) fn test(architecture: Architecture, out: &Path) -> Result<(), StepError> {
    debian_packages::ensure(&TOOLS)?;
    let package = format!("skewbridge_{VERSION}_{}.deb", architecture.name());
    let copy = Staging::new(out.join(".installation"))?;
    let mut unshare = Command::new("unshare");
    unshare
        .args([
            "--mount",
            "--propagation=private",
            "sh",
            "-c",
            IN_A_COPY,
            "sh",
        ])
        .arg(copy.root())
        .arg(out.join(&package))
        .arg(INSTALL_AND_REMOVE);
    let printed = output(&mut unshare);
    std::fs::remove_dir_all(copy.root()).map_err(failed(copy.root()))?;
    let printed = printed?;
    let seen: Vec<_> = printed
        .lines()
        .filter_map(|line| line.strip_prefix("= "))
        .collect();
    let version = format!("skewbridge {VERSION}");
    let expected = [
        "/etc/skewbridge root:skewbridge 750",
        "/var/lib/skewbridge skewbridge:skewbridge 700",
        &version,
        "kubectl skewbridge skew",
        "1",
        "ExecStart=/usr/bin/skewbridge serve --config=/etc/skewbridge/config.yaml",
        "bash: skewbridge",
        "zsh: #compdef skewbridge",
        "fish: 1",
        "enablement: none",
        "again skewbridge:/var/lib/skewbridge:/usr/sbin/nologin",
        "enablement again: /lib/systemd/system/skewbridge.service",
        "removed 0",
        "enablement removed: none",
        "enablement of an own unit: /etc/systemd/system/skewbridge.service",
        "enablement purged: none",
        "purged 0",
    ];
    if seen != expected {
        return Err(StepError(format!(
            "{package}: {seen:#?}, and not {expected:#?}, in:\n{printed}"
        )));
    }
    println!("{package}: installed, removed and purged.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::debian::DIRECTORIES;
    use super::*;

    #[test]
    fn every_directory_of_the_package_is_checked() {
        for directory in DIRECTORIES {
            assert!(
                INSTALL_AND_REMOVE.contains(&format!("/{directory}")),
                "{directory}"
            );
        }
    }
}
