// SPDX-License-Identifier: GPL-2.0
//! What `run` waits for: threads that read from machines, and signals, send events.

use crate::error::Error;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU,
    SIGXFSZ,
};
use signal_hook::iterator::Signals;
use std::fs;
use std::mem;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// The signals that end this program, but not before it has ended its machines and removed their
/// folder: those that end a program by default, and that others send, or a limit or a timer that it
/// has inherited. SIGKILL cannot be handled; the remaining ones tell of faults of the program.
const HANDLED: [i32; 11] = [
    SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU,
    SIGXFSZ,
];

/// An event. Those of a machine have its number.
#[derive(Debug)]
pub enum Event {
    /// The machine has started its init.
    Hello(u8),
    /// The link of the machine is active, and its folder is mounted.
    Up(u8),
    /// The machine could not be set up, with the reason.
    Fail(u8, String),
    /// The command in the machine has ended, with its status.
    Exit(u8, u8),
    /// One of the two streams of output of the machine has been passed on to its end.
    Drained(u8),
    /// The machine has ended.
    Gone(u8),
    /// The trial of KVM has ended, with its output.
    Trial(Vec<u8>),
    /// The output of rxe-ci has no reader any more.
    NobodyReads,
    /// Something in another thread has failed.
    Failed(Error),
    /// A signal that ends rxe-ci.
    Signal(i32),
}

/// The channel of events.
pub struct Events {
    /// What threads send to.
    pub sender: Sender<Event>,
    receiver: Receiver<Event>,
    /// What the thread that handles signals sends to: always the present channel.
    signals: Arc<Mutex<Sender<Event>>>,
}

/// Locks the channel for signals, which no thread leaves half changed.
fn lock(signals: &Mutex<Sender<Event>>) -> MutexGuard<'_, Sender<Event>> {
    signals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error that ends rxe-ci after a signal.
fn ended_by(signal: i32) -> Error {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
    Error::with_status(killed_by(signal), format!("ended by {name}"), "")
}

impl Events {
    /// Makes a channel and begins to send signals to it.
    pub fn new() -> Result<Self, Error> {
        let (sender, receiver) = channel();
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        let handled = HANDLED
            .into_iter()
            .filter(|signal| (ignored >> signal.saturating_sub(1)) & 1 == 0);
        let mut caught = Signals::new(handled).map_err(|error| {
            Error::new(
                format!("cannot handle signals: {error}"),
                "see the limits of this user",
            )
        })?;
        let signals = Arc::new(Mutex::new(sender.clone()));
        let to = signals.clone();
        thread::spawn(move || {
            for signal in caught.forever() {
                // It sends with the lock held: see `forget_machines`.
                let sent = lock(&to).send(Event::Signal(signal));
                if sent.is_err() {
                    // The machines have ended, and nothing is left but to say why: whoever reads
                    // standard error may have stopped to do so.
                    std::process::exit(killed_by(signal).into());
                }
            }
        });
        Ok(Self {
            sender,
            receiver,
            signals,
        })
    }

    /// Forgets the machines that have been started so far: nobody receives what their threads have
    /// sent, or send later, so that it is not taken for that of other machines with their numbers.
    /// A signal that has come meanwhile is an error.
    pub fn forget_machines(&mut self) -> Result<(), Error> {
        let (sender, receiver) = channel();
        self.sender = sender.clone();
        let old = mem::replace(&mut self.receiver, receiver);
        // From here on signals come by the new channel; those before are in the old one.
        *lock(&self.signals) = sender;
        let come = old.try_iter().find_map(|event| match event {
            Event::Signal(signal) => Some(signal),
            _ => None,
        });
        come.map_or(Ok(()), |signal| Err(ended_by(signal)))
    }

    /// Waits for the next event; `None` when the time of `deadline` has come. A signal and an error
    /// of another thread are errors, and so is the end of the reader of the output.
    pub fn next(&self, deadline: Option<Instant>) -> Result<Option<Event>, Error> {
        let event = match deadline {
            None => self.receiver.recv().ok(),
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                self.receiver.recv_timeout(left).ok()
            }
        };
        match event {
            Some(Event::Signal(signal)) => Err(ended_by(signal)),
            Some(Event::NobodyReads) => {
                let what = "ended, because nobody reads the output";
                Err(Error::with_status(
                    killed_by(signal_hook::consts::SIGPIPE),
                    what,
                    "",
                ))
            }
            Some(Event::Failed(error)) => Err(error),
            event => Ok(event),
        }
    }
}

/// The signals that are ignored, of which the lowest bit is signal 1, by `/proc/self/status`. Who
/// has started this program wants them to have no effect: nohup, or a shell without job control
/// that runs it in the background.
fn ignored(status: &str) -> u64 {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// The exit status for a signal, as shells have it.
fn killed_by(signal: i32) -> u8 {
    u8::try_from(signal.saturating_add(128)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_forgotten_and_signals_are_not() {
        let mut events = Events::new().unwrap();
        let old = events.sender.clone();
        old.send(Event::Gone(1)).unwrap();
        events.forget_machines().unwrap();
        assert!(old.send(Event::Gone(1)).is_err());
        events.sender.send(Event::Up(1)).unwrap();
        let next = |events: &Events| events.next(Some(Instant::now()));
        assert!(matches!(next(&events), Ok(Some(Event::Up(1)))));
        assert!(matches!(next(&events), Ok(None)));
        // As the thread does that handles signals.
        let signal = |events: &Events| {
            let sent = lock(&events.signals).send(Event::Signal(SIGINT));
            sent.unwrap();
        };
        signal(&events);
        assert_eq!(next(&events).unwrap_err().status, 130);
        signal(&events);
        events.sender.send(Event::Gone(1)).unwrap();
        assert_eq!(events.forget_machines().unwrap_err().status, 130);
        assert!(matches!(next(&events), Ok(None)));
    }

    #[test]
    fn signals_that_are_ignored() {
        let mask = ignored("SigBlk:\t0000000000000007\nSigIgn:\t0000000000001001\n");
        assert_eq!(mask, 0x1001);
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
