// SPDX-License-Identifier: GPL-2.0
//! System calls. The only `unsafe` of this program: everything else goes through these functions.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed};

/// The errno of the call that just failed.
pub fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn check(result: i64) -> Result<i64, i32> {
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(result)
    }
}

/// Opens a file for reading, for writing or for both. `flags` are those of open(2).
pub fn open(path: &str, flags: i32) -> Result<i32, i32> {
    let path = std::ffi::CString::new(path).map_err(|_| libc::EINVAL)?;
    // SAFETY: The path is a terminated string.
    check(i64::from(unsafe {
        libc::open(path.as_ptr(), flags | libc::O_CLOEXEC)
    }))
    .map(|fd| fd as i32)
}

/// Creates an empty file with synchronous writes: its contents must survive a crash of the kernel.
pub fn open_new(path: &str) -> Result<i32, i32> {
    let path = std::ffi::CString::new(path).map_err(|_| libc::EINVAL)?;
    let flags = libc::O_WRONLY
        | libc::O_CREAT
        | libc::O_TRUNC
        | libc::O_APPEND
        | libc::O_SYNC
        | libc::O_CLOEXEC;
    // SAFETY: The path is a terminated string.
    check(i64::from(unsafe {
        libc::open(path.as_ptr(), flags, 0o644)
    }))
    .map(|fd| fd as i32)
}

/// Creates a pipe: the end to read from, the end to write to.
pub fn pipe(fds: &mut [i32; 2]) -> Result<(), i32> {
    // SAFETY: There is room for two descriptors.
    check(i64::from(unsafe {
        libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC)
    }))
    .map(|_| ())
}

/// Closes a descriptor.
pub fn close(fd: i32) {
    // SAFETY: No memory is involved. Nothing here relies on a descriptor staying what it was.
    unsafe { libc::close(fd) };
}

/// Writes all bytes in one call.
pub fn write(fd: i32, data: &[u8]) -> Result<usize, i32> {
    // SAFETY: The buffer is readable.
    check(unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) } as i64).map(|n| n as usize)
}

/// Reads up to the length of the buffer.
pub fn read(fd: i32, data: &mut [u8]) -> Result<usize, i32> {
    // SAFETY: The buffer is writable.
    check(unsafe { libc::read(fd, data.as_mut_ptr().cast(), data.len()) } as i64)
        .map(|n| n as usize)
}

/// Calls an ioctl whose argument is a buffer.
pub fn ioctl(fd: i32, request: u64, data: &mut [u8]) -> Result<i64, i32> {
    // SAFETY: What the kernel writes it writes to `data` or to addresses in it, see `Response`.
    check(i64::from(unsafe {
        libc::ioctl(fd, request as _, data.as_mut_ptr())
    }))
}

/// A response buffer at a fixed address. The kernel may write to it after the call that passed it
/// has returned, so all accesses are atomic.
pub struct Response {
    bytes: &'static [AtomicU8],
}

impl Response {
    /// Allocates a buffer of `len` bytes; it is never freed.
    pub fn new(len: usize) -> Self {
        let bytes: Vec<AtomicU8> = (0..len).map(|_| AtomicU8::new(0)).collect();
        Self {
            bytes: bytes.leak(),
        }
    }

    /// Returns the address.
    pub fn address(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// Returns the 32-bit field at byte `offset`.
    pub fn u32(&self, offset: usize) -> u32 {
        let byte = |n: usize| self.bytes.get(offset + n).map_or(0, |b| b.load(Relaxed));
        u32::from_ne_bytes([byte(0), byte(1), byte(2), byte(3)])
    }

    /// Returns the 64-bit field at byte `offset`.
    pub fn u64(&self, offset: usize) -> u64 {
        u64::from(self.u32(offset)) | (u64::from(self.u32(offset + 4)) << 32)
    }

    /// Zeroes the first `len` bytes.
    pub fn clear(&self, len: usize) {
        for byte in self.bytes.iter().take(len) {
            byte.store(0, Relaxed);
        }
    }
}

/// Maps memory. A fixed address replaces what is there: only `areas.rs` and `rings.rs` use one,
/// within the address ranges that are reserved for them.
pub fn mmap(
    addr: u64,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: u64,
) -> Result<u64, i32> {
    // SAFETY: Fixed mappings are in reserved ranges, which contain no Rust object.
    let at = unsafe { libc::mmap(addr as *mut _, len, prot, flags, fd, offset as i64) };
    if at == libc::MAP_FAILED {
        Err(last_errno())
    } else {
        Ok(at as u64)
    }
}

/// Makes a system call on a reserved address range: munmap, mprotect, madvise and similar ones.
pub fn memory_call(number: i64, addr: u64, len: u64, arg: u64) -> Result<i64, i32> {
    // SAFETY: As `mmap`.
    check(unsafe { libc::syscall(number, addr, len, arg, 0u64, 0u64) })
}

/// Makes a system call without pointers.
pub fn call(number: i64, a: u64, b: u64, c: u64) -> Result<i64, i32> {
    // SAFETY: Callers pass numbers only.
    check(unsafe { libc::syscall(number, a, b, c) })
}

/// Writes to this process's own memory; fails with EFAULT instead of a signal where nothing is
/// mapped.
pub fn poke(addr: u64, data: &[u8]) -> Result<usize, i32> {
    let local = libc::iovec {
        iov_base: data.as_ptr() as *mut _,
        iov_len: data.len(),
    };
    let remote = libc::iovec {
        iov_base: addr as *mut _,
        iov_len: data.len(),
    };
    // SAFETY: The kernel checks the remote address. It lies in a reserved range.
    check(unsafe { libc::process_vm_writev(libc::getpid(), &local, 1, &remote, 1, 0) } as i64)
        .map(|n| n as usize)
}

/// Reads this process's own memory, with the same error.
pub fn peek(addr: u64, data: &mut [u8]) -> Result<usize, i32> {
    let local = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: data.len(),
    };
    let remote = libc::iovec {
        iov_base: addr as *mut _,
        iov_len: data.len(),
    };
    // SAFETY: As `poke`.
    check(unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) } as i64)
        .map(|n| n as usize)
}

