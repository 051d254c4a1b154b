// SPDX-License-Identifier: GPL-2.0
//! Management interfaces: sysfs attributes, RDMA netlink, links, network devices; privileged
//! changes, and queries that every process may make.

use crate::calls::Args;
use crate::exec::{Body, Worker};
use crate::sys;
use crate::world::{Kind, X_QPN};

/// `RDMA_NL_NLDEV`, in the upper bits of the type of a message.
const NLDEV: u16 = 5 << 10;
/// `NLM_F_REQUEST` with `NLM_F_ACK`, or with `NLM_F_DUMP`.
const REQUEST_ACK: u16 = 5;
const REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
/// Statistics of queue pairs, as value of [`attr::STAT_RES`].
const STAT_RES_QP: u32 = 19;

/// Commands of `rdma_netlink.h`.
mod command {
    pub const GET: u16 = 1;
    pub const NEWLINK: u16 = 3;
    pub const DELLINK: u16 = 4;
    pub const PORT_GET: u16 = 5;
    pub const SYS_GET: u16 = 6;
    pub const RES_GET: u16 = 9;
    pub const RES_QP_GET: u16 = 10;
    pub const RES_CM_ID_GET: u16 = 11;
    pub const RES_CQ_GET: u16 = 12;
    pub const RES_MR_GET: u16 = 13;
    pub const RES_PD_GET: u16 = 14;
    pub const GET_CHARDEV: u16 = 15;
    pub const STAT_SET: u16 = 16;
    pub const STAT_GET: u16 = 17;
    pub const STAT_DEL: u16 = 18;
    pub const RES_QP_GET_RAW: u16 = 19;
    pub const RES_CQ_GET_RAW: u16 = 20;
    pub const RES_MR_GET_RAW: u16 = 21;
    pub const RES_CTX_GET: u16 = 22;
    pub const RES_SRQ_GET: u16 = 23;
    pub const STAT_GET_STATUS: u16 = 24;
    pub const RES_SRQ_GET_RAW: u16 = 25;
}

/// Attributes of `rdma_netlink.h`.
mod attr {
    pub const DEV_INDEX: u16 = 1;
    pub const DEV_NAME: u16 = 2;
    pub const PORT_INDEX: u16 = 3;
    pub const NDEV_NAME: u16 = 51;
    pub const LINK_TYPE: u16 = 65;
    pub const STAT_MODE: u16 = 74;
    pub const STAT_RES: u16 = 75;
    pub const STAT_AUTO_MASK: u16 = 76;
    pub const STAT_COUNTER_ID: u16 = 79;
    pub const RES_LQPN: u16 = 21;
    pub const RES_PDN: u16 = 60;
    pub const RES_CQN: u16 = 61;
    pub const RES_MRN: u16 = 62;
    pub const RES_CM_IDN: u16 = 63;
    pub const RES_CTXN: u16 = 64;
    pub const RES_SRQN: u16 = 90;
}

fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut out = Body::new()
        .bytes(&((4 + data.len()) as u16).to_ne_bytes())
        .bytes(&kind.to_ne_bytes())
        .bytes(data)
        .0;
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// Collects the attributes below a sysfs folder that belong to the device itself.
pub fn attributes(folder: &str, depth: u32, found: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path().to_string_lossy().into_owned();
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() && depth > 0 {
            attributes(&path, depth - 1, found);
        } else if kind.is_file() {
            found.push(path);
        }
    }
}

impl Worker {
    /// Reads an attribute.
    pub fn sysfs(&self, a: &Args) -> Result<i64, i32> {
        let path = self
            .attributes
            .get(a[0] as usize % self.attributes.len().max(1))
            .ok_or(libc::ENOENT)?;
        let fd = sys::open(path, libc::O_RDONLY)?;
        let mut data = [0; 4096];
        let result = sys::read(fd, &mut data[..[4096, 1, 7, 0][a[1] as usize % 4]]);
        sys::close(fd);
        result.map(|n| n as i64)
    }

    /// Writes an attribute, usually the P_Key table.
    pub fn sysfs_write(&self, a: &Args) -> Result<i64, i32> {
        let chosen: Vec<&String> = self
            .attributes
            .iter()
            .filter(|path| {
                path.starts_with("/sys/class/infiniband/")
                    && (a[1] % 2 == 0) == path.ends_with("pkey_table")
            })
            .collect();
        let path = chosen
            .get(a[0] as usize % chosen.len().max(1))
            .ok_or(libc::ENOENT)?;
        // Not `uevent`: user space would be notified of devices that have not changed, and may
        // rename them.
        if path.ends_with("/uevent") {
            return Err(libc::EPERM);
        }
        let text = match a[2] % 6 {
            0 => format!("{} {:#x}\n", a[3] % 130, a[4] & 0xffff),
            1 => format!("{} 0xffff\n", a[3] % 4),
            2 => format!("{}\n", a[3]),
            3 => "x".repeat(a[3] as usize % 5000),
            4 => String::new(),
            _ => format!("{} {} {}", a[3] as i32, a[4], a[5]),
        };
        let fd = sys::open(path, libc::O_WRONLY)?;
        let result = sys::write(fd, text.as_bytes());
        sys::close(fd);
        result.map(|n| n as i64)
    }

