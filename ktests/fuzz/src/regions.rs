// SPDX-License-Identifier: GPL-2.0
//! Memory: regions, their segments, windows, DMA buffers, and changes of the mapping of registered
//! memory.

use crate::calls::Args;
use crate::exec::{Body, Worker};
use crate::sys;
use crate::uverbs::{command, method, rxe_rs_attr};
use crate::world::{self, Kind, AREAS, AREA_LEN};

/// Returns access flags: usually all rights, occasionally with on-demand paging.
fn access(arg: u32) -> u32 {
    match arg % 8 {
        0..=3 => 0x1f,
        4 => 0x1f | 0x40,
        5 => 0x30f,
        6 => (arg >> 4) & 0x3ff,
        _ => arg >> 3,
    }
}

/// Maximum length of a DMA buffer from udmabuf: for longer ones Linux 7.3 warns about its own
/// allocation of the page list, before it checks its limit of 64 MiB.
const MAX_UDMABUF: u64 = 128 << 20;

impl Worker {
    /// Registers a region.
    pub fn reg_mr(&self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let (addr, len) = (world::address(a[3]), world::length(a[4]));
        let iova = if a[6] > 13 {
            (u64::from(a[6]) << 12) | addr & 0xfff
        } else {
            addr
        };
        // An implicit region: all addresses.
        let (addr, len, iova) = if a[6] == 13 {
            (0, u64::MAX, 0)
        } else {
            (addr, len, iova)
        };
        let pd = self.handle(Kind::Pd, a[2], context);
        let body = Body::new()
            .u64s(&[addr, len, iova])
            .u32s(&[pd, access(a[5])]);
        self.command(self.fd(context)?, command::REG_MR, &body.0, 12)?;
        let (handle, lkey, rkey) = (
            self.response.u32(0),
            self.response.u32(4),
            self.response.u32(8),
        );
        self.world.put(
            Kind::Mr,
            Self::slot(a[0]),
            context,
            handle,
            &[u64::from(lkey), u64::from(rkey), iova, len],
        );
        Ok(0)
    }

    /// Registers a region by the method.
    pub fn reg_mr_ioctl(&self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let out = self.response.address();
        let (addr, len) = (world::address(a[3]), world::length(a[4]));
        let pd = u64::from(self.handle(Kind::Pd, a[2], context));
        let mut attrs = vec![
            (0, 0, 0),
            (1, 0, pd),
            (3, 8, addr),
            (5, 8, len),
            (6, 4, u64::from(access(a[5]))),
            (9, 4, out),
            (10, 4, out + 8),
        ];
        if a[6] % 8 == 7 {
            attrs.push((7, 0, self.files.shared() as u64));
            attrs.push((8, 8, u64::from(a[7])));
        } else {
            attrs.push((4, 8, addr));
        }
        let got = self.method(self.fd(context)?, method::REG_MR, &attrs)?;
        let keys = [
            u64::from(self.response.u32(0)),
            u64::from(self.response.u32(8)),
        ];
        self.world.put(
            Kind::Mr,
            Self::slot(a[0]),
            context,
            got[0] as u32,
            &[keys[0], keys[1], addr, len],
        );
        Ok(0)
    }

    /// Creates a DMA buffer of shared memory, if the kernel has udmabuf.
    fn dmabuf(&self, len: u64) -> Result<i64, i32> {
        let mut create = Body::new()
            .u32s(&[self.files.shared() as u32, 1])
            .u64s(&[0, len.min(MAX_UDMABUF)])
            .0;
        // _IOW('u', 0x42, struct udmabuf_create)
        sys::ioctl(
            self.files.udmabuf,
            (1 << 30) | (24 << 16) | (0x75 << 8) | 0x42,
            &mut create,
        )
    }

