// SPDX-License-Identifier: GPL-2.0
//! Contexts, protection domains, completion queues, shared receive queues, address handles,
//! multicast groups: by the commands and methods of `ib_user_verbs.h` and `ib_user_ioctl_cmds.h`.

use crate::calls::Args;
use crate::exec::{Body, Context, Worker};
use crate::rings::Which;
use crate::sys;
use crate::uverbs::{command, method, UHW_OUT};
use crate::world::{self, Kind};

/// Returns the size of a queue that an argument selects.
fn size(arg: u32) -> u32 {
    const SIZES: [u32; 16] = [
        64,
        16,
        100,
        1,
        31,
        500,
        4000,
        0,
        64,
        64,
        255,
        256,
        32768,
        1 << 20,
        1 << 31,
        u32::MAX,
    ];
    SIZES[arg as usize % if arg & 0xf0 == 0 { 16 } else { 6 }]
}

impl Worker {
    /// Opens a device and creates a context, which replaces context `index` of the worker.
    pub fn new_context(&mut self, index: usize, device: usize) -> Result<i64, i32> {
        let name = &self.devices.get(device).ok_or(libc::ENODEV)?.name;
        let path = std::fs::read_dir("/sys/class/infiniband_verbs")
            .ok()
            .into_iter()
            .flatten()
            .flatten()
            .find(|entry| {
                std::fs::read_to_string(entry.path().join("ibdev"))
                    .is_ok_and(|ibdev| ibdev.trim() == name)
            })
            .ok_or(libc::ENODEV)?;
        let path = format!("/dev/infiniband/{}", path.file_name().to_string_lossy());
        let fd = sys::open(&path, libc::O_RDWR)?;
        if let Err(errno) = self.command(fd, command::GET_CONTEXT, &[], 8) {
            sys::close(fd);
            return Err(errno);
        }
        let events = self.response.u32(0) as i32;
        sys::set_nonblocking(events);
        if let Some(old) = self.contexts[index].replace(Context { fd, events, device }) {
            sys::close(old.fd);
            sys::close(old.events);
        }
        Ok(i64::from(fd))
    }

    /// Replaces the private context of this worker; the objects of the previous one are destroyed.
    pub fn open_context(&mut self, a: &Args) -> Result<i64, i32> {
        let device = a[0] as usize % self.devices.len().max(1);
        self.new_context(4, device)
    }

    /// Queries device attributes, by the basic or the extended command.
    pub fn query_device(&self, a: &Args) -> Result<i64, i32> {
        let fd = self.fd(Self::context(a[0]))?;
        match a[1] % 3 {
            0 => self.command(fd, command::QUERY_DEVICE, &[], 176),
            1 => self.command_ex(
                fd,
                command::QUERY_DEVICE,
                &[0; 8],
                176 + 8 * (a[2] as usize % 24),
                0,
            ),
            _ => {
                let out = self.response.address();
                self.method(fd, method::QUERY_CONTEXT, &[(0, 4, out), (1, 8, out + 64)])
                    .map(|_| 0)
            }
        }
    }

    /// Queries port attributes and GIDs.
    pub fn query_port(&self, a: &Args) -> Result<i64, i32> {
        let fd = self.fd(Self::context(a[0]))?;
        let out = self.response.address();
        let port = u64::from(if a[2] == 0xf { a[3] } else { 1 });
        match a[1] % 4 {
            0 => self.command(
                fd,
                command::QUERY_PORT,
                &[port as u8, 0, 0, 0, 0, 0, 0, 0],
                40,
            ),
            1 => self
                .method(fd, method::QUERY_PORT, &[(0, 1, port), (1, 64, out)])
                .map(|_| 0),
            2 => self
                .method(
                    fd,
                    method::QUERY_GID_TABLE,
                    &[
                        (0, 8, 32),
                        (1, 4, 0),
                        (2, 32 * (a[4] as u16 % 128), out),
                        (3, 8, out + 8192),
                    ],
                )
                .map(|_| 0),
            _ => self
                .method(
                    fd,
                    method::QUERY_GID_ENTRY,
                    &[
                        (0, 4, port),
                        (1, 4, u64::from(a[4] % 300)),
                        (2, 4, 0),
                        (3, 32, out),
                    ],
                )
                .map(|_| 0),
        }
    }

    /// Allocates a protection domain.
    pub fn alloc_pd(&self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        self.command(self.fd(context)?, command::ALLOC_PD, &[], 4)?;
        self.world.put(
            Kind::Pd,
            Self::slot(a[0]),
            context,
            self.response.u32(0),
            &[],
        );
        Ok(0)
    }

