// SPDX-License-Identifier: GPL-2.0
//! Commands and methods with arbitrary numbers and content, which no library sends.

use crate::calls::Args;
use crate::exec::{Body, Worker};
use crate::sys;
use crate::uverbs::{command, method, rxe_rs_attr, UHW_IN, UHW_OUT};
use crate::world::{self, Kind};
use fastrand::Rng;

/// Type of an attribute of a method.
#[derive(Clone, Copy)]
enum AttrType {
    /// Handle of an existing object.
    Handle(Kind),
    /// Handle of an object that the method creates.
    New,
    /// A number or an enumeration.
    Small,
    /// Memory that the kernel reads, with its length in bytes.
    In(u16),
    /// Memory that the kernel writes, with its length in bytes.
    Out(u16),
    /// A file descriptor.
    Fd,
}

/// A method, and its attributes with their types.
type Method = ((u16, u16), &'static [(u16, AttrType)]);

const DRIVER_IN: (u16, AttrType) = (UHW_IN, AttrType::In(16));
const DRIVER_OUT: (u16, AttrType) = (UHW_OUT, AttrType::Out(64));

/// Methods of `ib_user_ioctl_cmds.h` and `uapi/rxe_rs.h`.
const METHODS: &[Method] = &[
    // Device: handles of objects, port, context, GIDs, port speed.
    (
        method::INFO_HANDLES,
        &[
            (0, AttrType::Small),
            (1, AttrType::Out(4)),
            (2, AttrType::Out(64)),
        ],
    ),
    (
        method::QUERY_PORT,
        &[(0, AttrType::Small), (1, AttrType::Out(64))],
    ),
    (
        method::GET_CONTEXT,
        &[
            (0, AttrType::Out(4)),
            (1, AttrType::Out(8)),
            (2, AttrType::Fd),
            DRIVER_IN,
            DRIVER_OUT,
        ],
    ),
    (
        method::QUERY_CONTEXT,
        &[(0, AttrType::Out(4)), (1, AttrType::Out(8))],
    ),
    (
        method::QUERY_GID_TABLE,
        &[
            (0, AttrType::Small),
            (1, AttrType::Small),
            (2, AttrType::Out(512)),
            (3, AttrType::Out(8)),
        ],
    ),
    (
        method::QUERY_GID_ENTRY,
        &[
            (0, AttrType::Small),
            (1, AttrType::Small),
            (2, AttrType::Small),
            (3, AttrType::Out(32)),
        ],
    ),
    (
        method::QUERY_PORT_SPEED,
        &[(0, AttrType::Small), (1, AttrType::Out(8))],
    ),
    (method::PD_DESTROY, &[(0, AttrType::Handle(Kind::Pd))]),
    // Completion queue, also with memory of the caller.
    (
        method::CQ_CREATE,
        &[
            (0, AttrType::New),
            (1, AttrType::Small),
            (2, AttrType::Small),
            (4, AttrType::Small),
            (5, AttrType::Small),
            (6, AttrType::Out(4)),
            DRIVER_IN,
            DRIVER_OUT,
        ],
    ),
    (
        method::CQ_CREATE,
        &[
            (0, AttrType::New),
            (1, AttrType::Small),
            (2, AttrType::Small),
            (4, AttrType::Small),
            (6, AttrType::Out(4)),
            (8, AttrType::Small),
            (9, AttrType::Small),
            DRIVER_OUT,
        ],
    ),
    (
        method::CQ_CREATE,
        &[
            (0, AttrType::New),
            (1, AttrType::Small),
            (2, AttrType::Small),
            (6, AttrType::Out(4)),
            (10, AttrType::Fd),
            (11, AttrType::Small),
            (9, AttrType::Small),
            DRIVER_OUT,
        ],
    ),
    (
        method::CQ_DESTROY,
        &[(0, AttrType::Handle(Kind::Cq)), (1, AttrType::Out(8))],
    ),
    // Queue pair.
    (
        method::QP_CREATE,
        &[
            (0, AttrType::New),
            (1, AttrType::Small),
            (2, AttrType::Handle(Kind::Pd)),
            (4, AttrType::Handle(Kind::Cq)),
            (5, AttrType::Handle(Kind::Cq)),
            (7, AttrType::Small),
            (8, AttrType::In(20)),
            (9, AttrType::Small),
            (10, AttrType::Small),
            (11, AttrType::Small),
            (12, AttrType::Fd),
            (13, AttrType::Out(20)),
            (14, AttrType::Out(4)),
            DRIVER_OUT,
        ],
    ),
    (
        method::QP_DESTROY,
        &[(0, AttrType::Handle(Kind::Qp)), (1, AttrType::Out(4))],
    ),
    // Shared receive queue.
    (
        method::SRQ_CREATE,
        &[
            (0, AttrType::New),
            (1, AttrType::Handle(Kind::Pd)),
            (3, AttrType::Handle(Kind::Cq)),
            (4, AttrType::Small),
            (5, AttrType::Small),
            (6, AttrType::Small),
            (7, AttrType::Small),
            (8, AttrType::Small),
            (9, AttrType::Small),
            (10, AttrType::Fd),
            (11, AttrType::Out(4)),
            (12, AttrType::Out(4)),
            (13, AttrType::Out(4)),
            DRIVER_OUT,
        ],
    ),
    (
        method::SRQ_DESTROY,
        &[(0, AttrType::Handle(Kind::Srq)), (1, AttrType::Out(4))],
    ),
    (method::AH_DESTROY, &[(0, AttrType::Handle(Kind::Ah))]),
    // Region.
    (
        method::DM_MR_REG,
        &[
            (0, AttrType::New),
            (1, AttrType::Small),
            (2, AttrType::Small),
            (3, AttrType::Handle(Kind::Pd)),
            (4, AttrType::Small),
            (5, AttrType::Small),
            (6, AttrType::Out(4)),
            (7, AttrType::Out(4)),
        ],
    ),
    (method::MR_DESTROY, &[(0, AttrType::Handle(Kind::Mr))]),
    (
        method::ADVISE_MR,
        &[
            (0, AttrType::Handle(Kind::Pd)),
            (1, AttrType::Small),
            (2, AttrType::Small),
            (3, AttrType::In(64)),
        ],
    ),
    (
        method::QUERY_MR,
        &[
            (0, AttrType::Handle(Kind::Mr)),
            (1, AttrType::Out(4)),
            (2, AttrType::Out(4)),
            (3, AttrType::Out(8)),
            (4, AttrType::Out(8)),
        ],
    ),
    (
        method::REG_DMABUF_MR,
        &[
            (0, AttrType::New),
            (1, AttrType::Handle(Kind::Pd)),
            (2, AttrType::Small),
            (3, AttrType::Small),
            (4, AttrType::Small),
            (5, AttrType::Fd),
            (6, AttrType::Small),
            (7, AttrType::Out(4)),
            (8, AttrType::Out(4)),
        ],
    ),
    (
        method::REG_MR,
        &[
            (0, AttrType::New),
            (1, AttrType::Handle(Kind::Pd)),
            (3, AttrType::Small),
            (4, AttrType::Small),
            (5, AttrType::Small),
            (6, AttrType::Small),
            (9, AttrType::Out(4)),
            (10, AttrType::Out(4)),
        ],
    ),
    (
        method::MR_ADD,
        &[
            (rxe_rs_attr::MR, AttrType::Handle(Kind::Mr)),
            (rxe_rs_attr::REQUEST, AttrType::In(32)),
            (rxe_rs_attr::STATE, AttrType::Out(80)),
        ],
    ),
    (
        method::MR_REMOVE,
        &[
            (rxe_rs_attr::MR, AttrType::Handle(Kind::Mr)),
            (rxe_rs_attr::REQUEST, AttrType::In(32)),
            (rxe_rs_attr::STATE, AttrType::Out(80)),
        ],
    ),
    (
        method::MR_TIE,
        &[
            (rxe_rs_attr::MR, AttrType::Handle(Kind::Mr)),
            (rxe_rs_attr::REQUEST, AttrType::In(32)),
            (rxe_rs_attr::STATE, AttrType::Out(80)),
        ],
    ),
    (method::MW_DESTROY, &[(0, AttrType::Handle(Kind::Mw))]),
    // Device memory, counters, events, DMA handles, DMA buffers exported by the device.
    (
        method::DM_ALLOC,
        &[
            (0, AttrType::New),
            (1, AttrType::Small),
            (2, AttrType::Small),
        ],
    ),
    (method::COUNTERS_CREATE, &[(0, AttrType::New)]),
    (method::ASYNC_EVENT_ALLOC, &[(0, AttrType::New)]),
    (
        method::DMAH_ALLOC,
        &[(0, AttrType::New), (1, AttrType::Small)],
    ),
    (
        method::DMABUF_ALLOC,
        &[(0, AttrType::New), (1, AttrType::Small)],
    ),
];

impl Worker {
    /// Returns a request of words that are likely to be valid: handles, keys, addresses, sizes.
    fn word(&self, rng: &mut Rng) -> u32 {
        match rng.u8(..12) {
            0..=4 => rng.u32(..12),
            5 => {
                let kinds = [
                    Kind::Pd,
                    Kind::Cq,
                    Kind::Srq,
                    Kind::Qp,
                    Kind::Mr,
                    Kind::Mw,
                    Kind::Ah,
                ];
                self.world
                    .get(kinds[rng.usize(..kinds.len())], rng.usize(..16))
                    .handle
            }
            6 => self.world.get(Kind::Mr, rng.usize(..16)).x[rng.usize(..2)] as u32,
            7 => 1 << rng.u32(..32),
            8 => u32::MAX - rng.u32(..4),
            9 => (world::address(rng.u32(..)) >> if rng.bool() { 0 } else { 32 }) as u32,
            _ => rng.u32(..),
        }
    }

    /// Issues a command of any number and length, by `write` or by `UVERBS_METHOD_INVOKE_WRITE`.
    pub fn write_command(&self, a: &Args) -> Result<i64, i32> {
        let fd = self.fd(Self::context(a[1]))?;
        let mut rng = Rng::with_seed(u64::from(a[2]));
        let number = a[0] % 64;
        // These create descriptors, which nothing would close.
        let creates_fd = matches!(number, command::GET_CONTEXT | command::CREATE_COMP_CHANNEL);
        let words = a[3] as usize % 48;
        let mut body = Body::new();
        for _ in 0..words {
            let word = self.word(&mut rng);
            body = body.u32s(&[word]);
        }
        let out = [0, 4, 8, 16, 24, 64, 128, 512][a[4] as usize % 8];
        match a[5] % 4 {
            0 => {
                if creates_fd {
                    return Err(libc::EPERM);
                }
                self.command(fd, number, &body.0, out)
            }
            1 => {
                body.0.resize(body.0.len().next_multiple_of(8), 0);
                self.command_ex(
                    fd,
                    number,
                    &body.0,
                    out.next_multiple_of(8),
                    a[6] as usize % 5 * 16,
                )
            }
            2 => {
                // Corrupt the header, too.
                let raw = Body::new()
                    .u32s(&[number | a[7] & 0x8000_0000, a[6]])
                    .bytes(&body.0)
                    .0;
                if creates_fd {
                    return Err(libc::EPERM);
                }
                sys::write(fd, &raw).map(|n| n as i64)
            }
            _ => {
                if creates_fd {
                    return Err(libc::EPERM);
                }
                let attrs = [
                    (0, body.0.len() as u16, body.0.as_ptr() as u64),
                    (1, 512, self.response.address()),
                    (2, 8, u64::from(number | a[7] & 0x8000_0000)),
                    (UHW_IN, 16, self.response.address() + 4096),
                    (UHW_OUT, 64, self.response.address() + 2048),
                ];
                self.method(fd, method::INVOKE_WRITE, &attrs[..3 + a[6] as usize % 3])
                    .map(|_| 0)
            }
        }
    }

    /// Calls a method with attributes that are nearly valid.
    pub fn ioctl_method(&self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let fd = self.fd(context)?;
        let mut rng = Rng::with_seed(u64::from(a[2]));
        let (chosen, attrs) = METHODS[a[0] as usize % METHODS.len()];
        // Memory that the kernel reads must live until the call has returned.
        let mut input = Vec::new();
        for _ in 0..32 {
            let word = self.word(&mut rng);
            input.extend(word.to_ne_bytes());
        }
        let out = self.response.address();
        let mut list: Vec<(u16, u16, u64)> = attrs
            .iter()
            .map(|(number, is)| {
                let small = u64::from(self.word(&mut rng));
                match is {
                    AttrType::Handle(kind) => (
                        *number,
                        0,
                        u64::from(self.handle(*kind, rng.u32(..16), context)),
                    ),
                    AttrType::New => (*number, 0, 0),
                    AttrType::Small => (*number, if rng.bool() { 4 } else { 8 }, small),
                    AttrType::In(len) => (*number, *len, input.as_ptr() as u64),
                    AttrType::Out(len) => (*number, *len, out + 64 * rng.u64(..16)),
                    AttrType::Fd => (*number, 0, u64::from(rng.u32(..20))),
                }
            })
            .collect();
        // Occasionally an attribute is missing, duplicated, of another length or at another
        // address.
        if rng.u8(..3) == 0 {
            let at = rng.usize(..list.len());
            match rng.u8(..6) {
                0 => {
                    list.remove(at);
                }
                1 => list.push(list[at]),
                2 => list[at].1 = (list[at].1).wrapping_add(rng.u16(..16)).wrapping_sub(8) % 128,
                3 => list[at].0 ^= 1 << rng.u32(..13),
                4 => list[at].2 = world::address(rng.u32(..)),
                _ => list[at].2 = rng.u64(..1 << 40),
            }
        }
        let chosen = match a[3] {
            0xfff0.. => (a[4] as u16 % 32, a[5] as u16),
            _ => chosen,
        };
        // The core (7.2, 7.3) keeps a reference to the process that makes a context by this method
        // on a file that has one: its memory would be a leak in each run.
        if chosen == method::GET_CONTEXT {
            return Err(libc::EINVAL);
        }
        self.method(fd, chosen, &list).map(|_| 0)
    }
}