    /// Registers a DMA buffer.
    pub fn reg_dmabuf(&self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let fd = self.dmabuf(world::length(a[4]))?;
        let out = self.response.address();
        let len = if a[6] == 15 {
            u64::from(a[7])
        } else {
            world::length(a[4])
        };
        let offset = if a[3] == 15 { u64::from(a[7]) } else { 0 };
        let attrs = [
            (0, 0, 0),
            (1, 0, u64::from(self.handle(Kind::Pd, a[2], context))),
            (2, 8, offset),
            (3, 8, len),
            (4, 8, offset),
            (5, 0, fd as u64),
            (6, 4, u64::from(access(a[5]) & !0x40)),
            (7, 4, out),
            (8, 4, out + 8),
        ];
        let got = self
            .fd(context)
            .and_then(|fd| self.method(fd, method::REG_DMABUF_MR, &attrs));
        sys::close(fd as i32);
        let keys = [
            u64::from(self.response.u32(0)),
            u64::from(self.response.u32(8)),
        ];
        self.world.put(
            Kind::Mr,
            Self::slot(a[0]),
            context,
            got?[0] as u32,
            &[keys[0], keys[1], offset, len],
        );
        Ok(0)
    }

    /// Re-registers a region: memory, domain, rights, or any combination.
    pub fn rereg_mr(&self, a: &Args) -> Result<i64, i32> {
        let slot = self.near(Kind::Mr, a[0]);
        let mr = self.world.get(Kind::Mr, slot);
        let flags = if a[1] & 0xf0 == 0xf0 {
            a[1]
        } else {
            1 + a[1] % 7
        };
        let (addr, len) = (world::address(a[3]), world::length(a[4]));
        let body = Body::new()
            .u32s(&[mr.handle, flags])
            .u64s(&[addr, len, addr])
            .u32s(&[self.handle(Kind::Pd, a[2], mr.context), access(a[5])]);
        self.command(self.fd(mr.context)?, command::REREG_MR, &body.0, 8)?;
        let mut x = mr.x;
        (x[0], x[1]) = (
            u64::from(self.response.u32(0)),
            u64::from(self.response.u32(4)),
        );
        if flags & 1 != 0 {
            (x[2], x[3]) = (addr, len);
        }
        self.world.put(Kind::Mr, slot, mr.context, mr.handle, &x);
        Ok(0)
    }

    /// Deregisters a region by the method, in any context.
    pub fn dereg_mr_ioctl(&self, a: &Args) -> Result<i64, i32> {
        let mr = self.world.get(Kind::Mr, self.near(Kind::Mr, a[0]));
        let context = if a[1] == 15 {
            Self::context(a[2])
        } else {
            mr.context
        };
        self.method(
            self.fd(context)?,
            method::MR_DESTROY,
            &[(0, 0, u64::from(mr.handle))],
        )
        .map(|_| 0)
    }

    /// Queries keys and addresses of a region.
    pub fn query_mr(&self, a: &Args) -> Result<i64, i32> {
        let mr = self.world.get(Kind::Mr, self.near(Kind::Mr, a[0]));
        let out = self.response.address();
        let attrs = [
            (0, 0, u64::from(mr.handle)),
            (1, 4, out),
            (2, 4, out + 8),
            (3, 8, out + 16),
            (4, 8, out + 24),
        ];
        self.method(self.fd(mr.context)?, method::QUERY_MR, &attrs)
            .map(|_| 0)
    }

    /// Prefetches pages of regions with on-demand paging.
    pub fn advise_mr(&self, a: &Args) -> Result<i64, i32> {
        let mr = self.world.get(Kind::Mr, self.near(Kind::Mr, a[0]));
        let count = 1 + a[4] % 4;
        let mut list = Body::new();
        for n in 0..count {
            let addr = mr.x[2]
                .wrapping_add(u64::from(a[5] & 0xf_ffff))
                .wrapping_add(u64::from(n) << 14);
            list = list
                .u64s(&[addr])
                .u32s(&[(world::length(a[6]) & 0xffff_ffff) as u32, mr.x[0] as u32]);
        }
        let advice = if a[2] == 15 { a[3] } else { a[2] % 3 };
        let attrs = [
            (0, 0, u64::from(self.handle(Kind::Pd, a[1], mr.context))),
            (1, 8, u64::from(advice)),
            (2, 4, u64::from(a[3] % 2)),
            (3, 16 * count as u16, list.0.as_ptr() as u64),
        ];
        self.method(self.fd(mr.context)?, method::ADVISE_MR, &attrs)
            .map(|_| 0)
    }