/// Memory shared with the kernel or with other processes: bytes and words, accessed atomically.
#[derive(Clone, Copy)]
pub struct SharedMapping {
    addr: u64,
    len: usize,
}

impl SharedMapping {
    /// Maps `len` bytes of a file at `addr`, which must be reserved for that, or anywhere if it is
    /// 0.
    pub fn map(addr: u64, len: usize, fd: i32, offset: u64) -> Result<Self, i32> {
        let fixed = if addr == 0 { 0 } else { libc::MAP_FIXED };
        let addr = mmap(
            addr,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | fixed,
            fd,
            offset,
        )?;
        Ok(Self { addr, len })
    }

    /// Allocates memory that is shared with processes forked afterwards.
    pub fn shared(len: usize) -> Result<Self, i32> {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let addr = mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
        Ok(Self { addr, len })
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> &'static [AtomicU8] {
        // SAFETY: Mapped by the constructor and never unmapped; atomics may be shared with anybody.
        unsafe { std::slice::from_raw_parts(self.addr as *const AtomicU8, self.len) }
    }

    /// Returns the memory as 32-bit words.
    pub fn words(&self) -> &'static [AtomicU32] {
        // SAFETY: As `bytes`; mappings are aligned to pages.
        unsafe { std::slice::from_raw_parts(self.addr as *const AtomicU32, self.len / 4) }
    }

    /// Returns the memory as 64-bit words.
    pub fn longs(&self) -> &'static [AtomicU64] {
        // SAFETY: As `words`.
        unsafe { std::slice::from_raw_parts(self.addr as *const AtomicU64, self.len / 8) }
    }

    /// Writes bytes at `offset`; those beyond the end are left out.
    pub fn put(&self, offset: usize, data: &[u8]) {
        for (to, from) in self.bytes().iter().skip(offset).zip(data) {
            to.store(*from, Relaxed);
        }
    }
}

/// Forks a process that runs `body` and exits with its result; returns its PID.
///
/// The program has only one thread, so the child may call any function.
pub fn fork(body: impl FnOnce() -> i32) -> Result<i32, i32> {
    // SAFETY: This program has no threads.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(last_errno()),
        0 => {
            let status = body();
            // SAFETY: Ends the process without what the parent registered.
            unsafe { libc::_exit(status) }
        }
        pid => Ok(pid),
    }
}

/// Asks the kernel to kill the calling process when its parent ends.
pub fn die_with_parent() {
    // SAFETY: No memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Sends a signal to a child.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: No memory is involved.
    unsafe { libc::kill(pid, signal) };
}

/// Returns the status of the child if it has ended; waits for that if `block`.
pub fn ended(pid: i32, block: bool) -> Option<i32> {
    let mut status = 0;
    // SAFETY: The status is writable.
    let got = unsafe { libc::waitpid(pid, &mut status, if block { 0 } else { libc::WNOHANG }) };
    (got == pid).then_some(status)
}

/// Sets RLIMIT_MEMLOCK.
pub fn limit_memlock(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: The structure is readable.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) };
}

/// Changes to an unprivileged user and group, without supplementary groups.
pub fn become_user(id: u32) -> Result<(), i32> {
    // SAFETY: No memory is involved: the list of groups is empty.
    unsafe {
        check(i64::from(libc::setgroups(0, std::ptr::null())))?;
        check(i64::from(libc::setgid(id)))?;
        check(i64::from(libc::setuid(id)))?;
        // Files of /proc/self belong to the new user then.
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
    }
    Ok(())
}

/// Opens a socket.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> Result<i32, i32> {
    // SAFETY: No memory is involved.
    check(i64::from(unsafe {
        libc::socket(domain, kind | libc::SOCK_CLOEXEC, protocol)
    }))
    .map(|fd| fd as i32)
}

/// Creates an anonymous file of `len` bytes, which cannot shrink if `seals`.
pub fn memfd(name: &std::ffi::CStr, len: u64, seals: bool) -> Result<i32, i32> {
    // SAFETY: The name is terminated.
    let fd = check(i64::from(unsafe {
        libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    }))? as i32;
    // SAFETY: No memory is involved.
    check(i64::from(unsafe { libc::ftruncate(fd, len as i64) }))?;
    if seals {
        // SAFETY: No memory is involved.
        unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    }
    Ok(fd)
}

/// Allocates `len` bytes at `offset` of a file.
pub fn allocate(fd: i32, offset: u64, len: u64) -> Result<(), i32> {
    // SAFETY: No memory is involved.
    check(i64::from(unsafe {
        libc::fallocate(fd, 0, offset as i64, len as i64)
    }))
    .map(|_| ())
}

/// Sets the length of a file.
pub fn truncate(fd: i32, len: u64) {
    // SAFETY: No memory is involved.
    unsafe { libc::ftruncate(fd, len as i64) };
}

/// Makes a descriptor non-blocking.
pub fn set_nonblocking(fd: i32) {
    // SAFETY: No memory is involved.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

/// Enters a network namespace.
pub fn enter_netns(fd: i32) -> Result<(), i32> {
    // SAFETY: No memory is involved.
    check(i64::from(unsafe { libc::setns(fd, libc::CLONE_NEWNET) })).map(|_| ())
}

/// Sleeps.
pub fn pause(microseconds: u64) {
    std::thread::sleep(std::time::Duration::from_micros(microseconds));
}
