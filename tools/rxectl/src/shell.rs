// SPDX-License-Identifier: GPL-2.0
//! Names in the shell commands of remedies.

use std::borrow::Cow;

/// Returns a name as one word of a shell command, quoted if a shell would not take it as it is:
/// network devices, namespaces and RDMA devices can be called `a;reboot`.
pub fn word(name: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.:@-".contains(c);
    match !name.is_empty() && name.chars().all(plain) {
        true => name.into(),
        false => format!("'{}'", name.replace('\'', r"'\''")).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn plain_names_are_not_quoted() {
        for name in ["eth0", "br-lan.7", "wlan0:1", "veth0@if3", "rxe_0"] {
            assert_eq!(word(name), name);
        }
    }

    #[test]
    fn a_shell_takes_each_name_as_one_word() {
        for name in [
            "a;reboot", "it's", "''", "", " ", "$(x)", "`x`", "\\", "a\nb", "*", "~", "#", "é",
            "!x",
        ] {
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("printf '<%s>' {}", word(name))]);
            let printed = shell.output().unwrap().stdout;
            assert_eq!(String::from_utf8(printed).unwrap(), format!("<{name}>"));
        }
    }
}