    /// Destroys an object by its command, or by the method that most types have.
    pub fn destroy(&self, kind: Kind, a: &Args) -> Result<i64, i32> {
        let slot = self.near(kind, a[0]);
        let object = self.world.get(kind, slot);
        let context = if a[1] == 15 {
            Self::context(a[2])
        } else {
            object.context
        };
        let fd = self.fd(context)?;
        let handle = if a[0] >= 0xffff_0000 {
            a[0] & 0xff
        } else {
            object.handle
        };
        let result = self.destroy_handle(kind, fd, handle, a);
        // Occasionally it is not marked as destroyed, so that later calls use the stale handle.
        if result.is_ok() && a[3] % 4 != 0 {
            self.world.mark_destroyed(kind, slot);
        }
        result
    }

    fn destroy_handle(&self, kind: Kind, fd: i32, handle: u32, a: &Args) -> Result<i64, i32> {
        if a[1] % 4 == 1 {
            let out = self.response.address();
            let value = u64::from(handle);
            return match kind {
                Kind::Pd => self.method(fd, method::PD_DESTROY, &[(0, 0, value)]),
                Kind::Mr => self.method(fd, method::MR_DESTROY, &[(0, 0, value)]),
                Kind::Mw => self.method(fd, method::MW_DESTROY, &[(0, 0, value)]),
                Kind::Ah => self.method(fd, method::AH_DESTROY, &[(0, 0, value)]),
                Kind::Cq => self.method(fd, method::CQ_DESTROY, &[(0, 0, value), (1, 8, out)]),
                Kind::Qp => self.method(fd, method::QP_DESTROY, &[(0, 0, value), (1, 4, out)]),
                Kind::Srq => self.method(fd, method::SRQ_DESTROY, &[(0, 0, value), (1, 4, out)]),
                Kind::Channel => Err(libc::EINVAL),
            }
            .map(|_| 0);
        }
        let one = handle.to_ne_bytes();
        let two = Body::new().u32s(&[handle, 0]).0;
        match kind {
            Kind::Pd => self.command(fd, command::DEALLOC_PD, &one, 0),
            Kind::Ah => self.command(fd, command::DESTROY_AH, &one, 0),
            Kind::Mr => self.command(fd, command::DEREG_MR, &one, 0),
            Kind::Mw => self.command(fd, command::DEALLOC_MW, &one, 0),
            Kind::Cq => self.command(fd, command::DESTROY_CQ, &two, 8),
            Kind::Qp => self.command(fd, command::DESTROY_QP, &two, 4),
            Kind::Srq => self.command(fd, command::DESTROY_SRQ, &two, 4),
            Kind::Channel => Err(libc::EINVAL),
        }
    }

    /// Creates a completion channel of this process.
    pub fn create_channel(&self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        self.command(self.fd(context)?, command::CREATE_COMP_CHANNEL, &[], 4)?;
        let fd = self.response.u32(0);
        sys::set_nonblocking(fd as i32);
        self.world
            .put(Kind::Channel, Self::slot(a[0]), context, fd, &[]);
        Ok(i64::from(fd))
    }

    fn channel(&self, arg: u32, context: usize) -> u32 {
        if arg % 2 == 0 {
            u32::MAX
        } else {
            self.handle(Kind::Channel, arg >> 1, context)
        }
    }

    /// Creates a completion queue.
    pub fn create_cq(&mut self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let vector = if a[3] == 15 { a[4] } else { 0 };
        let body =
            Body::new()
                .u64s(&[1])
                .u32s(&[size(a[2]), vector, self.channel(a[5], context), 0]);
        let out = if a[6] == 15 { 8 } else { 24 };
        self.command(self.fd(context)?, command::CREATE_CQ, &body.0, out)?;
        self.keep_cq(a, context, self.response.u32(0), 8);
        Ok(0)
    }

    fn keep_cq(&mut self, a: &Args, context: usize, handle: u32, at: usize) {
        let x = [
            0,
            0,
            self.response.u64(at),
            u64::from(self.response.u32(at + 8)),
        ];
        self.world
            .put(Kind::Cq, Self::slot(a[0]), context, handle, &x);
        let _ = self.ring(Which::Cq, Self::slot(a[0]));
    }

    /// Creates a completion queue by the extended command.
    pub fn create_cq_ex(&mut self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let flags = if a[4] < 8 { 0 } else { a[4] % 4 };
        let body = Body::new().u64s(&[1]).u32s(&[
            size(a[2]),
            a[3] % 4,
            self.channel(a[5], context),
            0,
            flags,
            0,
        ]);
        self.command_ex(self.fd(context)?, command::CREATE_CQ, &body.0, 16, 16)?;
        self.keep_cq(a, context, self.response.u32(0), 16);
        Ok(0)
    }

