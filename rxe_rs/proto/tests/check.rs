// SPDX-License-Identifier: GPL-2.0
//! Tests of the admission rules, exhaustive where that is possible.
use super::rkey::AccessError;
use super::window::{check_bind, Bind, BindError, WindowState, WindowType};
use super::*;
use crate::ids::{PKey, QKey, RKey};
use crate::table::region::{Access, MrDesc, State};
use proptest::prelude::*;

/// Every key against the interesting ones.
#[test]
fn pkeys() {
    for fixed in [
        0x0000, 0x8000, 0x0001, 0x8001, 0x7fff, 0xffff, 0x1234, 0x9234,
    ] {
        for other in 0..=0xffffu16 {
            let same = fixed & 0x7fff == other & 0x7fff;
            let zero = fixed & 0x7fff == 0;
            let full = (fixed | other) & 0x8000 != 0;
            let (a, b) = (PKey(fixed), PKey(other));
            assert_eq!(
                pkey::matches(a, b),
                same && !zero && full,
                "{fixed:#x} {other:#x}"
            );
            assert_eq!(pkey::matches(a, b), pkey::matches(b, a));
        }
    }
}

#[test]
fn qkeys() {
    let own = QKey(0x1111);
    assert_eq!(qkey::outgoing(QKey(0x2222), own), QKey(0x2222));
    assert_eq!(qkey::outgoing(QKey(0x7fff_ffff), own), QKey(0x7fff_ffff));
    assert_eq!(qkey::outgoing(QKey(0x8000_0000), own), own);
    assert_eq!(qkey::outgoing(QKey::GSI, own), own);
    assert!(qkey::accepts(own, own) && !qkey::accepts(QKey(0), own));
}

fn region() -> MrDesc {
    MrDesc {
        pd: 7,
        key: 0x1234_5678,
        iova: 0x1000,
        length: 0x100,
        access: Access::LOCAL_WRITE.union(Access::REMOTE_READ),
        state: State::Valid,
    }
}

const MINE: (u64, u32) = (7, 0x11);

fn bindable() -> MrDesc {
    MrDesc {
        access: Access::LOCAL_WRITE.union(Access::MW_BIND),
        ..region()
    }
}

fn window(kind: WindowType) -> WindowState {
    WindowState {
        kind,
        pd: 7,
        key: RKey(0x9999_9901),
        bound: false,
    }
}

fn binding() -> Bind {
    Bind {
        window: RKey(0x9999_9901),
        key: RKey(0x9999_9902),
        region: 0x1234_5678,
        addr: 0x1040,
        length: 0x20,
        access: 0x6,
    }
}

