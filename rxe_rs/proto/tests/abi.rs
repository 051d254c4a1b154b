// SPDX-License-Identifier: GPL-2.0
//! Tests of the ring formats: layout against the uapi header, decoding against hostile input.
use super::layout::*;
use super::*;
use crate::check::window::Bind;
use crate::engine::wc::{NetworkType, Wc, WcOpcode, WcStatus};
use crate::engine::wr::{AhName, FlushKind, LocalOp, RemoteAddr, SendBody, UdDest};
use crate::engine::Service;
use crate::ids::{QKey, Qpn, RKey};
use crate::wire::feth::Selectivity;
use core::mem::offset_of;
use proptest::prelude::*;

/// Sizes and offsets of `rdma_user_rxe.h` as gcc reports them on x86-64.
#[test]
fn uapi_layout() {
    assert_eq!(
        (SEND_WQE_LEN, RECV_WQE_LEN, SGE_LEN, CQE_LEN),
        (208, 40, 16, 48)
    );
    assert_eq!(size_of::<DmaInfo>(), 24);
    assert_eq!(offset_of!(DmaInfo, length), 0);
    assert_eq!(offset_of!(DmaInfo, num_sge), 12);
    assert_eq!(offset_of!(RingSendWqe, wr_id), 0);
    assert_eq!(offset_of!(RingSendWqe, opcode), 12);
    assert_eq!(offset_of!(RingSendWqe, send_flags), 16);
    assert_eq!(offset_of!(RingSendWqe, ex), 20);
    assert_eq!(offset_of!(RingSendWqe, wr), 24);
    assert_eq!(offset_of!(RingSendWqe, dma), 184);
    assert_eq!(offset_of!(RdmaWr, rkey), 32 - 24);
    assert_eq!(offset_of!(AtomicWr, compare_add), 32 - 24);
    assert_eq!(offset_of!(AtomicWr, swap), 40 - 24);
    assert_eq!(offset_of!(AtomicWr, rkey), 48 - 24);
    assert_eq!(offset_of!(MwWr, addr), 24 - 24);
    assert_eq!(offset_of!(MwWr, length), 32 - 24);
    assert_eq!(offset_of!(MwWr, region), 40 - 24);
    assert_eq!(offset_of!(MwWr, window), 44 - 24);
    assert_eq!(offset_of!(MwWr, key), 48 - 24);
    assert_eq!(offset_of!(MwWr, access), 52 - 24);
    assert_eq!(offset_of!(UdWr, remote_qpn), 24 - 24);
    assert_eq!(offset_of!(UdWr, remote_qkey), 28 - 24);
    assert_eq!(offset_of!(UdWr, ah_num), 36 - 24);
    assert_eq!(offset_of!(UdWr, vector), 56 - 24);
    assert_eq!(offset_of!(Vector, dgid), 64 - 56);
    assert_eq!(offset_of!(Vector, flow_label), 80 - 56);
    assert_eq!(offset_of!(Vector, sgid_index), 84 - 56);
    assert_eq!(offset_of!(Vector, traffic_class), 86 - 56);
    assert_eq!(offset_of!(RingRecvWqe, wr_id), 0);
    assert_eq!(offset_of!(RingRecvWqe, dma), 16);
    assert_eq!(offset_of!(Sge, length), 8);
    assert_eq!(offset_of!(Sge, lkey), 12);
    assert_eq!(queue::HEADER_LEN, 384);
    assert_eq!((queue::LOG2_ELEM_SIZE, queue::INDEX_MASK), (0, 4));
    assert_eq!((queue::PRODUCER_INDEX, queue::CONSUMER_INDEX), (128, 256));
}

const LIMITS: SendLimits = SendLimits {
    service: Service::Rc,
    max_sge: 4,
    max_inline: 64,
    signal_all: false,
};

fn on(service: Service) -> SendLimits {
    SendLimits { service, ..LIMITS }
}

