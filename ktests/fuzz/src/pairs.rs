// SPDX-License-Identifier: GPL-2.0
//! Queue pairs: creation, connection, posting of work requests.

use crate::calls::Args;
use crate::exec::{Body, Worker};
use crate::rings::{recv_wqe, send_wqe, Sge, Which};
use crate::sys;
use crate::uverbs::{command, method, UHW_OUT};
use crate::world::{self, Kind, Object, SLOTS, X_IOVA, X_LEN, X_LKEY, X_QPN, X_RKEY, X_TYPE};

/// Types of queue pairs (`enum ib_uverbs_qp_type`).
const RC: u32 = 2;
const UC: u32 = 3;
const UD: u32 = 4;
const RAW_PACKET: u32 = 8;

/// Bits of the attribute mask (`enum ib_qp_attr_mask`).
const STATE: u32 = 1;
const ACCESS: u32 = 8;
const PKEY_INDEX: u32 = 0x10;
const PORT: u32 = 0x20;
const QKEY: u32 = 0x40;
const AV: u32 = 0x80;
const PATH_MTU: u32 = 0x100;
const TIMEOUT: u32 = 0x200;
const RETRY: u32 = 0x400;
const RNR_RETRY: u32 = 0x800;
const RQ_PSN: u32 = 0x1000;
const MAX_RD_ATOMIC: u32 = 0x2000;
const MIN_RNR: u32 = 0x8000;
const SQ_PSN: u32 = 0x10000;
const MAX_DEST_RD_ATOMIC: u32 = 0x20000;
const DEST_QPN: u32 = 0x10_0000;

/// Q_Key of all UD queue pairs.
const THE_QKEY: u32 = 0x1234;

/// Attributes of `modify_qp`.
#[derive(Clone, Copy, Default)]
struct Attrs {
    gid: [u8; 16],
    sgid_index: u8,
    flow_label: u32,
    traffic_class: u8,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qpn: u32,
    access: u32,
    pkey_index: u16,
    state: u8,
    current: u8,
    path_mtu: u8,
    rd_atomic: u8,
    min_rnr: u8,
    port: u8,
    timeout: u8,
    retries: u8,
    rnr_retries: u8,
}

fn depth(arg: u32) -> u32 {
    const DEPTHS: [u32; 12] = [
        32,
        16,
        64,
        4,
        100,
        1,
        300,
        0,
        5000,
        100_000,
        1 << 31,
        u32::MAX,
    ];
    DEPTHS[arg as usize % if arg & 0xf0 == 0 { 12 } else { 7 }]
}

impl Worker {
    fn kind_of(arg: u32) -> u32 {
        match arg % 16 {
            0..=7 => RC,
            8..=10 => UC,
            11..=13 => UD,
            14 => RAW_PACKET,
            _ => (arg >> 4) & 0xf,
        }
    }

