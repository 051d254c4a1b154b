// SPDX-License-Identifier: GPL-2.0
//! Tests of the number types.
use super::*;

#[test]
fn psn_wraps_at_24_bits() {
    assert_eq!(Psn::new(0x0100_0005), Psn::new(5));
    assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
    assert_eq!(Psn::new(0).prev(), Psn::new(0xff_ffff));
    assert_eq!(Psn::new(0xff_fff0).wrapping_add(0x20), Psn::new(0x10));
    assert_eq!(Psn::new(7).wrapping_add(u32::MAX), Psn::new(6));
}

#[test]
fn psn_order_is_that_of_the_nearer_half_circle() {
    let p = Psn::new(0xff_fffe);
    assert_eq!(Psn::new(3).delta(p), 5);
    assert_eq!(p.delta(Psn::new(3)), -5);
    assert!(p.is_before(Psn::new(3)));
    assert!(!Psn::new(3).is_before(p));
    assert!(!p.is_before(p));
    assert_eq!(p.wrapping_add(0x7f_ffff).delta(p), 0x7f_ffff);
    assert_eq!(p.wrapping_add(0x80_0000).delta(p), -0x80_0000);
}

#[test]
fn psn_bytes_round_trip() {
    assert_eq!(Psn::new(0x123456).to_be_bytes(), [0x12, 0x34, 0x56]);
    assert_eq!(Psn::from_be_bytes([0x12, 0x34, 0x56]), Psn::new(0x123456));
    assert_eq!(
        Qpn::from_be_bytes(Qpn::new(0xabcdef).to_be_bytes()),
        Qpn::new(0xabcdef)
    );
}

#[test]
fn msn_counts_modulo_24_bits() {
    assert_eq!(Msn::new(0xff_ffff).next(), Msn::new(0));
    assert_eq!(Msn::new(1).delta(Msn::new(0xff_ffff)), 2);
}

#[test]
fn memory_keys_split_into_index_and_variant() {
    let key = RKey::from_parts(0xab_cdef, 0x42);
    assert_eq!(key, RKey(0xabcd_ef42));
    assert_eq!((key.index(), key.variant()), (0xab_cdef, 0x42));
    assert_eq!(LKey::from_parts(0xff00_0001, 0).index(), 1);
}

#[test]
fn gid_kinds() {
    let v4 = Gid::from_v4([10, 9, 0, 1]);
    assert!(v4.is_v4_mapped());
    assert_eq!(v4.to_v4(), Some([10, 9, 0, 1]));
    assert!(!v4.is_multicast());
    assert!(Gid::from_v4([224, 0, 0, 1]).is_multicast());
    assert!(Gid::from_v4([239, 255, 255, 255]).is_multicast());
    assert!(!Gid::from_v4([240, 0, 0, 1]).is_multicast());
    let mut ll = [0; 16];
    (ll[0], ll[1]) = (0xfe, 0x80);
    assert!(Gid(ll).is_link_local() && !Gid(ll).is_v4_mapped());
    (ll[0], ll[1]) = (0xff, 0x0e);
    assert!(Gid(ll).is_multicast() && !Gid(ll).is_link_local());
    assert!(Gid::ZERO.is_zero() && !v4.is_zero());
}

#[test]
fn mtu_table() {
    for value in 1..=5 {
        let mtu = Mtu::from_ib_enum(value).unwrap();
        assert_eq!(mtu.to_ib_enum(), value);
        assert_eq!(mtu.bytes(), 128 << value);
        assert_eq!(1 << mtu.shift(), mtu.bytes());
    }
    assert_eq!(Mtu::from_ib_enum(0), None);
    assert_eq!(Mtu::from_ib_enum(6), None);
}

#[test]
fn mtu_fits_below_the_reserve() {
    assert_eq!(Mtu::largest_fitting(0), None);
    assert_eq!(Mtu::largest_fitting(339), None);
    assert_eq!(Mtu::largest_fitting(340), Some(Mtu::Mtu256));
    assert_eq!(Mtu::largest_fitting(1500), Some(Mtu::Mtu1024));
    assert_eq!(Mtu::largest_fitting(4179), Some(Mtu::Mtu2048));
    assert_eq!(Mtu::largest_fitting(4180), Some(Mtu::Mtu4096));
    assert_eq!(Mtu::largest_fitting(65536), Some(Mtu::Mtu4096));
    assert_eq!(Mtu::largest_fitting(u32::MAX), Some(Mtu::Mtu4096));
}

/// At the active MTU of any netdev every packet fits, also over IPv6.
#[test]
fn active_mtu_fits() {
    for netdev_mtu in 0..10_000 {
        if let Some(mtu) = Mtu::largest_fitting(netdev_mtu) {
            assert!(mtu.fits(netdev_mtu, 48), "{netdev_mtu}");
        }
    }
}

/// Over IPv4 (28 bytes of headers) and IPv6 (48); a single-packet WRITE with immediate data is the
/// longest packet.
#[test]
fn packets_that_fit_a_path() {
    assert!(Mtu::Mtu4096.fits(4096 + 28 + 36, 28));
    assert!(!Mtu::Mtu4096.fits(4096 + 28 + 35, 28));
    assert!(!Mtu::Mtu4096.fits(4096 + 28 + 36, 48));
    assert!(Mtu::Mtu4096.fits(4096 + 48 + 36, 48));
    assert!(Mtu::Mtu256.fits(u32::MAX, 48));
    assert!(!Mtu::Mtu256.fits(u32::MAX - 1, u32::MAX));
    assert!(!Mtu::Mtu256.fits(0, 48));
}