    /// Adds a segment to a region (`uapi/rxe_rs.h`), occasionally one of a DMA buffer.
    pub fn add_segment(&self, a: &Args) -> Result<i64, i32> {
        let mr = self.world.get(Kind::Mr, self.near(Kind::Mr, a[0]));
        let addr = world::address(a[1]) & !0xfff;
        // Segments consist of whole pages.
        let pages = |n: u64| n.wrapping_add(0xfff) & !0xfff;
        let len = match a[2] % 16 {
            13 => world::length(a[2]),
            _ => pages(world::length(a[2])).min(AREA_LEN as u64),
        };
        let iova = match a[3] % 4 {
            0 => pages(mr.x[2].wrapping_add(mr.x[3])),
            1 => (mr.x[2] & !0xfff).wrapping_sub(len),
            2 => (mr.x[2] & !0xfff).wrapping_add(u64::from(a[4] & 0xfff) << 12),
            _ => u64::from(a[4]) << 12,
        };
        let key = if a[5] == 15 { a[6] } else { mr.x[1] as u32 };
        let buffer = if a[7] % 4 == 3 { self.dmabuf(len)? } else { 0 };
        let (addr, flags) = match a[7] {
            15 => (addr, a[6]),
            _ if buffer != 0 => (u64::from(a[6] & 7) << 12, 1),
            _ => (addr, 0),
        };
        let mut request = Body::new().u64s(&[addr, len, iova]).u32s(&[key, flags]);
        // The request was shorter before it had a field for DMA buffers.
        if a[7] != 1 {
            let fd = if a[7] == 12 { a[6] } else { buffer as u32 };
            request = request.u32s(&[fd, 0]);
        }
        let result = self.segments(method::MR_ADD, &mr, &request.0, a[7]);
        if buffer != 0 {
            sys::close(buffer as i32);
        }
        result
    }

    /// Ties a region to a queue pair.
    pub fn tie_mr(&self, a: &Args) -> Result<i64, i32> {
        let mr = self.world.get(Kind::Mr, self.near(Kind::Mr, a[0]));
        let key = if a[2] == 15 { a[3] } else { mr.x[1] as u32 };
        let flags = if a[4] == 15 { a[3] } else { 0 };
        let request = Body::new().u32s(&[key, flags]).u64s(&[0]).0;
        let attrs = [
            (rxe_rs_attr::MR, 0, u64::from(mr.handle)),
            (
                rxe_rs_attr::REQUEST,
                request.len() as u16,
                request.as_ptr() as u64,
            ),
            (
                rxe_rs_attr::QP,
                0,
                u64::from(self.handle(Kind::Qp, a[1], mr.context)),
            ),
        ];
        self.method(self.fd(mr.context)?, method::MR_TIE, &attrs)
            .map(|_| 0)
    }

    /// Removes a segment or a range from a region.
    pub fn remove_segment(&self, a: &Args) -> Result<i64, i32> {
        let mr = self.world.get(Kind::Mr, self.near(Kind::Mr, a[0]));
        let key = if a[5] == 15 { a[6] } else { mr.x[1] as u32 };
        let start = mr.x[2].wrapping_add(u64::from(a[2] & 0xfff) << 12);
        let request = match a[1] % 4 {
            0 => Body::new()
                .u64s(&[u64::from(1 + a[2] % 6), 0, 0])
                .u32s(&[key, 1]),
            1 => Body::new().u64s(&[0, mr.x[2], mr.x[3]]).u32s(&[key, 2]),
            2 => Body::new()
                .u64s(&[0, start, world::length(a[3])])
                .u32s(&[key, 2]),
            _ => Body::new()
                .u64s(&[u64::from(a[2]), start, u64::from(a[3])])
                .u32s(&[key, a[4]]),
        }
        .0;
        self.segments(method::MR_REMOVE, &mr, &request, a[7])
    }