    /// Creates a completion queue by the method.
    pub fn create_cq_ioctl(&mut self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let fd = self.fd(context)?;
        let out = self.response.address();
        let mut attrs = vec![
            (0, 0, 0),
            (1, 4, u64::from(size(a[2]))),
            (2, 8, 7),
            (4, 4, 0),
            (6, 4, out + 64),
            (UHW_OUT, 16, out),
        ];
        if a[5] % 2 == 1 {
            attrs.push((
                3,
                0,
                u64::from(self.handle(Kind::Channel, a[5] >> 1, context)),
            ));
        }
        if a[4] > 8 {
            attrs.push((5, 4, u64::from(a[4] % 4)));
        }
        let got = self.method(fd, method::CQ_CREATE, &attrs)?;
        self.keep_cq(a, context, got[0] as u32, 0);
        Ok(0)
    }

    /// Resizes a completion queue.
    pub fn resize_cq(&mut self, a: &Args) -> Result<i64, i32> {
        let slot = self.near(Kind::Cq, a[0]);
        let cq = self.world.get(Kind::Cq, slot);
        self.command(
            self.fd(cq.context)?,
            command::RESIZE_CQ,
            &Body::new().u32s(&[cq.handle, size(a[1])]).0,
            24,
        )?;
        let x = [0, 0, self.response.u64(8), u64::from(self.response.u32(16))];
        self.world.put(Kind::Cq, slot, cq.context, cq.handle, &x);
        let _ = self.ring(Which::Cq, slot);
        Ok(0)
    }

    /// Sets the moderation of a completion queue.
    pub fn modify_cq(&self, a: &Args) -> Result<i64, i32> {
        let cq = self.world.get(Kind::Cq, self.near(Kind::Cq, a[0]));
        let mask = if a[3] == 15 { a[4] } else { 1 };
        let body = Body::new().u32s(&[cq.handle, mask, a[1] & 0xff | (a[2] << 16), 0]);
        self.command_ex(self.fd(cq.context)?, command::MODIFY_CQ, &body.0, 0, 0)
    }

    /// Arms a completion queue.
    pub fn arm_cq(&self, a: &Args) -> Result<i64, i32> {
        let cq = self.world.get(Kind::Cq, self.near(Kind::Cq, a[0]));
        self.command(
            self.fd(cq.context)?,
            command::REQ_NOTIFY_CQ,
            &Body::new().u32s(&[cq.handle, a[1] % 2]).0,
            0,
        )
    }

    /// Creates a shared receive queue.
    pub fn create_srq(&mut self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let pd = self.handle(Kind::Pd, a[3], context);
        let sges = if a[4] == 15 { a[5] } else { 1 + a[4] % 4 };
        let body = Body::new()
            .u64s(&[2])
            .u32s(&[pd, size(a[2]), sges, a[6] % 8]);
        self.command(self.fd(context)?, command::CREATE_SRQ, &body.0, 40)?;
        self.keep_srq(a, context, self.response.u32(0), 16);
        Ok(0)
    }

    fn keep_srq(&mut self, a: &Args, context: usize, handle: u32, at: usize) {
        let x = [
            0,
            0,
            self.response.u64(at),
            u64::from(self.response.u32(at + 8)),
        ];
        self.world
            .put(Kind::Srq, Self::slot(a[0]), context, handle, &x);
        let _ = self.ring(Which::Srq, Self::slot(a[0]));
    }

    /// Creates a shared receive queue by the method.
    pub fn create_srq_ioctl(&mut self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let fd = self.fd(context)?;
        let out = self.response.address();
        let attrs = [
            (0, 0, 0),
            (1, 0, u64::from(self.handle(Kind::Pd, a[3], context))),
            (4, 8, 1),
            (5, 4, u64::from(size(a[2]))),
            (6, 4, u64::from(1 + a[4] % 4)),
            (7, 4, 0),
            (9, 8, 0),
            (10, 0, self.contexts[context].map_or(0, |c| c.events) as u64),
            (11, 4, out + 64),
            (12, 4, out + 72),
            (13, 4, out + 80),
            (UHW_OUT, 24, out),
        ];
        let got = self.method(fd, method::SRQ_CREATE, &attrs)?;
        self.keep_srq(a, context, got[0] as u32, 0);
        Ok(0)
    }

    /// Changes the size or the limit of a shared receive queue. After a resize, the driver writes
    /// the new mmap offset to the memory that the call passes.
    pub fn modify_srq(&mut self, a: &Args) -> Result<i64, i32> {
        let slot = self.near(Kind::Srq, a[0]);
        let srq = self.world.get(Kind::Srq, slot);
        let mask = if a[1] == 15 { a[2] } else { 1 + a[1] % 3 };
        let place = if a[5] == 15 {
            world::address(a[6])
        } else {
            self.response.address() + 256
        };
        let body = Body::new()
            .u32s(&[srq.handle, mask, size(a[3]), a[4] % 64])
            .u64s(&[place]);
        self.command(self.fd(srq.context)?, command::MODIFY_SRQ, &body.0, 0)?;
        if mask & 1 != 0 && a[5] != 15 {
            let x = [
                0,
                0,
                self.response.u64(256),
                u64::from(self.response.u32(264)),
            ];
            self.world.put(Kind::Srq, slot, srq.context, srq.handle, &x);
            let _ = self.ring(Which::Srq, slot);
        }
        Ok(0)
    }

