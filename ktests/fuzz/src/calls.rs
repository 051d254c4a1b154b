// SPDX-License-Identifier: GPL-2.0
//! Programs: lists of calls. This file generates, mutates, prints and parses them; `exec.rs` runs
//! them.

use fastrand::Rng;
use std::fmt::Write;

/// Number of arguments of a call.
pub const ARGS: usize = 8;

/// Arguments of a call.
pub type Args = [u32; ARGS];

/// A call. Every value of an argument is valid: slots, for example, are taken modulo their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Index into [`OPS`].
    pub op: u8,
    /// Number of the allocation in the call that fails, on kernels with fault injection; 0 for
    /// none.
    pub nth: u16,
    /// The arguments: which objects are used, and how.
    pub args: Args,
}

/// The privilege that a call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Privilege {
    /// Any process.
    User,
    /// Only root. Such calls disturb other users of the devices, so tests with a bystander leave
    /// them out.
    Admin,
}

macro_rules! ops {
    ($($name:ident $weight:literal $who:ident,)*) => {
        /// Operation of a call.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)] // The names say it.
        pub enum Op { $($name,)* }

        /// All operations: name, weight in the random choice, privilege.
        pub const OPS: &[(&str, u32, Privilege, Op)] = &[$((stringify!($name), $weight, Privilege::$who, Op::$name),)*];
    };
}

ops! {
    Context 1 User,
    QueryDevice 1 User,
    QueryPort 1 User,
    AllocPd 4 User,
    DeallocPd 2 User,
    CreateChannel 3 User,
    CreateCq 8 User,
    CreateCqEx 3 User,
    CreateCqIoctl 3 User,
    ResizeCq 8 User,
    ModifyCq 4 User,
    ArmCq 8 User,
    DestroyCq 5 User,
    CreateSrq 6 User,
    CreateSrqIoctl 2 User,
    ModifySrq 8 User,
    QuerySrq 2 User,
    DestroySrq 4 User,
    CreateQp 10 User,
    CreateQpEx 3 User,
    CreateQpIoctl 3 User,
    Connect 24 User,
    ModifyQp 16 User,
    ModifyQpState 10 User,
    QueryQp 4 User,
    DestroyQp 6 User,
    RegMr 16 User,
    RegMrIoctl 5 User,
    RegDmabuf 4 User,
    ReregMr 10 User,
    DeregMr 8 User,
    DeregMrIoctl 3 User,
    QueryMr 2 User,
    AdviseMr 8 User,
    AddSegment 10 User,
    RemoveSegment 8 User,
    TieMr 6 User,
    AllocMw 6 User,
    DeallocMw 4 User,
    CreateAh 5 User,
    DestroyAh 3 User,
    AttachMcast 4 User,
    DetachMcast 3 User,
    CreateFlow 1 User,
    PostSend 60 User,
    PostRecv 40 User,
    Doorbell 20 User,
    ConsumeCq 24 User,
    OverwriteRing 10 User,
    SetIndex 8 User,
    PostByCommand 3 User,
    WriteCommand 6 User,
    IoctlMethod 8 User,
    Events 6 User,
    Memory 16 User,
    Touch 6 User,
    Sysfs 3 User,
    Netlink 4 User,
    Pause 4 User,
    Fork 1 User,
    Die 1 User,
    SysfsWrite 3 Admin,
    NetlinkAdmin 4 Admin,
    Netdev 3 Admin,
    Link 3 Admin,
}

impl Call {
    /// Returns a random call, a privileged one only if `admin`.
    pub fn random(rng: &mut Rng, admin: bool) -> Self {
        let allowed = |who: Privilege| who == Privilege::User || admin;
        let total: u32 = OPS.iter().filter(|op| allowed(op.2)).map(|op| op.1).sum();
        let mut left = rng.u32(..total);
        let mut op = 0;
        for (index, entry) in OPS.iter().enumerate().filter(|(_, op)| allowed(op.2)) {
            op = index;
            if left < entry.1 {
                break;
            }
            left -= entry.1;
        }
        let mut call = Self {
            op: op as u8,
            nth: 0,
            args: [0; ARGS],
        };
        for arg in &mut call.args {
            *arg = number(rng);
        }
        if rng.u8(..12) == 0 {
            call.nth = rng.u16(1..24);
        }
        call
    }

    /// Returns a call with these arguments, further ones 0.
    pub fn of(op: Op, args: &[u32]) -> Self {
        let index = OPS.iter().position(|entry| entry.3 == op).unwrap_or(0);
        let mut call = Self {
            op: index as u8,
            nth: 0,
            args: [0; ARGS],
        };
        for (to, from) in call.args.iter_mut().zip(args) {
            *to = *from;
        }
        call
    }

    /// Returns the operation.
    pub fn op(&self) -> Op {
        OPS[usize::from(self.op) % OPS.len()].3
    }

