// SPDX-License-Identifier: GPL-2.0
//! Execution of calls in a worker.

use crate::calls::{Call, Op};
use crate::rings::{Ring, Rings, Which};
use crate::sys::{self, Response};
use crate::uverbs::{command, method, UHW_IN, UHW_OUT};
use crate::world::{Files, Kind, World, SLOTS, X_RECV, X_RING};

/// Number of contexts of a worker. The first ones are shared by all workers.
pub const CONTEXTS: usize = 5;
/// Number of contexts that are created before the workers are forked, and shared by them.
pub const SHARED_CONTEXTS: usize = 4;

/// Descriptors from this number on belong to the fuzzer itself: calls do not use them.
pub const PRIVATE_FDS: i32 = 500;

/// A device context.
#[derive(Clone, Copy)]
pub struct Context {
    /// Descriptor of `/dev/infiniband/uverbsN`.
    pub fd: i32,
    /// Descriptor of its asynchronous events.
    pub events: i32,
    /// Index into [`Worker::devices`].
    pub device: usize,
}

/// An RDMA device and its addresses.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Valid entries of its GID table, with their indices.
    pub gids: Vec<(u8, [u8; 16])>,
}

/// A network namespace with the network device that calls change.
#[derive(Clone, Debug)]
pub struct Net {
    /// A socket in the namespace, for ioctls.
    pub socket: i32,
    /// Name of the network device.
    pub netdev: String,
}

/// The state of a process that runs calls.
pub struct Worker {
    /// Objects.
    pub world: World,
    /// Files behind memory areas.
    pub files: Files,
    /// Contexts.
    pub contexts: Vec<Option<Context>>,
    /// Queues that this process has mapped.
    pub rings: Rings,
    /// RDMA devices.
    pub devices: Vec<Device>,
    /// Network devices below the RDMA devices.
    pub nets: Vec<Net>,
    /// Paths of sysfs attributes.
    pub attributes: Vec<String>,
    /// Buffer for responses of the kernel.
    pub response: Response,
    /// RDMA netlink socket.
    pub netlink: i32,
    /// Whether calls are printed.
    pub verbose: bool,
    /// Whether this process was forked after the shared contexts had been opened.
    forked: bool,
    fail_nth: i32,
}