    /// Queries size and limit of a shared receive queue.
    pub fn query_srq(&self, a: &Args) -> Result<i64, i32> {
        let srq = self.world.get(Kind::Srq, self.near(Kind::Srq, a[0]));
        self.command(
            self.fd(srq.context)?,
            command::QUERY_SRQ,
            &Body::new().u32s(&[srq.handle, 0]).0,
            16,
        )
    }

    /// Returns a GID of a device: IPv4 or IPv6, occasionally an invalid one.
    pub fn gid(&self, device: usize, arg: u32) -> (u8, [u8; 16]) {
        let gids = self
            .devices
            .get(device)
            .map_or(&[][..], |device| &device.gids);
        if arg >= 0xffff_0000 || gids.is_empty() {
            let mut odd = [0; 16];
            odd[10] = arg as u8;
            odd[15] = (arg >> 8) as u8;
            return ((arg >> 4) as u8, odd);
        }
        gids[arg as usize % gids.len()]
    }

    /// Returns the device of a context, and its peer.
    pub fn devices_of(&self, context: usize) -> (usize, usize) {
        let own = self
            .contexts
            .get(context)
            .copied()
            .flatten()
            .map_or(0, |c| c.device);
        (own, own ^ 1)
    }

    /// Creates an address handle with the peer device as destination.
    pub fn create_ah(&self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let (own, other) = self.devices_of(context);
        let (index, _) = self.gid(own, a[3]);
        let (_, gid) = self.gid(if a[4] == 15 { own } else { other }, a[3]);
        let pd = self.handle(Kind::Pd, a[2], context);
        let body = Body::new()
            .u64s(&[3])
            .u32s(&[pd, 0])
            .bytes(&gid)
            .u32s(&[a[5]]);
        let body = body
            .bytes(&[index, 64, a[6] as u8, 0])
            .bytes(&[0, 0, 0, 0, 0, 1, 1, 0]);
        self.command(self.fd(context)?, command::CREATE_AH, &body.0, 12)?;
        self.world.put(
            Kind::Ah,
            Self::slot(a[0]),
            context,
            self.response.u32(0),
            &[u64::from(self.response.u32(4))],
        );
        Ok(0)
    }

    /// Attaches a queue pair to a multicast group or detaches it.
    pub fn mcast(&self, a: &Args, command: u32) -> Result<i64, i32> {
        let qp = self.world.get(Kind::Qp, self.near(Kind::Qp, a[0]));
        let mut gid = [0; 16];
        if a[1] % 2 == 0 {
            gid[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 1, a[2] as u8 % 4]);
        } else {
            gid[..2].copy_from_slice(&[0xff, 0x0e]);
            gid[15] = a[2] as u8 % 4;
        }
        if a[3] == 15 {
            gid[a[4] as usize % 16] = a[5] as u8;
        }
        self.command(
            self.fd(qp.context)?,
            command,
            &Body::new().bytes(&gid).u32s(&[qp.handle, a[6] % 2]).0,
            0,
        )
    }

    /// Creates a flow steering rule, which the driver does not support.
    pub fn create_flow(&self, a: &Args) -> Result<i64, i32> {
        let qp = self.world.get(Kind::Qp, self.near(Kind::Qp, a[0]));
        let body = Body::new().u32s(&[0, qp.handle, a[1] % 4, 16 | (a[2] << 16), 1 << 24, 0]);
        self.command_ex(self.fd(qp.context)?, command::CREATE_FLOW, &body.0, 8, 0)
    }

    /// Reads events from a descriptor.
    pub fn events(&self, a: &Args) -> Result<i64, i32> {
        let mut data = [0; 64];
        let fd = match a[0] % 3 {
            0 => {
                self.contexts[Self::context(a[1])]
                    .ok_or(libc::EBADF)?
                    .events
            }
            _ => {
                self.world
                    .get(Kind::Channel, self.near(Kind::Channel, a[1]))
                    .handle as i32
            }
        };
        // Not the fuzzer's own descriptors, which may block.
        if !(3..crate::exec::PRIVATE_FDS).contains(&fd) {
            return Err(libc::EBADF);
        }
        sys::read(fd, &mut data[..if a[0] % 3 == 0 { 16 } else { 8 }]).map(|n| n as i64)
    }
}