#[test]
fn bind_checks() {
    use BindError as E;
    use WindowType::{One, Two};
    let mr = bindable();
    let try_bind = |state: WindowState, mr: MrDesc, pd, change: &dyn Fn(&mut Bind)| {
        let mut bind = binding();
        change(&mut bind);
        check_bind(&state, Some(&mr), pd, 0x11, &bind).map(|w| w.is_some())
    };
    let same: &dyn Fn(&mut Bind) = &|_| ();
    for kind in [One, Two] {
        let w = window(kind);
        assert_eq!(try_bind(w, mr, 7, same), Ok(true));
        // Key: the old one, for type 1 exactly; the new one of the same row.
        let stale = try_bind(w, mr, 7, &|b| b.window = RKey(0x9999_9900));
        match kind {
            One => assert_eq!(stale, Err(E::BadKey)),
            Two => assert_eq!(stale, Ok(true)),
        }
        assert_eq!(
            try_bind(w, mr, 7, &|b| b.window = RKey(0x9999_9801)),
            Err(E::BadKey)
        );
        assert_eq!(
            try_bind(w, mr, 7, &|b| b.key = RKey(0x9999_9802)),
            Err(E::BadKey)
        );
        // Domain of window, region and queue pair.
        assert_eq!(try_bind(w, mr, 8, same), Err(E::WrongPd));
        let foreign = MrDesc { pd: 8, ..mr };
        assert_eq!(try_bind(w, foreign, 7, same), Err(E::WrongPd));
        let foreign = WindowState { pd: 8, ..w };
        assert_eq!(try_bind(foreign, mr, 7, same), Err(E::WrongPd));
        // The region: its key, its state, its rights.
        assert_eq!(try_bind(w, mr, 7, &|b| b.region = 1), Err(E::NoRight));
        let free = MrDesc {
            state: State::Free,
            ..mr
        };
        assert_eq!(try_bind(w, free, 7, same), Err(E::NoRight));
        assert_eq!(try_bind(w, region(), 7, same), Err(E::NoRight));
        let read_only = MrDesc {
            access: Access::MW_BIND,
            ..mr
        };
        assert_eq!(try_bind(w, read_only, 7, same), Err(E::NoRight));
        assert_eq!(try_bind(w, read_only, 7, &|b| b.access = 4), Ok(true));
        assert_eq!(
            try_bind(w, read_only, 7, &|b| b.access = 8),
            Err(E::NoRight)
        );
        assert_eq!(
            check_bind(&w, None, 7, 0x11, &binding()),
            Err(E::NoRight),
            "no such region"
        );
        // Bounds.
        assert_eq!(try_bind(w, mr, 7, &|b| b.length = 0xc0), Ok(true));
        assert_eq!(
            try_bind(w, mr, 7, &|b| b.length = 0xc1),
            Err(E::OutOfBounds)
        );
        assert_eq!(
            try_bind(w, mr, 7, &|b| b.length = u64::MAX),
            Err(E::OutOfBounds)
        );
        assert_eq!(try_bind(w, mr, 7, &|b| b.addr = 0xfff), Err(E::OutOfBounds));
        // Local rights are not a window's to give.
        assert_eq!(try_bind(w, mr, 7, &|b| b.access = 7), Ok(true));
        for bad in [0x10, 0x40, 0x100, 1 << 12] {
            assert_eq!(
                try_bind(w, mr, 7, &|b| b.access = bad),
                Err(E::NoRight),
                "{bad:#x}"
            );
        }
    }
    // What differs between the types.
    let bound = |kind| WindowState {
        bound: true,
        ..window(kind)
    };
    assert_eq!(try_bind(bound(One), mr, 7, same), Ok(true));
    assert_eq!(try_bind(bound(Two), mr, 7, same), Err(E::BadState));
    assert_eq!(try_bind(bound(One), mr, 7, &|b| b.length = 0), Ok(false));
    assert_eq!(
        try_bind(window(Two), mr, 7, &|b| b.length = 0),
        Err(E::BadState)
    );
    assert_eq!(
        try_bind(window(One), mr, 7, &|b| b.access = 0x24),
        Err(E::NoRight)
    );
    assert_eq!(try_bind(window(Two), mr, 7, &|b| b.access = 0x24), Ok(true));
}

#[test]
fn window_access_checks() {
    let mr = bindable();
    let bind = |kind, bind: &Bind| {
        check_bind(&window(kind), Some(&mr), 7, 0x11, bind)
            .unwrap()
            .unwrap()
    };
    for kind in [WindowType::One, WindowType::Two] {
        let w = bind(kind, &binding());
        let check = |who, addr, len, rights| w.check(who, 0x9999_9902, addr, len, rights);
        let read = Access::REMOTE_READ;
        // Its own bounds, not the region's; the result is an address of the region.
        assert_eq!(check(MINE, 0x1040, 0x20, read), Ok(0x1040));
        assert_eq!(check(MINE, 0x105f, 1, read), Ok(0x105f));
        assert_eq!(check(MINE, 0x103f, 1, read), Err(AccessError::OutOfBounds));
        assert_eq!(check(MINE, 0x105f, 2, read), Err(AccessError::OutOfBounds));
        assert_eq!(check(MINE, 0x1060, 1, read), Err(AccessError::OutOfBounds));
        // Its own rights, not the region's; and none for the owner.
        assert_eq!(check(MINE, 0x1040, 1, Access::REMOTE_WRITE), Ok(0x1040));
        assert_eq!(
            check(MINE, 0x1040, 1, Access::REMOTE_ATOMIC),
            Err(AccessError::NoRight)
        );
        for local in [Access::NONE, Access::LOCAL_WRITE] {
            assert_eq!(check(MINE, 0x1040, 1, local), Err(AccessError::BadKey));
        }
        // The key before is dead.
        assert_eq!(
            w.check(MINE, 0x9999_9901, 0x1040, 1, read),
            Err(AccessError::BadKey)
        );
        assert_eq!(check((8, 0x11), 0x1040, 1, read), Err(AccessError::WrongPd));
        let other_qp = check((7, 0x12), 0x1040, 1, read);
        match kind {
            WindowType::One => assert_eq!(other_qp, Ok(0x1040)),
            WindowType::Two => assert_eq!(other_qp, Err(AccessError::WrongPd)),
        }
    }
    let zero = bind(
        WindowType::Two,
        &Bind {
            access: 0x24,
            ..binding()
        },
    );
    let check = |addr, len| zero.check(MINE, 0x9999_9902, addr, len, Access::REMOTE_READ);
    assert_eq!(check(0, 0x20), Ok(0x1040));
    assert_eq!(check(0x1f, 1), Ok(0x105f));
    assert_eq!(check(0x20, 1), Err(AccessError::OutOfBounds));
    assert_eq!(check(0x1040, 1), Err(AccessError::OutOfBounds));
}

