// SPDX-License-Identifier: GPL-2.0
//! `rxectl doctor`: looks for what keeps RDMA from working, and gives a remedy for each finding.

mod attack;
mod links;

use crate::cli::Doctor;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::frame::ROCE_PORT;
use crate::host::{Host, ToolError};
use crate::output::Out;
use serde::Serialize;
use std::fs;
use std::path::Path;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    /// Correct.
    Ok,
    /// Works but could be improved, or could not be checked.
    Note,
    /// Keeps something from working.
    Wrong,
}

/// Result of a check.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    /// What was checked.
    about: String,
    /// The result.
    found: String,
    /// The remedy, if one is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// The findings of all checks.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, about: &str, found: impl Into<String>) {
        self.add(Level::Ok, about, found.into(), None);
    }

    fn note(&mut self, about: &str, found: impl Into<String>, fix: impl Into<String>) {
        self.add(Level::Note, about, found.into(), Some(fix.into()));
    }

    fn wrong(&mut self, about: &str, found: impl Into<String>, fix: impl Into<String>) {
        self.add(Level::Wrong, about, found.into(), Some(fix.into()));
    }

    fn add(&mut self, level: Level, about: &str, found: String, fix: Option<String>) {
        self.0.push(Finding {
            level,
            about: about.into(),
            found,
            fix,
        });
    }
}

/// Returns the kernel release in the `vermagic` of a module file, if it has one.
fn built_for(module: &[u8]) -> Option<String> {
    const KEY: &[u8] = b"vermagic=";
    let at = module.windows(KEY.len()).position(|window| window == KEY)?;
    let value = module.get(at.checked_add(KEY.len())?..)?;
    let end = value.iter().position(|byte| matches!(byte, 0 | b' '))?;
    let release = String::from_utf8_lossy(value.get(..end)?).into_owned();
    (!release.is_empty()).then_some(release)
}

/// Returns the kernels in /lib/modules for which the module is installed.
fn installed_for(host: &Host, module: &str) -> Vec<String> {
    fn holds(folder: &Path, module: &str, depth: u8) -> bool {
        let Ok(entries) = fs::read_dir(folder) else {
            return false;
        };
        entries.filter_map(std::result::Result::ok).any(|entry| {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let name = entry.file_name().to_string_lossy().replace('-', "_");
            let ours = name
                .strip_prefix(module)
                .is_some_and(|rest| rest == ".ko" || rest.starts_with(".ko."));
            if is_folder {
                depth > 0 && holds(&entry.path(), module, depth.saturating_sub(1))
            } else {
                ours
            }
        })
    }
    // Folders of out-of-tree modules.
    let places = ["updates", "extra", "weak-updates", "misc"];
    let kernels = host.names("/lib/modules").into_iter();
    kernels
        .filter(|kernel| {
            places.iter().any(|place| {
                let folder = host.path(&format!("/lib/modules/{kernel}/{place}"));
                holds(&folder, module, 3)
            })
        })
        .collect()
}

/// Returns why the package rxe-rs-dkms has not built the module for a kernel, and what to do;
/// `None` without that package.
fn not_built(host: &Host, release: &str) -> Option<(String, String)> {
    let said = host.tool("rxe-dkms", &["why", release]).ok()?;
    let (reason, remedy) = said.trim().split_once('\n')?;
    Some((reason.to_string(), remedy.to_string()))
}

/// Returns true if the kernel loads signed modules only: `module.sig_enforce=1`, or a lockdown, as
/// with Secure Boot.
fn demands_signatures(host: &Host) -> bool {
    let enforced = host.read("/sys/module/module/parameters/sig_enforce");
    let lockdown = host.read("/sys/kernel/security/lockdown");
    enforced.is_some_and(|value| value == "Y")
        || lockdown.is_some_and(|modes| !modes.contains("[none]"))
}

/// Returns where the document about the installation is: the package of the tools has a copy, and a
/// clone has the original.
fn install_document(host: &Host) -> &'static str {
    const PACKAGED: &str = "/usr/share/doc/rxe-rs-tools/install.md";
    match host.exists(PACKAGED) {
        true => PACKAGED,
        false => "docs/install.md",
    }
}

/// Returns the remedy for a module without a signature.
fn sign(host: &Host) -> String {
    format!(
        "sign it: make deb SIGN_KEY=KEY SIGN_CERT=CERTIFICATE; enrol the key: mokutil --import \
         CERTIFICATE, and reboot ({})",
        install_document(host)
    )
}