    fn request(&self, command: u16, flags: u16, attrs: &[u8]) -> Result<i64, i32> {
        let message = Body::new()
            .u32s(&[16 + attrs.len() as u32])
            .bytes(&(NLDEV | command).to_ne_bytes())
            .bytes(&flags.to_ne_bytes())
            .u32s(&[1, 0])
            .bytes(attrs)
            .0;
        sys::write(self.netlink, &message)?;
        let mut last = 0;
        let mut response = vec![0; 1 << 16];
        // The responses are queued when the request returns, as far as the socket buffer holds
        // them.
        while let Ok(len) = sys::read(self.netlink, &mut response) {
            if len >= 20 && response[4..6] == NLMSG_ERROR.to_ne_bytes() {
                last = response[16..20].try_into().map_or(0, i32::from_ne_bytes);
            }
        }
        if last < 0 {
            Err(-last)
        } else {
            Ok(0)
        }
    }

    fn index(arg: u32) -> Vec<u8> {
        attribute(attr::DEV_INDEX, &(arg % 6).to_ne_bytes())
    }

    /// Queries devices, ports, resources with the driver's details, or statistics.
    pub fn netlink_query(&self, a: &Args) -> Result<i64, i32> {
        const QUERIES: [u16; 18] = [
            command::GET,
            command::PORT_GET,
            command::SYS_GET,
            command::RES_GET,
            command::RES_QP_GET,
            command::RES_CM_ID_GET,
            command::RES_CQ_GET,
            command::RES_MR_GET,
            command::RES_PD_GET,
            command::GET_CHARDEV,
            command::STAT_GET,
            command::RES_QP_GET_RAW,
            command::RES_CQ_GET_RAW,
            command::RES_MR_GET_RAW,
            command::RES_CTX_GET,
            command::RES_SRQ_GET,
            command::STAT_GET_STATUS,
            command::RES_SRQ_GET_RAW,
        ];
        let query = QUERIES[a[0] as usize % QUERIES.len()];
        let mut attrs = Self::index(a[1]);
        attrs.extend(attribute(attr::PORT_INDEX, &1u32.to_ne_bytes()));
        if a[2] % 4 == 1 {
            let kinds = [
                attr::RES_LQPN,
                attr::RES_PDN,
                attr::RES_CQN,
                attr::RES_MRN,
                attr::RES_CM_IDN,
                attr::RES_CTXN,
                attr::RES_SRQN,
            ];
            let qp = self.world.get(Kind::Qp, self.near(Kind::Qp, a[3])).x[X_QPN] as u32;
            let value = if a[4] % 2 == 0 { qp } else { a[4] };
            attrs.extend(attribute(
                kinds[a[5] as usize % kinds.len()],
                &value.to_ne_bytes(),
            ));
        }
        if matches!(query, command::STAT_GET | command::STAT_GET_STATUS) {
            attrs.extend(attribute(attr::STAT_RES, &STAT_RES_QP.to_ne_bytes()));
        }
        self.request(
            query,
            if a[2] % 4 == 0 {
                REQUEST_DUMP
            } else {
                REQUEST_ACK
            },
            &attrs,
        )
    }

    /// Binds queue pairs to counters and unbinds them, and sends requests with arbitrary
    /// attributes.
    pub fn netlink_admin(&self, a: &Args) -> Result<i64, i32> {
        let mut attrs = Self::index(a[1]);
        attrs.extend(attribute(attr::PORT_INDEX, &1u32.to_ne_bytes()));
        attrs.extend(attribute(attr::STAT_RES, &STAT_RES_QP.to_ne_bytes()));
        let qpn = self.world.get(Kind::Qp, self.near(Kind::Qp, a[2])).x[X_QPN] as u32;
        match a[0] % 4 {
            0 => attrs.extend(attribute(attr::STAT_MODE, &2u32.to_ne_bytes())),
            1 => {
                attrs.extend(attribute(attr::STAT_MODE, &(a[3] % 4).to_ne_bytes()));
                attrs.extend(attribute(attr::STAT_AUTO_MASK, &(a[4] % 8).to_ne_bytes()));
                return self.request(command::STAT_SET, REQUEST_ACK, &attrs);
            }
            2 => attrs.extend(attribute(attr::STAT_COUNTER_ID, &(a[3] % 16).to_ne_bytes())),
            _ => attrs.extend(attribute(a[3] as u16 % 110, &a[4].to_ne_bytes())),
        }
        attrs.extend(attribute(attr::RES_LQPN, &qpn.to_ne_bytes()));
        let command = if a[0] % 4 == 2 {
            command::STAT_DEL
        } else {
            command::STAT_SET
        };
        self.request(command, REQUEST_ACK, &attrs)
    }