impl Worker {
    /// Creates a worker without contexts.
    pub fn new(
        world: World,
        files: Files,
        devices: Vec<Device>,
        nets: Vec<Net>,
        attributes: Vec<String>,
    ) -> Self {
        Self {
            world,
            files,
            contexts: vec![None; CONTEXTS],
            rings: Rings::new(),
            devices,
            nets,
            attributes,
            response: Response::new(1 << 14),
            netlink: sys::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_NONBLOCK, 20)
                .unwrap_or(-1),
            verbose: false,
            forked: false,
            fail_nth: -1,
        }
    }

    /// Completes the worker in its own process, after the fork.
    pub fn after_fork(&mut self) {
        self.forked = true;
        self.fail_nth = sys::open("/proc/thread-self/fail-nth", libc::O_RDWR).unwrap_or(-1);
    }

    /// Runs calls in order, counts their results and prints them if asked to.
    pub fn run(&mut self, calls: &[Call]) {
        for call in calls {
            let fails = call.nth != 0 && self.fail_nth >= 0;
            if fails {
                let _ = sys::write(self.fail_nth, call.nth.to_string().as_bytes());
            }
            let result = self.execute(call);
            if fails {
                let _ = sys::write(self.fail_nth, b"0");
            }
            self.world.count(usize::from(call.op), result.is_ok());
            if self.verbose {
                match result {
                    Ok(value) => println!("{}: {value}", call.text()),
                    Err(errno) => println!(
                        "{}: {}",
                        call.text(),
                        std::io::Error::from_raw_os_error(errno)
                    ),
                }
            }
        }
    }

    fn execute(&mut self, call: &Call) -> Result<i64, i32> {
        let a = &call.args;
        match call.op() {
            Op::Context => self.open_context(a),
            Op::QueryDevice => self.query_device(a),
            Op::QueryPort => self.query_port(a),
            Op::AllocPd => self.alloc_pd(a),
            Op::DeallocPd => self.destroy(Kind::Pd, a),
            Op::CreateChannel => self.create_channel(a),
            Op::CreateCq => self.create_cq(a),
            Op::CreateCqEx => self.create_cq_ex(a),
            Op::CreateCqIoctl => self.create_cq_ioctl(a),
            Op::ResizeCq => self.resize_cq(a),
            Op::ModifyCq => self.modify_cq(a),
            Op::ArmCq => self.arm_cq(a),
            Op::DestroyCq => self.destroy(Kind::Cq, a),
            Op::CreateSrq => self.create_srq(a),
            Op::CreateSrqIoctl => self.create_srq_ioctl(a),
            Op::ModifySrq => self.modify_srq(a),
            Op::QuerySrq => self.query_srq(a),
            Op::DestroySrq => self.destroy(Kind::Srq, a),
            Op::CreateQp => self.create_qp(a, false),
            Op::CreateQpEx => self.create_qp(a, true),
            Op::CreateQpIoctl => self.create_qp_ioctl(a),
            Op::Connect => self.connect(a),
            Op::ModifyQp => self.modify_qp(a),
            Op::ModifyQpState => self.modify_qp_state(a),
            Op::QueryQp => self.query_qp(a),
            Op::DestroyQp => self.destroy(Kind::Qp, a),
            Op::RegMr => self.reg_mr(a),
            Op::RegMrIoctl => self.reg_mr_ioctl(a),
            Op::RegDmabuf => self.reg_dmabuf(a),
            Op::ReregMr => self.rereg_mr(a),
            Op::DeregMr => self.destroy(Kind::Mr, a),
            Op::DeregMrIoctl => self.dereg_mr_ioctl(a),
            Op::QueryMr => self.query_mr(a),
            Op::AdviseMr => self.advise_mr(a),
            Op::AddSegment => self.add_segment(a),
            Op::RemoveSegment => self.remove_segment(a),
            Op::TieMr => self.tie_mr(a),
            Op::AllocMw => self.alloc_mw(a),
            Op::DeallocMw => self.destroy(Kind::Mw, a),
            Op::CreateAh => self.create_ah(a),
            Op::DestroyAh => self.destroy(Kind::Ah, a),
            Op::AttachMcast => self.mcast(a, command::ATTACH_MCAST),
            Op::DetachMcast => self.mcast(a, command::DETACH_MCAST),
            Op::CreateFlow => self.create_flow(a),
            Op::PostSend => self.post_send(a),
            Op::PostRecv => self.post_recv(a),
            Op::Doorbell => self.doorbell(a),
            Op::ConsumeCq => self.consume_cq(a),
            Op::OverwriteRing => self.overwrite_ring(a),
            Op::SetIndex => self.set_index(a),
            Op::PostByCommand => self.post_by_command(a),
            Op::WriteCommand => self.write_command(a),
            Op::IoctlMethod => self.ioctl_method(a),
            Op::Events => self.events(a),
            Op::Memory => self.memory(a),
            Op::Touch => self.touch(a),
            Op::Sysfs => self.sysfs(a),
            Op::Netlink => self.netlink_query(a),
            Op::Pause => {
                sys::pause(u64::from(a[0] % 8) * 300);
                Ok(0)
            }
            Op::Fork => self.fork(a),
            Op::Die => {
                // Other workers may be in the middle of calls that use its memory.
                if a[0] % 4 == 0 {
                    sys::kill(std::process::id() as i32, libc::SIGKILL);
                }
                Ok(0)
            }
            Op::SysfsWrite => self.sysfs_write(a),
            Op::NetlinkAdmin => self.netlink_admin(a),
            Op::Netdev => self.netdev(a),
            Op::Link => self.link(a),
        }
    }

    // --- objects ---------------------------------------------------------------------------------

    /// Returns the descriptor of a context.
    pub fn fd(&self, context: usize) -> Result<i32, i32> {
        self.contexts
            .get(context)
            .copied()
            .flatten()
            .map(|c| c.fd)
            .ok_or(libc::EBADF)
    }

    /// Returns the slot that an argument selects.
    pub fn slot(arg: u32) -> usize {
        arg as usize % SLOTS
    }

    /// Returns the slot that an argument selects, usually one with a live object.
    pub fn near(&self, kind: Kind, arg: u32) -> usize {
        if arg & 0xf00 == 0xf00 {
            return Self::slot(arg);
        }
        self.world.near(kind, Self::slot(arg))
    }

    /// Returns the context that an argument selects.
    pub fn context(arg: u32) -> usize {
        // Usually one of the two contexts that have the connected queue pairs.
        match arg % 16 {
            0..=12 => arg as usize % 2,
            13 => 2,
            14 => 3,
            _ => 4,
        }
    }

    /// Returns the handle of an object of the context, searched from the selected slot on;
    /// occasionally an arbitrary handle.
    pub fn handle(&self, kind: Kind, arg: u32, context: usize) -> u32 {
        if arg >= 0xffff_0000 {
            return arg & 0xff;
        }
        self.world
            .get(kind, self.world.find(kind, Self::slot(arg), context))
            .handle
    }

    /// Returns a queue of the object in a slot, mapped into this process.
    pub fn ring(&mut self, which: Which, slot: usize) -> Result<Ring, i32> {
        let (kind, at) = match which {
            Which::Cq => (Kind::Cq, X_RING),
            Which::Srq => (Kind::Srq, X_RING),
            Which::Sq => (Kind::Qp, X_RING),
            Which::Rq => (Kind::Qp, X_RECV),
        };
        let object = self.world.get(kind, slot);
        if object.generation == 0 {
            return Err(libc::ENOENT);
        }
        let fd = self.fd(object.context)?;
        self.rings
            .get(
                which,
                slot,
                object.generation,
                fd,
                object.x[at],
                object.x[at + 1],
            )
            .ok_or(libc::ENXIO)
    }

    // --- commands and methods --------------------------------------------------------------------

    /// Issues a command with a response of `out` bytes, whose address is the first field of the
    /// body.
    pub fn command(&self, fd: i32, number: u32, body: &[u8], out: usize) -> Result<i64, i32> {
        self.response.clear(out);
        let mut data = Vec::with_capacity(16 + body.len());
        let may_write = number == command::GET_CONTEXT || self.may_write(fd);
        if may_write {
            data.extend(number.to_ne_bytes());
            let has_response = if out == 0 { 0 } else { 8 };
            data.extend((((8 + has_response + body.len()) / 4) as u16).to_ne_bytes());
            data.extend(((out / 4) as u16).to_ne_bytes());
        }
        if out != 0 {
            data.extend(self.response.address().to_ne_bytes());
        }
        data.extend(body);
        if may_write {
            return sys::write(fd, &data).map(|n| n as i64);
        }
        // Split the response and the request into the parts of the core and of the driver.
        let core_out = match number {
            command::CREATE_AH => out.min(4),
            command::CREATE_CQ | command::RESIZE_CQ => out.min(8),
            command::CREATE_QP => out.min(32),
            command::CREATE_SRQ => out.min(16),
            _ => out,
        };
        let core_in = if number == command::MODIFY_SRQ {
            data.len().min(16)
        } else {
            data.len()
        };
        self.invoke(
            fd,
            number,
            (&data[..core_in], &data[core_in..]),
            (core_out, out - core_out),
        )
    }

    /// Issues an extended command with `core` as the request, and a response of `core_out` bytes of
    /// the core and `driver_out` bytes of the driver.
    pub fn command_ex(
        &self,
        fd: i32,
        number: u32,
        core: &[u8],
        core_out: usize,
        driver_out: usize,
    ) -> Result<i64, i32> {
        self.response.clear(core_out + driver_out);
        let number = number | 0x8000_0000;
        if !self.may_write(fd) {
            return self.invoke(fd, number, (core, &[]), (core_out, driver_out));
        }
        let mut data = Vec::with_capacity(24 + core.len());
        data.extend(number.to_ne_bytes());
        data.extend(((core.len() / 8) as u16).to_ne_bytes());
        data.extend(((core_out / 8) as u16).to_ne_bytes());
        data.extend(
            if core_out + driver_out == 0 {
                0
            } else {
                self.response.address()
            }
            .to_ne_bytes(),
        );
        data.extend(0u16.to_ne_bytes());
        data.extend(((driver_out / 8) as u16).to_ne_bytes());
        data.extend(0u32.to_ne_bytes());
        data.extend(core);
        sys::write(fd, &data).map(|n| n as i64)
    }

    /// Returns true if this process may use `write` on the context: the core refuses it to
    /// processes other than the one that opened the device.
    fn may_write(&self, fd: i32) -> bool {
        !self.forked || self.contexts[CONTEXTS - 1].is_some_and(|own| own.fd == fd)
    }

    /// Issues a command by `UVERBS_METHOD_INVOKE_WRITE`; `input` and `out` are the parts of the
    /// core and of the driver.
    fn invoke(
        &self,
        fd: i32,
        number: u32,
        input: (&[u8], &[u8]),
        out: (usize, usize),
    ) -> Result<i64, i32> {
        let at = self.response.address();
        // Up to 8 bytes are passed in the attribute itself.
        let value = |data: &[u8]| match data.len() {
            0..=8 => {
                let mut long = [0; 8];
                long[..data.len()].copy_from_slice(data);
                u64::from_ne_bytes(long)
            }
            _ => data.as_ptr() as u64,
        };
        let attrs = [
            (0, input.0.len() as u16, value(input.0)),
            (1, out.0 as u16, at),
            (2, 8, u64::from(number)),
            (UHW_IN, input.1.len() as u16, value(input.1)),
            (UHW_OUT, out.1 as u16, at + out.0 as u64),
        ];
        let attrs: Vec<_> = attrs.into_iter().filter(|attr| attr.1 != 0).collect();
        self.method(fd, method::INVOKE_WRITE, &attrs).map(|_| 0)
    }

    /// Calls a method of the uverbs ioctl. An attribute is its number, its length, and its value or
    /// the address of it. Returns the values after the call.
    pub fn method(
        &self,
        fd: i32,
        (object, method): (u16, u16),
        attrs: &[(u16, u16, u64)],
    ) -> Result<Vec<u64>, i32> {
        let mut data = Vec::new();
        data.extend(((24 + 16 * attrs.len()) as u16).to_ne_bytes());
        for half in [object, method, attrs.len() as u16] {
            data.extend(half.to_ne_bytes());
        }
        data.extend(0u64.to_ne_bytes());
        data.extend(14u32.to_ne_bytes());
        data.extend(0u32.to_ne_bytes());
        for (number, len, value) in attrs {
            data.extend(number.to_ne_bytes());
            data.extend(len.to_ne_bytes());
            data.extend(1u16.to_ne_bytes());
            data.extend(0u16.to_ne_bytes());
            data.extend(value.to_ne_bytes());
        }
        const VERBS_IOCTL: u64 = (3 << 30) | (24 << 16) | (0x1b << 8) | 1;
        sys::ioctl(fd, VERBS_IOCTL, &mut data)?;
        Ok(data[24..]
            .chunks(16)
            .map(|attr| attr[8..].try_into().map_or(0, u64::from_ne_bytes))
            .collect())
    }
}

/// Builder of a request: fields in order, without padding.
#[derive(Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    /// Creates an empty request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends 32-bit fields.
    pub fn u32s(mut self, words: &[u32]) -> Self {
        for word in words {
            self.0.extend(word.to_ne_bytes());
        }
        self
    }

    /// Appends 64-bit fields.
    pub fn u64s(mut self, longs: &[u64]) -> Self {
        for long in longs {
            self.0.extend(long.to_ne_bytes());
        }
        self
    }

    /// Appends bytes.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}