/// Reports that the module is installed for the running kernel and not loaded.
fn not_loaded(host: &Host, report: &mut Report) {
    if host.read("/proc/sys/kernel/modules_disabled").as_deref() == Some("1") {
        return report.wrong(
            "rxe_rs",
            "rxe_rs is not loaded, and kernel.modules_disabled is 1: the kernel loads no module \
             until the next boot",
            "load rxe_rs before something sets kernel.modules_disabled (modules-load.d(5)), and \
             reboot",
        );
    }
    // On a full disk depmod fails or truncates its lists, and the installation succeeds all the
    // same.
    let known = host.tool("modinfo", &["-n", "rxe_rs"]);
    if matches!(known, Err(ToolError::Failed(_))) {
        return report.wrong(
            "rxe_rs",
            "rxe_rs is installed for this kernel, but modprobe does not know it; perhaps the disk \
             was full when it was installed",
            format!(
                "free some space, then: depmod {}; modprobe rxe_rs",
                host.kernel_release()
            ),
        );
    }
    if !demands_signatures(host) {
        return report.wrong(
            "rxe_rs",
            "rxe_rs is installed for this kernel, but not loaded",
            "modprobe rxe_rs",
        );
    }
    let signer = host.tool("modinfo", &["-F", "signer", "rxe_rs"]);
    let signer = signer.as_deref().unwrap_or_default().trim();
    if signer.is_empty() {
        report.wrong(
            "rxe_rs",
            "rxe_rs is installed for this kernel without a signature, and the kernel loads signed \
             modules only: modprobe says that the key was rejected or the operation not permitted",
            sign(host),
        );
    } else {
        report.wrong(
            "rxe_rs",
            format!(
                "rxe_rs is installed for this kernel, but not loaded; the kernel loads signed \
                 modules only, and this one has a signature of {signer:?}"
            ),
            "modprobe rxe_rs; if that is refused, enrol the key: mokutil --import CERTIFICATE \
             (DKMS: /var/lib/dkms/mok.pub), and reboot",
        );
    }
}

/// The series of kernels that the module is for.
const SERIES: [&str; 2] = ["7.2", "7.3"];