    /// Adds or deletes the link of the third device while it is in use.
    pub fn link(&self, a: &Args) -> Result<i64, i32> {
        let Some(device) = self.devices.get(2) else {
            return Err(libc::ENODEV);
        };
        if a[0] % 2 == 0 {
            let mut attrs = attribute(attr::DEV_NAME, format!("{}\0", device.name).as_bytes());
            attrs.extend(attribute(attr::NDEV_NAME, b"fz0\0"));
            attrs.extend(attribute(attr::LINK_TYPE, b"rxe_rs\0"));
            return self.request(command::NEWLINK, REQUEST_ACK, &attrs);
        }
        // The device has another index each time.
        let index = self.index_of(&device.name).ok_or(libc::ENODEV)?;
        self.request(
            command::DELLINK,
            REQUEST_ACK,
            &attribute(attr::DEV_INDEX, &u32::to_ne_bytes(index)),
        )
    }

    /// Returns the RDMA core's index of a device.
    fn index_of(&self, name: &str) -> Option<u32> {
        let message = Body::new()
            .u32s(&[16])
            .bytes(&(NLDEV | command::GET).to_ne_bytes())
            .bytes(&REQUEST_DUMP.to_ne_bytes())
            .u32s(&[1, 0])
            .0;
        sys::write(self.netlink, &message).ok()?;
        let mut response = vec![0; 1 << 16];
        let mut found = None;
        while let Ok(len) = sys::read(self.netlink, &mut response) {
            let mut at = 0;
            while at + 16 <= len {
                let size = u32::from_ne_bytes(response[at..at + 4].try_into().ok()?) as usize;
                let message = response.get(at..at + size.max(16))?;
                let mut index = None;
                let mut attrs = 16;
                while attrs + 4 <= message.len() {
                    let len = usize::from(u16::from_ne_bytes([message[attrs], message[attrs + 1]]));
                    let kind = u16::from_ne_bytes([message[attrs + 2], message[attrs + 3]]);
                    let Some(data) = message.get(attrs + 4..attrs + len.max(4)) else {
                        break;
                    };
                    if kind == attr::DEV_INDEX {
                        index = data.try_into().ok().map(u32::from_ne_bytes);
                    } else if kind == attr::DEV_NAME
                        && data.strip_suffix(b"\0") == Some(name.as_bytes())
                    {
                        found = index;
                    }
                    attrs += len.max(4).next_multiple_of(4);
                }
                at += size.max(16).next_multiple_of(4);
            }
        }
        found
    }

    /// Changes a network device: down, up, MTU.
    pub fn netdev(&self, a: &Args) -> Result<i64, i32> {
        let net = self
            .nets
            .get(a[0] as usize % self.nets.len().max(1))
            .ok_or(libc::ENODEV)?;
        let mut request = vec![0; 40];
        request[..net.netdev.len()].copy_from_slice(net.netdev.as_bytes());
        const UP: u16 = 1;
        const SIOCSIFFLAGS: u64 = 0x8914;
        const SIOCSIFMTU: u64 = 0x8922;
        match a[1] % 4 {
            0 => {
                sys::ioctl(net.socket, SIOCSIFFLAGS, &mut request)?;
                sys::pause(u64::from(a[2] % 4) * 1000);
                request[16..18].copy_from_slice(&UP.to_ne_bytes());
                sys::ioctl(net.socket, SIOCSIFFLAGS, &mut request)
            }
            1 => {
                request[16..18].copy_from_slice(&UP.to_ne_bytes());
                sys::ioctl(net.socket, SIOCSIFFLAGS, &mut request)
            }
            _ => {
                let mtu = [1500u32, 9000, 4200, 1280, 576, 68, 65535, a[3]][a[2] as usize % 8];
                request[16..20].copy_from_slice(&mtu.to_ne_bytes());
                sys::ioctl(net.socket, SIOCSIFMTU, &mut request)
            }
        }
    }
}