    fn segments(
        &self,
        method: (u16, u16),
        mr: &world::Object,
        request: &[u8],
        odd: u32,
    ) -> Result<i64, i32> {
        let out = self.response.address();
        let state = if odd == 14 { 8 } else { 80 };
        let attrs = [
            (rxe_rs_attr::MR, 0, u64::from(mr.handle)),
            (
                rxe_rs_attr::REQUEST,
                request.len() as u16,
                request.as_ptr() as u64,
            ),
            (
                rxe_rs_attr::STATE,
                state,
                if odd == 13 {
                    world::address(odd << 20)
                } else {
                    out
                },
            ),
        ];
        self.method(self.fd(mr.context)?, method, &attrs).map(|_| 0)
    }

    /// Allocates a memory window.
    pub fn alloc_mw(&self, a: &Args) -> Result<i64, i32> {
        let context = Self::context(a[1]);
        let kind = if a[3] == 15 { a[4] } else { 1 + a[3] % 2 };
        let pd = self.handle(Kind::Pd, a[2], context);
        self.command(
            self.fd(context)?,
            command::ALLOC_MW,
            &Body::new().u32s(&[pd, kind]).0,
            8,
        )?;
        let (handle, rkey) = (self.response.u32(0), self.response.u32(4));
        self.world.put(
            Kind::Mw,
            Self::slot(a[0]),
            context,
            handle,
            &[u64::from(rkey)],
        );
        Ok(0)
    }

    /// Changes the mapping of memory that may be registered: unmap, protect, discard, lock.
    pub fn memory(&self, a: &Args) -> Result<i64, i32> {
        let number = a[0] as usize % (AREAS - 1);
        let at = world::area(number) + (u64::from(a[1] & 0xff) << 12);
        let len = (u64::from(1 + a[2] % 64) << 12).min(AREA_LEN as u64);
        match a[3] % 10 {
            0 => sys::memory_call(libc::SYS_munmap, at, len, 0),
            1 | 2 => {
                world::map_area(number, &self.files);
                Ok(0)
            }
            3 => sys::memory_call(libc::SYS_mprotect, at, len, libc::PROT_READ as u64),
            4 => sys::memory_call(
                libc::SYS_mprotect,
                at,
                len,
                (libc::PROT_READ | libc::PROT_WRITE) as u64,
            ),
            5 => sys::memory_call(libc::SYS_mprotect, at, len, libc::PROT_NONE as u64),
            6 => sys::memory_call(libc::SYS_madvise, at, len, libc::MADV_DONTNEED as u64),
            7 => {
                let advice = [
                    libc::MADV_REMOVE,
                    libc::MADV_PAGEOUT,
                    libc::MADV_COLD,
                    libc::MADV_FREE,
                    libc::MADV_DONTFORK,
                    libc::MADV_DOFORK,
                ];
                sys::memory_call(
                    libc::SYS_madvise,
                    at,
                    len,
                    advice[a[4] as usize % advice.len()] as u64,
                )
            }
            8 => sys::memory_call(libc::SYS_mlock2, at, len, u64::from(a[4] % 2)),
            _ => sys::memory_call(libc::SYS_munlock, at, len, 0),
        }
    }

    /// Forks a child that shares all memory for a short time, copy-on-write.
    pub fn fork(&self, a: &Args) -> Result<i64, i32> {
        let at = world::area(a[0] as usize % 2);
        let child = sys::fork(|| {
            let _ = sys::poke(at, &[1; 64]);
            0
        })?;
        let _ = sys::poke(at, &[2; 64]);
        sys::ended(child, true);
        Ok(0)
    }
}