    /// Creates a queue pair by the basic or the extended command.
    pub fn create_qp(&mut self, a: &Args, extended: bool) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let fd = self.fd(context)?;
        let kind = Self::kind_of(a[2]);
        let shared = a[5] % 4 == 1 && kind != RAW_PACKET;
        let cqs = [
            self.handle(Kind::Cq, a[4], context),
            self.handle(Kind::Cq, a[4] >> 4, context),
        ];
        let sges = if a[7] == 15 { a[6] } else { 1 + a[7] % 4 };
        let inline = if kind == RAW_PACKET {
            0
        } else {
            [0, 64, 256, 500, 5000, u32::MAX][a[7] as usize % 6]
        };
        let body = Body::new()
            .u64s(&[4])
            .u32s(&[
                self.handle(Kind::Pd, a[3], context),
                cqs[0],
                cqs[1],
                self.handle(Kind::Srq, a[5] >> 2, context),
            ])
            .u32s(&[depth(a[6]), depth(a[6] >> 2), sges, sges, inline])
            .bytes(&[(a[2] >> 8) as u8 & 1, kind as u8, u8::from(shared), 0]);
        let at = if extended {
            let flags = if a[7] > 13 { a[6] } else { 0 };
            self.command_ex(
                fd,
                command::CREATE_QP,
                &body.u32s(&[0, flags, 0, 0]).0,
                40,
                32,
            )?;
            40
        } else {
            self.command(fd, command::CREATE_QP, &body.0, 64)?;
            32
        };
        let (handle, qpn) = (self.response.u32(0), self.response.u32(4));
        self.keep_qp(a, context, kind, handle, qpn, at);
        Ok(i64::from(qpn))
    }

    fn keep_qp(&mut self, a: &Args, context: usize, kind: u32, handle: u32, qpn: u32, at: usize) {
        let (rq, sq) = (at, at + 16);
        let response = &self.response;
        let sizes = [
            u64::from(response.u32(sq + 8)),
            u64::from(response.u32(rq + 8)),
        ];
        let x = [
            u64::from(qpn),
            u64::from(kind),
            response.u64(sq),
            sizes[0],
            response.u64(rq),
            sizes[1],
        ];
        // Adjacent slots hold peers, so they use different contexts.
        let slot = Self::slot(a[0]) & !1 | context & 1;
        self.world.put(Kind::Qp, slot, context, handle, &x);
        let _ = self.ring(Which::Sq, slot);
        let _ = self.ring(Which::Rq, slot);
    }

    /// Creates a queue pair by the method.
    pub fn create_qp_ioctl(&mut self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let fd = self.fd(context)?;
        let kind = Self::kind_of(a[2]);
        let out = self.response.address();
        let caps = Body::new()
            .u32s(&[
                depth(a[6]),
                depth(a[6] >> 2),
                1 + a[7] % 4,
                1 + a[7] % 4,
                a[7] % 300,
            ])
            .0;
        let mut attrs = vec![
            (0, 0, 0),
            (2, 0, u64::from(self.handle(Kind::Pd, a[3], context))),
            (4, 0, u64::from(self.handle(Kind::Cq, a[4], context))),
            (5, 0, u64::from(self.handle(Kind::Cq, a[4] >> 4, context))),
            (7, 8, 1),
            (8, 20, caps.as_ptr() as u64),
            (9, 8, u64::from(kind)),
            (12, 0, self.contexts[context].map_or(0, |c| c.events) as u64),
            (13, 20, out + 256),
            (14, 4, out + 64),
            (UHW_OUT, 32, out),
        ];
        if a[5] % 4 == 1 {
            attrs.push((3, 0, u64::from(self.handle(Kind::Srq, a[5] >> 2, context))));
        }
        if a[5] == 15 {
            attrs.push((10, 4, u64::from(a[6])));
        }
        let got = self.method(fd, method::QP_CREATE, &attrs)?;
        let qpn = self.response.u32(64);
        self.keep_qp(a, context, kind, got[0] as u32, qpn, 0);
        Ok(i64::from(qpn))
    }

    fn change(&self, qp: &Object, mask: u32, attrs: &Attrs, extended: bool) -> Result<i64, i32> {
        let dest = Body::new()
            .bytes(&attrs.gid)
            .u32s(&[attrs.flow_label, 0])
            .bytes(&[attrs.sgid_index, 64, attrs.traffic_class, 0, 0, 0, 1, 1])
            .0;
        let body = Body::new()
            .bytes(&dest)
            .bytes(&dest)
            .u32s(&[
                qp.handle,
                mask,
                attrs.qkey,
                attrs.rq_psn,
                attrs.sq_psn,
                attrs.dest_qpn,
                attrs.access,
            ])
            .bytes(&attrs.pkey_index.to_ne_bytes())
            .bytes(&[
                0,
                0,
                attrs.state,
                attrs.current,
                attrs.path_mtu,
                0,
                0,
                attrs.rd_atomic,
                attrs.rd_atomic,
            ])
            .bytes(&[
                attrs.min_rnr,
                attrs.port,
                attrs.timeout,
                attrs.retries,
                attrs.rnr_retries,
                1,
                0,
                0,
                0,
            ]);
        let fd = self.fd(qp.context)?;
        if extended {
            self.command_ex(fd, command::MODIFY_QP, &body.u32s(&[0, 0]).0, 8, 0)
        } else {
            self.command(fd, command::MODIFY_QP, &body.0, 0)
        }
    }

    /// Returns the peer of a queue pair: the one in the adjacent slot.
    fn peer(slot: usize, arg: u32) -> usize {
        if arg == 15 {
            slot
        } else {
            (slot ^ 1) % SLOTS
        }
    }

    /// Takes a queue pair from RESET to RTS, connected to its peer; stops at the first error.
    pub fn connect(&mut self, a: &Args) -> Result<i64, i32> {
        let slot = self.near(Kind::Qp, a[0]);
        let qp = self.world.get(Kind::Qp, slot);
        let peer = self.world.get(Kind::Qp, Self::peer(slot, a[1]));
        let (own, _) = self.devices_of(qp.context);
        let (other, _) = self.devices_of(peer.context);
        let (sgid_index, _) = self.gid(own, a[2] % 2);
        let (_, gid) = self.gid(other, a[2] % 2);
        let attrs = Attrs {
            gid,
            sgid_index,
            flow_label: a[3],
            traffic_class: (a[3] >> 8) as u8,
            qkey: THE_QKEY,
            rq_psn: 100,
            sq_psn: 100,
            dest_qpn: peer.x[X_QPN] as u32,
            access: 0xf | (a[4] & 0x300),
            path_mtu: [3, 1, 2, 3, 4, 5][a[4] as usize % 6],
            rd_atomic: (a[5] % 9) as u8,
            min_rnr: 1 + (a[5] % 20) as u8,
            port: 1,
            timeout: [8, 10, 12, 0, 31][a[6] as usize % 5],
            retries: (a[6] % 8) as u8,
            rnr_retries: (a[7] % 8) as u8,
            ..Attrs::default()
        };
        self.change(&qp, STATE, &attrs, false)?;
        let (init, rtr, rts) = match qp.x[X_TYPE] as u32 {
            RC => (
                PKEY_INDEX | PORT | ACCESS,
                AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR,
                TIMEOUT | RETRY | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
            ),
            UD => (PKEY_INDEX | PORT | QKEY, 0, SQ_PSN),
            RAW_PACKET => (PORT, 0, 0),
            _ => (
                PKEY_INDEX | PORT | ACCESS,
                AV | PATH_MTU | DEST_QPN | RQ_PSN,
                SQ_PSN,
            ),
        };
        for (state, mask) in [(1, init), (2, rtr), (3, rts)]
            .iter()
            .take(1 + (a[1] as usize % 8).min(2))
        {
            self.change(
                &qp,
                STATE | mask,
                &Attrs {
                    state: *state,
                    ..attrs
                },
                false,
            )?;
        }
        Ok(0)
    }

    /// Modifies a queue pair with an arbitrary mask and values that are likely to be valid.
    pub fn modify_qp(&mut self, a: &Args) -> Result<i64, i32> {
        let slot = self.near(Kind::Qp, a[0]);
        let qp = self.world.get(Kind::Qp, slot);
        let peer = self.world.get(Kind::Qp, Self::peer(slot, a[1]));
        let (own, _) = self.devices_of(qp.context);
        let (sgid_index, _) = self.gid(own, a[3]);
        let (_, gid) = self.gid(own ^ 1, a[3]);
        let attrs = Attrs {
            gid,
            sgid_index,
            flow_label: a[6],
            traffic_class: a[6] as u8,
            qkey: if a[5] == 15 { a[6] } else { THE_QKEY },
            rq_psn: a[5],
            sq_psn: a[5],
            dest_qpn: if a[1] == 14 {
                a[6]
            } else {
                peer.x[X_QPN] as u32
            },
            access: a[7],
            pkey_index: if a[5] == 14 { a[6] as u16 } else { 0 },
            state: if a[4] < 8 { 3 } else { (a[4] % 8) as u8 },
            current: if a[4] < 8 { 3 } else { ((a[4] >> 4) & 7) as u8 },
            path_mtu: (a[7] % 7) as u8,
            rd_atomic: a[7] as u8,
            min_rnr: a[7] as u8 % 40,
            port: if a[4] == 0xff { 2 } else { 1 },
            timeout: (a[7] % 12) as u8,
            retries: a[5] as u8,
            rnr_retries: (a[5] >> 4) as u8,
        };
        let mask = match a[2] % 8 {
            0 | 1 => STATE | (1 << ((a[2] >> 3) & 31)),
            2 => ACCESS,
            3 => ACCESS | MIN_RNR,
            4 => QKEY,
            5 => PKEY_INDEX | PORT | ACCESS | STATE,
            6 => STATE | 2 | MIN_RNR,
            _ => a[2] >> 3,
        };
        self.change(&qp, mask, &attrs, a[6] % 3 == 0)
    }

    /// Changes only the state: to ERR or RESET, to SQD and back, from SQE to RTS.
    pub fn modify_qp_state(&mut self, a: &Args) -> Result<i64, i32> {
        let qp = self.world.get(Kind::Qp, self.near(Kind::Qp, a[0]));
        let state = [6, 0, 4, 3, 6, 0, 3, 4][a[1] as usize % 8];
        self.change(
            &qp,
            STATE,
            &Attrs {
                state,
                ..Attrs::default()
            },
            false,
        )
    }

    /// Queries all attributes.
    pub fn query_qp(&self, a: &Args) -> Result<i64, i32> {
        let qp = self.world.get(Kind::Qp, self.near(Kind::Qp, a[0]));
        let mask = if a[1] == 15 { a[2] } else { 0x1f_ffff };
        self.command(
            self.fd(qp.context)?,
            command::QUERY_QP,
            &Body::new().u32s(&[qp.handle, mask]).0,
            128,
        )
    }

    fn sge(&self, region: &Object, offset: u32, len: u32, odd: u32) -> Sge {
        let mut sge = Sge {
            addr: region.x[X_IOVA].wrapping_add(u64::from(offset)),
            len,
            key: region.x[X_LKEY] as u32,
        };
        match odd {
            0xf1 => sge.addr = u64::from(offset) << 44,
            0xf2 => sge.len = u32::MAX - len,
            0xf3 => sge.key ^= 1 << (offset % 32),
            0xf4 => {
                sge.addr = region.x[X_IOVA]
                    .wrapping_add(region.x[X_LEN])
                    .wrapping_sub(u64::from(len / 2))
            }
            _ => {}
        }
        sge
    }

    /// Returns the length of a message in bytes.
    fn message(arg: u32) -> u32 {
        const LENGTHS: [u32; 16] = [
            100,
            8,
            1024,
            4096,
            0,
            1,
            5000,
            65536,
            300,
            1 << 20,
            256,
            4095,
            20000,
            8192,
            100_000,
            1 << 30,
        ];
        LENGTHS[arg as usize % if arg & 0xf00 == 0 { 16 } else { 9 }]
    }

    /// Writes a send WQE to the ring, and usually rings the doorbell.
    pub fn post_send(&mut self, a: &Args) -> Result<i64, i32> {
        let slot = self.near(Kind::Qp, a[0]);
        let qp = self.world.get(Kind::Qp, slot);
        let ring = self.ring(Which::Sq, slot)?;
        let peer = self.world.get(Kind::Qp, Self::peer(slot, 0));
        let region = self.world.get(
            Kind::Mr,
            self.world.find(Kind::Mr, Self::slot(a[2]), qp.context),
        );
        let remote = self.world.get(
            Kind::Mr,
            self.world.find(Kind::Mr, Self::slot(a[3]), peer.context),
        );
        let window = self.world.get(
            Kind::Mw,
            self.world.find(Kind::Mw, Self::slot(a[3]), qp.context),
        );
        let peers_window = self.world.get(
            Kind::Mw,
            self.world.find(Kind::Mw, Self::slot(a[3]), peer.context),
        );
        let len = Self::message(a[4]);
        let offset = a[5] & 0xffff;
        // The peer's region, a window bound to it, or occasionally an arbitrary key.
        let rkey = match a[6] % 16 {
            0..=11 => remote.x[X_RKEY] as u32,
            12 | 13 => peers_window.x[X_LKEY] as u32,
            14 => remote.x[X_RKEY] as u32 ^ (1 << ((a[6] >> 4) & 31)),
            _ => a[6],
        };
        let opcode = if a[1] & 0xf0 == 0xf0 { a[1] } else { a[1] % 16 };
        let mut addr = remote.x[X_IOVA].wrapping_add(u64::from((a[5] >> 16) & 0xfff8));
        if a[5] & 0xf000_0000 == 0xf000_0000 {
            addr = addr.wrapping_add(u64::from(a[6]) << 8);
        }
        let kind = qp.x[X_TYPE] as u32;
        let own = if kind == UD || kind == 1 {
            let ah = self.world.get(
                Kind::Ah,
                self.world.find(Kind::Ah, Self::slot(a[7]), qp.context),
            );
            let qpn = if a[6] == 15 {
                0xff_ffff
            } else {
                peer.x[X_QPN] as u32
            };
            Body::new().u32s(&[qpn, THE_QKEY, 0, ah.x[X_LKEY] as u32])
        } else {
            match opcode {
                5 | 6 => Body::new()
                    .u64s(&[addr, u64::from(a[5]), 1])
                    .u32s(&[rkey, 0]),
                // Bind: the key of the window with another key byte.
                8 => {
                    let from = region.x[X_IOVA].wrapping_add(u64::from(offset));
                    let keys = [
                        region.x[X_LKEY] as u32,
                        window.x[X_LKEY] as u32,
                        window.x[X_LKEY] as u32 & !0xff | a[6] & 0xff,
                        a[7] & 0x3f,
                    ];
                    if a[6] % 3 != 0 {
                        let slot = self.world.find(Kind::Mw, Self::slot(a[3]), qp.context);
                        self.world.set(Kind::Mw, slot, X_LKEY, u64::from(keys[2]));
                    }
                    Body::new().u64s(&[from, u64::from(len)]).u32s(&keys)
                }
                14 => Body::new()
                    .u64s(&[addr])
                    .u32s(&[0, rkey])
                    .bytes(&[1 + a[7] as u8 % 3, a[6] as u8 % 2]),
                _ => Body::new().u64s(&[addr]).u32s(&[rkey, 0]),
            }
        };
        let flags = 2
            | ((a[1] >> 8) & 0x1d)
            | if a[1] & 0xf000_0000 == 0xf000_0000 {
                a[1] & 0xffff
            } else {
                0
            };
        let inline = flags & 8 != 0;
        let ex = match opcode {
            7 | 9 => {
                if a[6] % 2 == 0 {
                    peers_window.x[X_LKEY] as u32
                } else {
                    region.x[X_RKEY] as u32
                }
            }
            _ => a[7],
        };
        let atomic = matches!(opcode, 5 | 6 | 15);
        let len = if atomic { 8 } else { len };
        let count = if a[7] & 0xff == 0xff {
            a[7] >> 8
        } else {
            [1, 1, 1, 2, 0, 3][a[7] as usize % 6]
        };
        let mut wqe = Vec::new();
        if inline {
            wqe = send_wqe(opcode, flags, ex, &own.0, len.min(600), count, &[]);
            wqe.resize(wqe.len() + len.min(600) as usize, 0x5a);
        } else {
            let list: Vec<Sge> = (0..count.min(8))
                .map(|n| {
                    self.sge(
                        &region,
                        offset.wrapping_add(n * 7000),
                        len / count.clamp(1, 8),
                        a[7],
                    )
                })
                .collect();
            wqe.extend(send_wqe(opcode, flags, ex, &own.0, len, count, &list));
        }
        for _ in 0..1 + a[4] / 0x1000 % 4 {
            ring.post(&wqe);
        }
        if a[4] & 0x8000_0000 == 0 {
            return self.ring_doorbell(&qp);
        }
        Ok(0)
    }

    fn ring_doorbell(&self, qp: &Object) -> Result<i64, i32> {
        self.command(
            self.fd(qp.context)?,
            command::POST_SEND,
            &Body::new().u32s(&[qp.handle, 0, 0, 128]).0,
            4,
        )
    }

    /// Rings the doorbell only: other workers may have posted requests or corrupted the ring.
    pub fn doorbell(&self, a: &Args) -> Result<i64, i32> {
        let qp = self.world.get(Kind::Qp, self.near(Kind::Qp, a[0]));
        self.ring_doorbell(&qp)
    }

    /// Writes receive WQEs to a receive queue or a shared receive queue.
    pub fn post_recv(&mut self, a: &Args) -> Result<i64, i32> {
        let (which, kind) = if a[1] % 3 == 2 {
            (Which::Srq, Kind::Srq)
        } else {
            (Which::Rq, Kind::Qp)
        };
        let slot = self.near(kind, a[0]);
        let owner = self.world.get(kind, slot);
        let ring = self.ring(which, slot)?;
        let region = self.world.get(
            Kind::Mr,
            self.world.find(Kind::Mr, Self::slot(a[2]), owner.context),
        );
        let count = if a[7] & 0xff == 0xff {
            a[7] >> 8
        } else {
            [1, 1, 1, 2, 0][a[7] as usize % 5]
        };
        let len = Self::message(a[4]);
        let list: Vec<Sge> = (0..count.min(8))
            .map(|n| self.sge(&region, (a[5] & 0xffff) + n * 9000, len, a[7]))
            .collect();
        let wqe = recv_wqe(count, &list);
        for _ in 0..1 + a[6] % 8 {
            ring.post(&wqe);
        }
        Ok(0)
    }

    /// Consumes completions.
    pub fn consume_cq(&mut self, a: &Args) -> Result<i64, i32> {
        self.ring(Which::Cq, self.near(Kind::Cq, a[0]))?
            .consume(if a[1] % 2 == 0 { u32::MAX } else { a[1] });
        Ok(0)
    }

    fn any_ring(&mut self, a: &Args) -> Result<crate::rings::Ring, i32> {
        let choices = [
            (Which::Sq, Kind::Qp),
            (Which::Rq, Kind::Qp),
            (Which::Cq, Kind::Cq),
            (Which::Srq, Kind::Srq),
        ];
        let (which, kind) = choices[a[1] as usize % 4];
        self.ring(which, self.near(kind, a[0]))
    }

    /// Writes arbitrary bytes anywhere in a queue.
    pub fn overwrite_ring(&mut self, a: &Args) -> Result<i64, i32> {
        let ring = self.any_ring(a)?;
        let mut rng = fastrand::Rng::with_seed(u64::from(a[2]));
        let mut data = vec![0; [4, 8, 64, 256, 4096][a[3] as usize % 5]];
        rng.fill(&mut data);
        ring.overwrite(a[4], &data);
        Ok(0)
    }

    /// Sets an index of a queue to an arbitrary value.
    pub fn set_index(&mut self, a: &Args) -> Result<i64, i32> {
        let ring = self.any_ring(a)?;
        let index = match a[3] % 4 {
            0 => a[4],
            1 => ring.producer().wrapping_add(a[4] % 8),
            2 => ring.consumer().wrapping_sub(a[4] % 8),
            _ => ring.mask().wrapping_add(a[4] % 3),
        };
        ring.set(a[2] % 2 == 1, index);
        Ok(0)
    }

    /// Posts by the commands that carry work requests, which librxe does not use.
    pub fn post_by_command(&self, a: &Args) -> Result<i64, i32> {
        let kind = if a[1] % 3 == 2 { Kind::Srq } else { Kind::Qp };
        let owner = self.world.get(kind, Self::slot(a[0]));
        let count = a[2] % 4;
        let sges = a[3] % 4;
        let (number, len) = match a[1] % 3 {
            0 => (command::POST_SEND, 64),
            1 => (command::POST_RECV, 16),
            _ => (command::POST_SRQ_RECV, 16),
        };
        let size = if a[4] == 15 { a[5] } else { len };
        let mut body = Body::new().u32s(&[owner.handle, count, sges, size]);
        for _ in 0..count {
            let mut request = vec![0; len as usize];
            request[8] = (sges / count.max(1)) as u8;
            request[12] = a[6] as u8 % 16;
            body = body.bytes(&request);
        }
        for _ in 0..sges {
            let region = self.world.get(Kind::Mr, self.near(Kind::Mr, a[7]));
            body = body
                .u64s(&[region.x[X_IOVA]])
                .u32s(&[100, region.x[X_LKEY] as u32]);
        }
        self.command(self.fd(owner.context)?, number, &body.0, 4)
    }

    /// Writes to memory that may be registered.
    pub fn touch(&self, a: &Args) -> Result<i64, i32> {
        let at = world::address(a[0]);
        if (world::RING_BASE..world::RING_BASE + world::RING_STEP).contains(&at) {
            return Ok(0);
        }
        let data = vec![a[1] as u8; 1 + a[2] as usize % 8192];
        if a[3] % 2 == 0 {
            sys::poke(at, &data).map(|n| n as i64)
        } else {
            let mut data = data;
            sys::peek(at, &mut data).map(|n| n as i64)
        }
    }
}