/// Returns true if the module can be built for a kernel.
fn is_supported(release: &str) -> bool {
    let mut series = SERIES.iter();
    series.any(|series| {
        let rest = release.strip_prefix(series);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// What to do if there is a module for another kernel than the one that is running.
fn boot_or_build(running: &str) -> &'static str {
    match is_supported(running) {
        true => "boot that kernel, or build the module for this one (make)",
        false => "boot that kernel",
    }
}

/// Checks which driver is loaded, and whether there is a module for the running kernel.
fn drivers(host: &Host, report: &mut Report) {
    let (ours, theirs) = (host.module("rxe_rs"), host.module("rdma_rxe"));
    if theirs {
        report.wrong(
            "rdma_rxe",
            "rdma_rxe is loaded: rxe_rs refuses to load beside it, both own UDP port 4791",
            "rdma link del each of its devices (rxectl status), then rmmod rdma_rxe; \
             to keep it away: echo blacklist rdma_rxe > /etc/modprobe.d/no-rdma_rxe.conf",
        );
    } else {
        report.ok("rdma_rxe", "not loaded");
    }
    let release = host.kernel_release();
    if ours {
        let version = host.read("/sys/module/rxe_rs/version");
        let version = version.map_or(String::new(), |version| format!(" {version}"));
        report.ok(
            "rxe_rs",
            format!("rxe_rs{version} is loaded, on kernel {release}"),
        );
        return;
    }
    let kernels = installed_for(host, "rxe_rs");
    if kernels.contains(&release) {
        not_loaded(host, report);
    } else if let Some((reason, remedy)) = not_built(host, &release) {
        report.wrong(
            "rxe_rs",
            format!("rxe_rs is not installed for kernel {release}: {reason}"),
            remedy,
        );
    } else if kernels.is_empty() && !is_supported(&release) {
        report.wrong(
            "rxe_rs",
            format!(
                "rxe_rs is for Linux {}, and {release} is running",
                SERIES.join(" and ")
            ),
            format!(
                "install such a kernel ({}, The kernel) and boot it; then install the module for it",
                install_document(host)
            ),
        );
    } else if kernels.is_empty() {
        report.wrong(
            "rxe_rs",
            format!("rxe_rs is not loaded, and not installed for kernel {release}"),
            format!(
                "build the package rxe-rs-modules-{release} (make deb) and install it; \
                 or build the module (make) and load it: make insmod-help"
            ),
        );
    } else {
        report.wrong(
            "rxe_rs",
            format!(
                "rxe_rs is built for kernel {}, but {release} is running",
                kernels.join(", ")
            ),
            boot_or_build(&release),
        );
    }
}

/// What the kernel finds at the end of a signed module (`include/linux/module_signature.h`).
const SIGNED: &[u8] = b"~Module signature appended~\n";

/// Checks whether a module file can be loaded into the running kernel.
fn module_file(host: &Host, file: &Path, report: &mut Report) -> Result<()> {
    let bytes = fs::read(file).map_err(|error| {
        Error::new(
            format!("cannot read {}: {error}", file.display()),
            "name the rxe_rs.ko that was built, such as out/7.3/rxe_rs.ko",
        )
    })?;
    let release = host.kernel_release();
    let name = file.display();
    match built_for(&bytes) {
        Some(built) if built == release => {
            if demands_signatures(host) && !bytes.ends_with(SIGNED) {
                report.wrong(
                    "module file",
                    format!("{name} has no signature, and the kernel loads signed modules only"),
                    sign(host),
                );
            } else {
                report.ok(
                    "module file",
                    format!("{name} is built for the running kernel {release}"),
                );
            }
        }
        Some(built) => report.wrong(
            "module file",
            format!("{name} is built for kernel {built}, but {release} is running"),
            boot_or_build(&release),
        ),
        None => report.wrong(
            "module file",
            format!("{name} is no kernel module, or a compressed one"),
            "name an uncompressed .ko file",
        ),
    }
    Ok(())
}

/// Returns the inodes of UDP sockets bound to the RoCE port in this network namespace.
fn port_sockets(host: &Host) -> Vec<u64> {
    let mut inodes = Vec::new();
    for file in ["/proc/self/net/udp", "/proc/self/net/udp6"] {
        let text = host.read(file).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (Some(local), Some(inode)) = (words.get(1), words.get(9)) else {
                continue;
            };
            let port = local
                .rsplit_once(':')
                .and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            if port == Some(ROCE_PORT) {
                inodes.extend(inode.parse::<u64>());
            }
        }
    }
    inodes
}

/// Returns PID and name of a process that has one of the sockets open. Kernel sockets belong to no
/// process.
fn owner(host: &Host, inodes: &[u64]) -> Option<(String, String)> {
    let wanted: Vec<String> = inodes
        .iter()
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let processes = host.names("/proc").into_iter();
    let mut processes = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let process = processes.find(|process| {
        let descriptors = host.names(&format!("/proc/{process}/fd"));
        descriptors.iter().any(|descriptor| {
            let link = fs::read_link(host.path(&format!("/proc/{process}/fd/{descriptor}")));
            link.is_ok_and(|target| wanted.iter().any(|wanted| target == Path::new(wanted)))
        })
    })?;
    let name = host.read(&format!("/proc/{process}/comm"));
    // A name with a line break must not look like a finding.
    let name = name.unwrap_or_default().replace(char::is_control, "?");
    Some((process, name))
}

/// Checks whether another program owns the RoCE port.
fn udp_port(host: &Host, report: &mut Report) {
    const ABOUT: &str = "UDP port 4791";
    let sockets = port_sockets(host);
    // The driver has sockets only in the network namespaces of its links, and in the shared mode of
    // the RDMA core the devices of other namespaces are seen here as well. A device of which `rdma`
    // does not say where it is may be in this one.
    let mut devices = Device::all(host).into_iter();
    let driver = devices.any(|device| device.is_here(host) != Some(false));
    if sockets.is_empty() {
        report.ok(ABOUT, "free in this network namespace");
    } else if let Some((process, name)) = owner(host, &sockets) {
        report.wrong(
            ABOUT,
            format!("taken by process {process} ({name})"),
            format!(
                "end it (kill {process}) or have it use another port; then recreate the RDMA link"
            ),
        );
    } else if driver {
        report.ok(ABOUT, "held by the driver");
    } else if host.is_root() {
        report.wrong(
            ABOUT,
            "held inside the kernel by something that is not a software RoCE driver, or by a process of another container",
            "find it: ss -ulnp 'sport = :4791', ip -d link show type vxlan; then give it another port",
        );
    } else {
        report.note(
            ABOUT,
            "in use; only root can see by which process",
            "sudo rxectl doctor",
        );
    }
}

/// Checks the limit on locked memory, which regions count against.
fn memlock(host: &Host, report: &mut Report) {
    const ABOUT: &str = "memory lock limit";
    // CAP_IPC_LOCK of the initial user namespace overrides the limit.
    const CAP_IPC_LOCK: u32 = 14;
    const FIX: &str = "ulimit -l unlimited; for every login: \
        echo '* - memlock unlimited' > /etc/security/limits.d/rdma.conf (in a service: LimitMEMLOCK=infinity)";
    let limits = host.read("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft.map(|soft| (soft, soft.parse::<u64>())) {
        Some(("unlimited", _)) => report.ok(ABOUT, "unlimited"),
        Some((_, Ok(_)))
            if host.has_capability(CAP_IPC_LOCK) && host.in_initial_user_namespace() =>
        {
            report.ok(ABOUT, "does not bind this user (CAP_IPC_LOCK)");
        }
        Some((_, Ok(bytes))) if bytes <= 64 << 10 => report.wrong(
            ABOUT,
            format!(
                "{} KiB: hardly any memory region can be registered",
                bytes >> 10
            ),
            FIX,
        ),
        Some((_, Ok(bytes))) => report.note(
            ABOUT,
            format!(
                "{} KiB in all for the memory regions of a process",
                bytes >> 10
            ),
            FIX,
        ),
        _ => report.note(ABOUT, "could not be read", "see what ulimit -l says"),
    }
}

/// Checks the modules, device nodes and libraries that programs need.
fn user_space(host: &Host, report: &mut Report) {
    for (module, folder, what) in [
        ("ib_uverbs", "/sys/class/infiniband_verbs", "verbs"),
        (
            "rdma_ucm",
            "/sys/class/misc/rdma_cm",
            "the connection manager",
        ),
    ] {
        if host.module(module) || host.exists(folder) {
            report.ok(module, "loaded");
        } else {
            report.wrong(
                module,
                format!("not loaded: programs cannot use {what}"),
                format!("modprobe {module}; at every start: echo {module} > /etc/modules-load.d/{module}.conf"),
            );
        }
    }
    // This class has no namespaces: it shows the nodes of all devices, also of those that belong to
    // other namespaces.
    let folder = "/sys/class/infiniband_verbs";
    let devices = Device::all(host);
    let mut nodes: Vec<String> = host.names(folder);
    nodes.retain(|node| {
        let of = host.read(&format!("{folder}/{node}/ibdev"));
        of.is_some_and(|of| devices.iter().any(|device| device.name == of))
    });
    if host.module("rdma_ucm") {
        nodes.push("rdma_cm".into());
    }
    for node in nodes {
        let path = format!("/dev/infiniband/{node}");
        if host.exists(&path) {
            report.ok(&path, "there");
        } else {
            report.wrong(
                &path,
                "missing: the kernel offers it, but udev has not made it",
                "apt install rdma-core; udevadm trigger --subsystem-match=infiniband_verbs --subsystem-match=misc \
                 (in a container: pass /dev/infiniband in)",
            );
        }
    }
    const ABOUT: &str = "librxe";
    let folders = host.names("/usr/lib");
    let mut providers = folders
        .iter()
        .map(|folder| format!("/usr/lib/{folder}/libibverbs"))
        .chain(["/usr/lib/libibverbs".into(), "/usr/lib64/libibverbs".into()])
        .flat_map(|folder| host.names(&folder));
    let library = providers.any(|name| name.starts_with("librxe-rdmav"));
    if library && host.exists("/etc/libibverbs.d/rxe.driver") {
        report.ok(ABOUT, "installed");
    } else {
        report.wrong(
            ABOUT,
            "the librxe provider of libibverbs is not installed: programs see no device",
            "apt install ibverbs-providers",
        );
    }
}

/// Checks the programs that `rxectl` runs.
fn tools(host: &Host, report: &mut Report) {
    match host.tool("rdma", &["-V"]) {
        Err(crate::host::ToolError::Missing) => report.wrong(
            "iproute2",
            "the program rdma is missing: links cannot be made",
            "apt install iproute2",
        ),
        _ => report.ok("iproute2", "installed"),
    }
}

/// Runs all checks; true if nothing is wrong.
pub fn run(host: &Host, args: &Doctor, out: &mut Out<'_>) -> Result<bool> {
    let mut report = Report::default();
    drivers(host, &mut report);
    if let Some(file) = &args.module {
        module_file(host, file, &mut report)?;
    }
    udp_port(host, &mut report);
    user_space(host, &mut report);
    tools(host, &mut report);
    memlock(host, &mut report);
    links::examine(host, &mut report);
    let count = |level| {
        let of_level = report.0.iter().filter(|finding| finding.level == level);
        of_level.count()
    };
    let (wrong, notes) = (count(Level::Wrong), count(Level::Note));
    if out.json {
        out.document(&serde_json::json!({
            "wrong": wrong,
            "notes": notes,
            "findings": report.0,
        }))?;
        return Ok(wrong == 0);
    }
    for finding in &report.0 {
        let word = match finding.level {
            Level::Ok => "ok   ",
            Level::Note => "note ",
            Level::Wrong => "WRONG",
        };
        writeln!(out.to, "{word} {}: {}", finding.about, finding.found)?;
        if let Some(fix) = &finding.fix {
            writeln!(out.to, "        fix: {fix}")?;
        }
    }
    writeln!(out.to, "{wrong} wrong, {notes} to note")?;
    Ok(wrong == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vermagic() {
        let file = b"\x7fELF\0name=rxe_rs\0vermagic=7.3.4+deb13-amd64 SMP preempt mod_unload \0x";
        assert_eq!(built_for(file).as_deref(), Some("7.3.4+deb13-amd64"));
        assert_eq!(built_for(b"vermagic="), None);
        assert_eq!(built_for(b"vermagic= "), None);
        assert_eq!(built_for(b""), None);
    }
}