    /// Returns the name of the operation.
    pub fn name(&self) -> &'static str {
        OPS[usize::from(self.op) % OPS.len()].0
    }

    /// Returns true if the call needs privileges.
    pub fn admin(&self) -> bool {
        OPS[usize::from(self.op) % OPS.len()].2 == Privilege::Admin
    }

    /// Returns the call as a line of text.
    pub fn text(&self) -> String {
        let mut line = self.name().to_string();
        for arg in self.args {
            let _ = write!(line, " {arg:x}");
        }
        if self.nth != 0 {
            let _ = write!(line, " !{}", self.nth);
        }
        line
    }

    /// Parses the output of [`text`](Self::text).
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let op = OPS.iter().position(|entry| entry.0 == name)?;
        let mut call = Self {
            op: op as u8,
            nth: 0,
            args: [0; ARGS],
        };
        let mut args = call.args.iter_mut();
        for word in words {
            match word.strip_prefix('!') {
                Some(nth) => call.nth = nth.parse().ok()?,
                None => *args.next()? = u32::from_str_radix(word, 16).ok()?,
            }
        }
        Some(call)
    }
}

/// Returns a random argument, usually a small one: most arguments select among few values.
fn number(rng: &mut Rng) -> u32 {
    match rng.u8(..16) {
        0..=8 => rng.u32(..16),
        9..=12 => rng.u32(..4096),
        13 => 1 << rng.u32(..32),
        14 => u32::MAX - rng.u32(..16),
        _ => rng.u32(..),
    }
}

/// A list of calls for each worker; the workers run their lists concurrently.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// The lists, by worker.
    pub lists: Vec<Vec<Call>>,
}

/// Maximum length of a worker's list.
pub const MAX_CALLS: usize = 48;

impl Program {
    /// Returns a random program.
    pub fn random(rng: &mut Rng, workers: usize, admin: bool) -> Self {
        let lists = (0..workers)
            .map(|_| {
                (0..rng.usize(1..20))
                    .map(|_| Call::random(rng, admin))
                    .collect()
            })
            .collect();
        Self { lists }
    }

    /// Returns a mutated copy: calls are changed, inserted, removed, repeated, or copied from
    /// another program.
    pub fn mutated(&self, rng: &mut Rng, other: &Self, admin: bool) -> Self {
        let mut copy = self.clone();
        for _ in 0..rng.usize(1..6) {
            let worker = rng.usize(..copy.lists.len().max(1));
            let Some(list) = copy.lists.get_mut(worker) else {
                continue;
            };
            let at = rng.usize(..list.len() + 1);
            match rng.u8(..12) {
                0..=2 => list.insert(at, Call::random(rng, admin)),
                3 if at < list.len() => {
                    list.remove(at);
                }
                4..=7 if at < list.len() => {
                    let call = &mut list[at];
                    let arg = &mut call.args[rng.usize(..ARGS)];
                    *arg = match rng.u8(..4) {
                        0 => arg.wrapping_add(rng.u32(..8)).wrapping_sub(4),
                        1 => *arg ^ (1 << rng.u32(..32)),
                        _ => number(rng),
                    };
                }
                8 if at < list.len() => list[at].nth = rng.u16(..32),
                9 if at < list.len() => {
                    let call = list[at];
                    for _ in 0..rng.usize(1..8) {
                        list.insert(at, call);
                    }
                }
                _ => {
                    let Some(from) = other.lists.get(rng.usize(..other.lists.len().max(1))) else {
                        continue;
                    };
                    let start = rng.usize(..from.len() + 1);
                    let end = rng.usize(start..from.len() + 1);
                    list.splice(at..at, from[start..end].iter().copied());
                }
            }
            list.truncate(MAX_CALLS);
        }
        if rng.u8(..8) == 0 && copy.lists.len() > 1 {
            copy.lists.rotate_left(1);
        }
        copy
    }

    /// Returns the program as text: a line for each call, which begins with the number of the
    /// worker.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (worker, list) in self.lists.iter().enumerate() {
            for call in list {
                let _ = writeln!(text, "{worker} {}", call.text());
            }
        }
        text
    }

    /// Parses a file of programs, each of which follows a line `program`.
    pub fn parse_all(text: &str, workers: usize) -> Vec<Self> {
        text.split("program\n")
            .skip(1)
            .map(|part| Self::parse(part, workers))
            .collect()
    }

    /// Parses the output of [`text`](Self::text); invalid lines are skipped.
    pub fn parse(text: &str, workers: usize) -> Self {
        let mut lists = vec![Vec::new(); workers];
        for line in text.lines() {
            let Some((worker, rest)) = line.split_once(' ') else {
                continue;
            };
            let Ok(worker) = worker.parse::<usize>() else {
                continue;
            };
            if let Some(call) = Call::parse(rest) {
                lists[worker % workers].push(call);
            }
        }
        Self { lists }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back() {
        let mut rng = Rng::with_seed(1);
        for _ in 0..1000 {
            let program = Program::random(&mut rng, 3, true);
            assert_eq!(Program::parse(&program.text(), 3), program);
        }
    }

    #[test]
    fn mutation_keeps_within_what_may_be_done() {
        let mut rng = Rng::with_seed(2);
        let mut program = Program::random(&mut rng, 3, false);
        for _ in 0..5000 {
            let other = Program::random(&mut rng, 3, false);
            program = program.mutated(&mut rng, &other, false);
            assert!(program.lists.iter().all(|list| list.len() <= MAX_CALLS));
            assert!(program.lists.iter().flatten().all(|call| !call.admin()));
        }
    }

    #[test]
    fn every_call_is_chosen() {
        let mut rng = Rng::with_seed(3);
        let mut chosen = vec![false; OPS.len()];
        for _ in 0..20_000 {
            chosen[usize::from(Call::random(&mut rng, true).op)] = true;
        }
        assert!(chosen.iter().all(|seen| *seen));
    }
}
