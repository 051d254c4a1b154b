// SPDX-License-Identifier: GPL-2.0
//! The standard streams. Who has started this program, or shares a terminal or a pipe with it, may
//! have set `O_NONBLOCK` for them, with which the streams of the standard library fail.

use rustix::event::{poll, PollFd, PollFlags};
use rustix::io::Errno;
use std::io::{self, Read};
use std::os::fd::AsFd;

/// Repeats a call until the descriptor was ready for it.
fn when_ready<T>(
    descriptor: impl AsFd,
    flags: PollFlags,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> io::Result<T> {
    loop {
        match call() {
            Ok(result) => return Ok(result),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&descriptor, flags)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            },
            Err(error) => return Err(error.into()),
        }
    }
}

/// A descriptor that is read without a buffer.
#[derive(Debug)]
pub struct Input<T>(pub T);

impl<T: AsFd> Read for Input<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        when_ready(&self.0, PollFlags::IN, || {
            rustix::io::read(&self.0, &mut *buffer)
        })
    }
}

/// Writes all of the data to a descriptor without a buffer. With the lock of a stream they do not
/// mix with those of other threads.
pub fn write_all(to: impl AsFd, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match when_ready(&to, PollFlags::OUT, || rustix::io::write(&to, data))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => data = data.get(count..).unwrap_or_default(),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn descriptors_may_be_non_blocking() {
        let (mut one, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let text: Vec<u8> = (0..1_000_000).map(|index| index as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| write_all(&other, &text).unwrap());
            // The other thread fills the socket if it does so within this time.
            thread::sleep(Duration::from_millis(100));
            let mut read = vec![0; text.len()];
            one.read_exact(&mut read).unwrap();
            assert!(read == text);
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                one.write_all(b"input").unwrap();
            });
            let mut read = [0; 5];
            Input(&other).read_exact(&mut read).unwrap();
            assert_eq!(&read, b"input");
        });
        drop(one);
        assert_eq!(Input(&other).read(&mut [0]).unwrap(), 0);
        let error = write_all(&other, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