#[test]
fn keys_and_domains() {
    let mr = region();
    let check = |pd, key, rights| mr.check(pd, key, 0x1000, 1, rights).err();
    assert_eq!(check(7, 0x1234_5678, Access::NONE), None);
    assert_eq!(
        check(8, 0x1234_5678, Access::NONE),
        Some(AccessError::WrongPd)
    );
    // Every other key byte is another key.
    for variant in 0..=255u32 {
        let result = check(7, 0x1234_5600 | variant, Access::NONE);
        assert_eq!(result.is_none(), variant == 0x78);
    }
    assert_eq!(
        check(7, 0x1234_5678, Access::REMOTE_WRITE),
        Some(AccessError::NoRight)
    );
    for state in [State::Free, State::Invalid] {
        let mr = MrDesc { state, ..region() };
        let result = mr.check(7, mr.key, 0x1000, 1, Access::NONE);
        assert_eq!(result, Err(AccessError::BadKey));
    }
    assert!(MrDesc::EMPTY.check(0, 0, 0, 1, Access::NONE).is_err());
}

/// Every set of granted rights against every set of requested rights.
#[test]
#[cfg_attr(miri, ignore = "a million checks")]
fn rights() {
    for granted in 0..0x400u32 {
        let access = Access::from_bits(granted & !0x20).unwrap();
        let mr = MrDesc { access, ..region() };
        for requested in 0..0x400u32 {
            let rights = Access::from_bits(requested).unwrap();
            let good = requested & !(granted & !0x20) == 0;
            assert_eq!(mr.check(7, mr.key, 0x1000, 1, rights).is_ok(), good);
        }
    }
}

#[test]
fn zero_length_needs_no_key() {
    let grant = region().check(99, 0, u64::MAX, 0, Access::KNOWN).unwrap();
    assert!(grant.is_empty());
}

/// Every start and length around a small region, and around the end of the address space.
#[test]
fn bounds() {
    for iova in [0u64, 1, 0x1000, u64::MAX - 8, u64::MAX - 7] {
        for length in 0..9u64 {
            let mr = MrDesc {
                iova,
                length,
                ..region()
            };
            for back in -3i64..12 {
                let addr = iova.wrapping_add_signed(back);
                for len in (1..12).chain([u64::MAX, u64::MAX - 1, 1 << 63]) {
                    let result = mr.check(7, mr.key, addr, len, Access::NONE);
                    let (start, end) = (u128::from(addr), u128::from(addr) + u128::from(len));
                    let inside = start >= u128::from(iova)
                        && end <= u128::from(iova) + u128::from(length)
                        && end <= u128::from(u64::MAX);
                    match result {
                        Ok(grant) => {
                            assert!(inside);
                            assert_eq!(u128::from(grant.offset()), start - u128::from(iova));
                            assert_eq!(grant.len(), len);
                        }
                        Err(error) => {
                            assert!(!inside, "{iova:#x}+{length}: {addr:#x}+{len:#x}");
                            assert_eq!(error, AccessError::OutOfBounds);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn zero_based_regions_count_from_zero() {
    let access = Access::ZERO_BASED.union(Access::REMOTE_READ);
    let mr = MrDesc { access, ..region() };
    assert_eq!(
        mr.check(7, mr.key, 0, 0x100, Access::REMOTE_READ)
            .unwrap()
            .offset(),
        0
    );
    assert_eq!(
        mr.check(7, mr.key, 0xff, 1, Access::REMOTE_READ)
            .unwrap()
            .offset(),
        0xff
    );
    assert!(mr.check(7, mr.key, 0x1000, 1, Access::REMOTE_READ).is_err());
}

proptest! {
    #[test]
    fn grants_are_inside(
        iova in any::<u64>(), length in any::<u64>(), addr in any::<u64>(), len in 1u64..,
    ) {
        let mr = MrDesc { iova, length, ..region() };
        if let Ok(grant) = mr.check(7, mr.key, addr, len, Access::NONE) {
            prop_assert!(grant.offset().checked_add(grant.len()).unwrap() <= length);
            prop_assert_eq!(iova.checked_add(grant.offset()), Some(addr));
        }
    }
}