/// A ring element of 208 + 64 bytes under construction.
struct Element([u8; 272]);

impl Element {
    fn new(opcode: u32, flags: u32) -> Self {
        let mut element = Self([0; 272]);
        element.u64(0, 0x1122_3344_5566_7788);
        element.u32(12, opcode);
        element.u32(16, flags);
        element
    }

    fn u32(&mut self, at: usize, value: u32) -> &mut Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(&mut self, at: usize, value: u64) -> &mut Self {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn sges(&mut self, lengths: &[u32]) -> &mut Self {
        self.u32(184 + 12, lengths.len() as u32);
        for (index, length) in lengths.iter().enumerate() {
            self.u64(208 + 16 * index, 0x1000 * index as u64);
            self.u32(208 + 16 * index + 8, *length);
            self.u32(208 + 16 * index + 12, 0x100);
        }
        self
    }
}

fn status(element: &Element, limits: &SendLimits) -> Option<WcStatus> {
    decode_send(&element.0, limits).wqe.invalid
}

#[test]
fn write_takes_its_length_from_the_list() {
    let mut element = Element::new(1, 2 | 4 | 1);
    element
        .u64(24, 0xdead_beef_0000)
        .u32(32, 0x4242)
        .sges(&[100, 0, 28]);
    element.u32(184, 7); // The length set by librxe is ignored.
    element.0[20..24].copy_from_slice(&[1, 2, 3, 4]);
    let entry = decode_send(&element.0, &LIMITS);
    let wr = entry.wqe.wr;
    assert_eq!(entry.wqe.invalid, None);
    assert_eq!(wr.wr_id, 0x1122_3344_5566_7788);
    let to = RemoteAddr {
        addr: 0xdead_beef_0000,
        rkey: RKey(0x4242),
    };
    assert_eq!(wr.body, SendBody::WriteImm(to, [1, 2, 3, 4]));
    assert_eq!((wr.length, wr.num_sge), (128, 3));
    assert!(wr.flags.signaled && wr.flags.solicited && wr.flags.fence && !wr.flags.inline);
    assert_eq!(entry.data, &element.0[208..208 + 48]);
}

#[test]
fn inline_data_with_and_without_the_flag() {
    for (flags, num_sge, fits) in [(8, 3, true), (8, 0, true), (0, 0, true), (0, 5, false)] {
        let mut element = Element::new(2, flags);
        element.u32(184, 20).u32(196, num_sge);
        let entry = decode_send(&element.0, &LIMITS);
        assert_eq!(entry.wqe.invalid.is_none(), fits);
        if fits {
            assert!(entry.wqe.wr.flags.inline);
            assert_eq!((entry.wqe.wr.length, entry.wqe.wr.num_sge), (20, 0));
            assert_eq!(entry.data, &element.0[208..228]);
        }
    }
    let mut element = Element::new(2, 8);
    assert_eq!(status(element.u32(184, 64), &LIMITS), None);
    assert_eq!(
        status(element.u32(184, 65), &LIMITS),
        Some(WcStatus::LocLenErr)
    );
    assert_eq!(
        status(element.u32(184, u32::MAX), &LIMITS),
        Some(WcStatus::LocLenErr)
    );
    // Longer than the element, with any limit.
    let generous = SendLimits {
        max_inline: 4096,
        ..LIMITS
    };
    assert_eq!(
        status(element.u32(184, 100), &generous),
        Some(WcStatus::LocLenErr)
    );
    // Nothing to read into.
    let mut element = Element::new(4, 8);
    assert_eq!(
        status(element.u32(184, 8), &LIMITS),
        Some(WcStatus::LocQpOpErr)
    );
}

#[test]
fn empty_inline_data() {
    for flags in [0, 8] {
        let element = Element::new(2, flags);
        let entry = decode_send(&element.0, &LIMITS);
        assert_eq!(entry.wqe.invalid, None);
        assert_eq!(entry.wqe.wr.length, 0);
        assert!(entry.data.is_empty());
    }
}

#[test]
fn operations_by_transport() {
    for opcode in (0..64).chain([u32::MAX, 0x8000_0002]) {
        let mut element = Element::new(opcode, 0);
        element.sges(&[8]);
        let fine = |service| status(&element, &on(service)).is_none();
        // FLUSH and ATOMIC WRITE need more than this element has.
        assert_eq!(fine(Service::Rc), opcode <= 9, "{opcode}");
        let uc = opcode <= 3 || opcode == 8;
        assert_eq!(fine(Service::Uc), uc, "{opcode}");
        assert_eq!(fine(Service::Ud), opcode == 2 || opcode == 3, "{opcode}");
        assert_eq!(fine(Service::Gsi), opcode == 2 || opcode == 3, "{opcode}");
        assert_eq!(fine(Service::Raw), opcode == 2, "{opcode}");
    }
}

#[test]
fn local_operations_and_send_with_invalidate() {
    let mut element = Element::new(7, 3);
    element.0[20..24].copy_from_slice(&0x1234_5678u32.to_ne_bytes());
    element.sges(&[8]);
    let entry = decode_send(&element.0, &LIMITS);
    let wr = entry.wqe.wr;
    let invalidate = LocalOp::Invalidate(RKey(0x1234_5678));
    assert_eq!(wr.body, SendBody::Local(invalidate));
    assert!(entry.data.is_empty() && wr.num_sge == 0 && wr.length == 0);
    assert!(wr.flags.fence && wr.flags.signaled);

    let mut element = Element::new(8, 0);
    element.0[24..32].copy_from_slice(&0x1111_2222_3333_4444u64.to_ne_bytes());
    element.0[32..40].copy_from_slice(&0x5555_6666_7777_8888u64.to_ne_bytes());
    for (at, word) in [(40, 1u32), (44, 2), (48, 3), (52, 4)] {
        element.0[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    let bind = Bind {
        window: RKey(2),
        key: RKey(3),
        region: 1,
        addr: 0x1111_2222_3333_4444,
        length: 0x5555_6666_7777_8888,
        access: 4,
    };
    for service in [Service::Rc, Service::Uc] {
        let wr = decode_send(&element.0, &on(service)).wqe.wr;
        assert_eq!(wr.body, SendBody::Local(LocalOp::Bind(bind)));
    }

    let mut element = Element::new(9, 0);
    element.0[20..24].copy_from_slice(&0x1234_5678u32.to_ne_bytes());
    element.sges(&[8]);
    let wr = decode_send(&element.0, &LIMITS).wqe.wr;
    assert_eq!(
        (wr.body, wr.length),
        (SendBody::SendInv(RKey(0x1234_5678)), 8)
    );
}

#[test]
fn atomic_write_and_flush() {
    let mut element = Element::new(15, 0);
    element.0[24..32].copy_from_slice(&0x1000u64.to_ne_bytes());
    element.0[32..36].copy_from_slice(&0x1234_5678u32.to_ne_bytes());
    element.0[208..216].copy_from_slice(b"12345678");
    assert_eq!(status(&element, &LIMITS), Some(WcStatus::LocQpOpErr));
    element.0[184..188].copy_from_slice(&8u32.to_ne_bytes());
    let entry = decode_send(&element.0, &LIMITS);
    let wr = entry.wqe.wr;
    assert_eq!(entry.wqe.invalid, None);
    let at = RemoteAddr {
        addr: 0x1000,
        rkey: RKey(0x1234_5678),
    };
    assert_eq!((wr.body, wr.length), (SendBody::AtomicWrite(at), 8));
    assert!(wr.flags.inline && entry.data == b"12345678");
    assert_eq!(
        status(&element, &on(Service::Uc)),
        Some(WcStatus::LocQpOpErr)
    );
    element.0[24] = 4;
    assert_eq!(status(&element, &LIMITS), Some(WcStatus::LocQpOpErr));

    let mut element = Element::new(14, 0);
    element.0[24..32].copy_from_slice(&0x1001u64.to_ne_bytes());
    element.0[36..40].copy_from_slice(&0x1234_5678u32.to_ne_bytes());
    element.0[184..188].copy_from_slice(&100u32.to_ne_bytes());
    for (placement, level) in [(1, 0), (2, 1), (3, 0)] {
        (element.0[40], element.0[41]) = (placement, level);
        let wr = decode_send(&element.0, &LIMITS).wqe.wr;
        let selectivity = [Selectivity::Range, Selectivity::Region][usize::from(level)];
        let at = RemoteAddr { addr: 0x1001, ..at };
        let kind = FlushKind {
            placement,
            selectivity,
        };
        assert_eq!((wr.body, wr.length), (SendBody::Flush(at, kind), 100));
    }
    for (placement, level) in [(0, 0), (4, 0), (1, 2)] {
        (element.0[40], element.0[41]) = (placement, level);
        assert_eq!(status(&element, &LIMITS), Some(WcStatus::LocQpOpErr));
    }
}

#[test]
fn completion_with_an_invalidated_key() {
    let bytes = encode_cqe(&Wc {
        imm: None,
        invalidated: Some(RKey(0x1234_5678)),
        grh: None,
        ..wc()
    });
    assert_eq!(bytes[24..28], 0x1234_5678u32.to_ne_bytes());
    assert_eq!(bytes[36..40], (1u32 << 3).to_ne_bytes());
}

#[test]
fn invalid_requests_keep_their_wr_id() {
    let element = Element::new(0x20, 2);
    let wqe = decode_send(&element.0, &LIMITS).wqe;
    assert_eq!(wqe.invalid, Some(WcStatus::LocQpOpErr));
    assert_eq!(wqe.wr.wr_id, 0x1122_3344_5566_7788);
    assert_eq!(
        decode_send(&[0; 207], &LIMITS).wqe.invalid,
        Some(WcStatus::LocQpOpErr)
    );
}

#[test]
fn atomics_are_aligned_words() {
    let mut element = Element::new(5, 0);
    element
        .u64(24, 0x1000)
        .u64(32, 11)
        .u64(40, 22)
        .u32(48, 33)
        .sges(&[8]);
    let wr = decode_send(&element.0, &LIMITS).wqe.wr;
    let at = RemoteAddr {
        addr: 0x1000,
        rkey: RKey(33),
    };
    let (compare, swap) = (11, 22);
    let body = SendBody::CmpSwp { at, compare, swap };
    assert_eq!((wr.body, wr.length), (body, 8));
    element.u32(12, 6);
    let wr = decode_send(&element.0, &LIMITS).wqe.wr;
    assert_eq!(wr.body, SendBody::FetchAdd { at, add: 11 });
    assert_eq!(status(element.sges(&[4, 4]), &LIMITS), None);
    assert_eq!(
        decode_send(&element.sges(&[64]).0, &LIMITS).wqe.wr.length,
        8
    );
    assert_eq!(
        status(element.sges(&[7]), &LIMITS),
        Some(WcStatus::LocLenErr)
    );
    element.sges(&[8]).u64(24, 0x1004);
    assert_eq!(status(&element, &LIMITS), Some(WcStatus::LocQpOpErr));
}

#[test]
fn destination_of_datagrams() {
    let mut element = Element::new(3, 0);
    element
        .u32(24, 0xff12_3456)
        .u32(28, 0x8000_0001)
        .u32(36, 77)
        .sges(&[40]);
    let wr = decode_send(&element.0, &on(Service::Ud)).wqe.wr;
    let to = UdDest {
        qpn: Qpn::new(0x12_3456),
        qkey: QKey(0x8000_0001),
        ah: AhName::Number(77),
        pkey_index: 0,
    };
    assert_eq!(wr.body, SendBody::DatagramImm(to, [0; 4]));
}

/// A request without the number of an address handle names it by its address vector; the port,
/// the Ethernet address and the hop limit, which the core may have resolved otherwise, do not
/// count, each of the other fields does.
#[test]
fn destination_by_address_vector() {
    let named = |change: usize| {
        let mut element = Element::new(3, 0);
        element.u32(24, 1).u32(28, 2).sges(&[40]);
        for (at, byte) in element.0[56..104].iter_mut().enumerate() {
            *byte = at as u8;
        }
        // 20 bits of the flow label.
        element.0[80..84].copy_from_slice(&0x1_2345u32.to_ne_bytes());
        if let Some(byte) = element.0.get_mut(change) {
            *byte ^= 1;
        }
        match decode_send(&element.0, &on(Service::Ud)).wqe.wr.body {
            SendBody::DatagramImm(to, _) => to.ah,
            other => panic!("{other:?}"),
        }
    };
    let key = VectorKey {
        dgid: core::array::from_fn(|i| 8 + i as u8),
        flow_label: 0xfff1_2345,
        sgid_index: 28,
        traffic_class: 30,
    };
    let own = AhName::Vector(key.digest());
    assert_eq!(named(usize::MAX), own);
    for at in 56..104 {
        // The last byte of the flow label is beyond its 20 bits.
        let counts = (64..83).contains(&at) || at == 84 || at == 86;
        assert_eq!(named(at) != own, counts, "byte {at}");
    }
}

#[test]
fn sge_lists_are_bounded() {
    let mut element = Element::new(2, 0);
    assert_eq!(status(element.sges(&[1, 2, 3, 4]), &LIMITS), None);
    let three = SendLimits {
        max_sge: 3,
        ..LIMITS
    };
    assert_eq!(status(&element, &three), Some(WcStatus::LocQpOpErr));
    // More entries than the element has room for.
    let many = SendLimits {
        max_sge: 32,
        ..LIMITS
    };
    assert_eq!(
        status(element.u32(196, 5), &many),
        Some(WcStatus::LocQpOpErr)
    );
    assert_eq!(
        status(element.u32(196, u32::MAX), &many),
        Some(WcStatus::LocQpOpErr)
    );
    // Sums that wrap or exceed the longest message.
    assert_eq!(
        status(element.sges(&[u32::MAX, 2]), &LIMITS),
        Some(WcStatus::LocLenErr)
    );
    assert_eq!(
        status(element.sges(&[MAX_MESSAGE, 1]), &LIMITS),
        Some(WcStatus::LocLenErr)
    );
    assert_eq!(status(element.sges(&[MAX_MESSAGE, 0]), &LIMITS), None);
}

#[test]
fn signal_all() {
    let element = Element::new(2, 0);
    assert!(!decode_send(&element.0, &LIMITS).wqe.wr.flags.signaled);
    let all = SendLimits {
        signal_all: true,
        ..LIMITS
    };
    assert!(decode_send(&element.0, &all).wqe.wr.flags.signaled);
}

#[test]
fn receive_requests() {
    let mut element = [0u8; 40 + 32];
    element[..8].copy_from_slice(&5u64.to_ne_bytes());
    element[28..32].copy_from_slice(&2u32.to_ne_bytes());
    element[48..52].copy_from_slice(&10u32.to_ne_bytes());
    element[64..68].copy_from_slice(&20u32.to_ne_bytes());
    let entry = decode_recv(&element, 2).unwrap();
    assert_eq!((entry.wr.wr_id, entry.wr.length), (5, 30));
    assert_eq!(entry.list, &element[40..72]);
    assert_eq!(decode_recv(&element, 1).unwrap_err(), BadRecv { wr_id: 5 });
    element[28..32].copy_from_slice(&3u32.to_ne_bytes());
    assert_eq!(decode_recv(&element, 32).unwrap_err(), BadRecv { wr_id: 5 });
    assert_eq!(
        decode_recv(&element[..39], 32).unwrap_err(),
        BadRecv { wr_id: 0 }
    );
    element[28..32].copy_from_slice(&2u32.to_ne_bytes());
    element[48..52].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(decode_recv(&element, 2).unwrap().wr.length, u32::MAX);
}

fn wc() -> Wc {
    Wc {
        wr_id: 0x0102_0304_0506_0708,
        status: WcStatus::Success,
        opcode: WcOpcode::RecvRdmaWithImm,
        byte_len: 77,
        imm: Some([9, 8, 7, 6]),
        invalidated: None,
        qpn: 0x11,
        src_qpn: 0x12,
        pkey_index: 3,
        grh: Some(NetworkType::V4),
        vlan: None,
        solicited: false,
    }
}

#[test]
fn completions() {
    let bytes = encode_cqe(&wc());
    let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(bytes[..8], 0x0102_0304_0506_0708u64.to_ne_bytes());
    assert_eq!(
        (u32_at(8), u32_at(12), u32_at(16), u32_at(20)),
        (0, 129, 0, 77)
    );
    assert_eq!(bytes[24..28], [9, 8, 7, 6]);
    assert_eq!((u32_at(28), u32_at(32), u32_at(36)), (0x11, 0x12, 3));
    assert_eq!(bytes[40..42], 3u16.to_ne_bytes());
    assert_eq!(bytes[46], 1);
}

/// As ConnectX reports it: UDP and the version of IP for datagrams, nothing for connections.
#[test]
fn service_level_reports_the_network_type() {
    let service_level = |grh| encode_cqe(&Wc { grh, ..wc() })[44];
    assert_eq!(service_level(Some(NetworkType::V4)), 0b1010);
    assert_eq!(service_level(Some(NetworkType::V6)), 0b1001);
    assert_eq!(service_level(None), 0);
}

#[test]
fn failed_completions_have_status_and_qp_number() {
    let bytes = encode_cqe(&Wc {
        status: WcStatus::RetryExcErr,
        ..wc()
    });
    assert_eq!(bytes[8..12], 12u32.to_ne_bytes());
    assert_eq!(bytes[12..28], [0; 16]);
    assert_eq!(bytes[28..32], 0x11u32.to_ne_bytes());
    assert_eq!(bytes[32..46], [0; 14]);
}

proptest! {
    /// For any ring content, all accepted requests are within bounds.
    #[test]
    fn any_bytes_decode_within_bounds(
        mut element in proptest::collection::vec(any::<u8>(), 0..300),
        opcode in 0u32..17,
        num_sge in 0u32..6,
        length in 0u32..80,
        patch in any::<bool>(),
        which in 0usize..5,
    ) {
        if patch && element.len() >= 208 {
            element[12..16].copy_from_slice(&opcode.to_ne_bytes());
            element[184..188].copy_from_slice(&length.to_ne_bytes());
            element[196..200].copy_from_slice(&num_sge.to_ne_bytes());
        }
        let services = [
            Service::Rc,
            Service::Uc,
            Service::Ud,
            Service::Gsi,
            Service::Raw,
        ];
        let service = services[which];
        let limits = on(service);
        let entry = decode_send(&element, &limits);
        let wr = entry.wqe.wr;
        if entry.wqe.invalid.is_none() {
            prop_assert!(wr.length <= MAX_MESSAGE);
            prop_assert!(wr.num_sge <= limits.max_sge);
            if wr.flags.inline {
                prop_assert!(wr.length <= limits.max_inline);
                prop_assert_eq!(entry.data.len(), wr.length as usize);
            } else {
                prop_assert_eq!(entry.data.len(), usize::from(wr.num_sge) * SGE_LEN);
            }
        } else {
            prop_assert!(entry.data.is_empty() && wr.length == 0 && !wr.flags.inline);
        }
        if let Ok(entry) = decode_recv(&element, 4) {
            prop_assert!(entry.list.len() <= 4 * SGE_LEN);
        }
    }
}
