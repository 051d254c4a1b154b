// SPDX-License-Identifier: GPL-2.0
//! An Ethernet of User Mode Linux machines: each packet that a machine sends is passed on to all
//! others, as a hub does.

use crate::error::{Error, Result};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_timeout, Timeout};
use rustix::net::{
    accept_with, bind, listen, recv, send, shutdown, socket_with, AddressFamily, RecvFlags,
    SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Longer than any packet, in bytes.
const LONGEST: usize = 65536;
/// How long a packet waits for a machine that does not receive. It is lost then, as the next ones
/// are until the machine receives again.
const PATIENCE: Duration = Duration::from_secs(1);

/// The connection of a machine.
#[derive(Debug)]
struct Port {
    socket: OwnedFd,
    /// Whether the last packet was lost, so that the next one does not wait.
    stalled: AtomicBool,
}

impl Port {
    /// Sends a packet to the machine. It is lost if the machine does not receive it in time, or has
    /// just ended.
    fn send(&self, packet: &[u8]) {
        let flags = match self.stalled.load(Relaxed) {
            true => SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            false => SendFlags::NOSIGNAL,
        };
        let lost = send(&self.socket, packet, flags).is_err();
        self.stalled.store(lost, Relaxed);
    }
}

/// The machines that are connected.
type Ports = Arc<Mutex<Vec<Arc<Port>>>>;

/// The Ethernet. A machine takes part while it is connected to its socket, a packet each; the
/// threads end when the value is dropped and the machines have disconnected.
#[derive(Debug)]
pub struct Hub {
    listener: Arc<OwnedFd>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        // Ends accept(); nothing can be done if it does not.
        let _ = shutdown(&self.listener, Shutdown::Both);
    }
}

impl Hub {
    /// Makes an Ethernet with a socket at that path.
    pub fn new(path: &Path) -> Result<Self> {
        let cannot = |error: Errno| {
            let what = format!("cannot make the socket {}: {error}", path.display());
            Error::new(what, "see the limits of this user (ulimit -a)")
        };
        let socket = || {
            let made = socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            )?;
            bind(&made, &SocketAddrUnix::new(path)?)?;
            listen(&made, 16)?;
            Ok(made)
        };
        let listener = Arc::new(socket().map_err(cannot)?);
        let (accepts, ports) = (listener.clone(), Ports::default());
        thread::spawn(move || {
            while let Ok(socket) = accept_with(&*accepts, SocketFlags::CLOEXEC) {
                // Without the limit a machine that hangs would stop the others.
                if set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE)).is_err() {
                    return;
                }
                let stalled = AtomicBool::new(false);
                let (port, ports) = (Arc::new(Port { socket, stalled }), ports.clone());
                with(&ports, |all| all.push(port.clone()));
                thread::spawn(move || forward(&port, &ports));
            }
        });
        Ok(Self { listener })
    }
}

/// Does something with the list of ports, which no thread leaves half changed.
fn with<T>(ports: &Ports, action: impl FnOnce(&mut Vec<Arc<Port>>) -> T) -> T {
    action(&mut ports.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Passes the packets of a machine on until it disconnects.
fn forward(port: &Arc<Port>, ports: &Ports) {
    let mut buffer = vec![0; LONGEST];
    let own = |other: &Arc<Port>| Arc::ptr_eq(other, port);
    loop {
        let packet = match recv(&port.socket, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, length @ 1..)) => buffer.get(..length).unwrap_or_default(),
            Err(Errno::INTR) => continue,
            _ => break,
        };
        let others: Vec<_> = with(ports, |all| {
            all.iter().filter(|other| !own(other)).cloned().collect()
        });
        for other in others {
            other.send(packet);
        }
    }
    with(ports, |all| all.retain(|other| !own(other)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::connect;
    use std::time::Instant;

    fn connected(path: &Path) -> OwnedFd {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_millis(500))).unwrap();
        socket
    }

    fn received(socket: &OwnedFd) -> Option<Vec<u8>> {
        let mut buffer = [0; 100];
        let (_, length) = recv(socket, &mut buffer[..], RecvFlags::empty()).ok()?;
        Some(buffer[..length].to_vec())
    }

    /// Sends until the others have received: a machine takes part soon after it has connected.
    fn until_received(from: &OwnedFd, to: &[&OwnedFd], packet: &[u8]) {
        for to in to {
            let end = Instant::now() + Duration::from_secs(20);
            loop {
                assert!(Instant::now() < end, "in vain");
                send(from, packet, SendFlags::NOSIGNAL).unwrap();
                if received(to).is_some_and(|got| got == packet) {
                    break;
                }
            }
        }
    }

    #[test]
    fn packets_reach_all_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eth");
        let _hub = Hub::new(&path).unwrap();
        let ports: Vec<OwnedFd> = (0..3).map(|_| connected(&path)).collect();
        let [a, b, c] = &ports[..] else {
            panic!("not three");
        };
        until_received(a, &[b, c], b"from a");
        until_received(c, &[a, b], b"from c");
        // Whoever sends gets nothing of it.
        while let Some(packet) = received(a) {
            assert_eq!(packet, b"from c");
        }
    }

    #[test]
    fn a_machine_may_connect_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eth");
        let _hub = Hub::new(&path).unwrap();
        let a = connected(&path);
        let b = connected(&path);
        until_received(&a, &[&b], b"first");
        drop(b);
        let b = connected(&path);
        until_received(&a, &[&b], b"second");
    }

    #[test]
    fn a_machine_that_does_not_receive_stops_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eth");
        let _hub = Hub::new(&path).unwrap();
        let [a, b, hung] = [(); 3].map(|()| connected(&path));
        until_received(&a, &[&b, &hung], b"up");
        set_socket_timeout(&b, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
        let received_all = thread::spawn(move || (0..2000).all(|_| received(&b).is_some()));
        for _ in 0..2000 {
            send(&a, &[7; 1000], SendFlags::NOSIGNAL).unwrap();
        }
        drop(hung);
        assert!(received_all.join().unwrap());
    }
}
