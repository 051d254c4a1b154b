// SPDX-License-Identifier: GPL-2.0
//! Programs: lists of calls. What a call does with its numbers is in `exec.rs`; here is what can be
//! done to programs without running them: making, changing, writing and reading them.

use fastrand::Rng;
use std::fmt::Write;

/// Numbers of a call.
pub const ARGS: usize = 8;

/// One call. All numbers have a meaning whatever they are: handles are taken modulo what there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// Index into [`OPS`].
    pub op: u8,
    /// Makes the n-th allocation of the call fail, where the kernel can do so; 0 for none.
    pub nth: u16,
    /// What it is done to, and how.
    pub args: [u32; ARGS],
}

/// Who may do what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Any process.
    Anyone,
    /// Only root, and only where no bystander is to be spared.
    Admin,
}

macro_rules! ops {
    ($($name:ident $weight:literal $who:ident,)*) => {
        /// What a call is.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs)] // The names say it.
        pub enum Op { $($name,)* }

        /// All of them: name, how often it is chosen, and who may.
        pub const OPS: &[(&str, u32, Who, Op)] = &[$((stringify!($name), $weight, Who::$who, Op::$name),)*];
    };
}

ops! {
    Context 1 Anyone,
    QueryDevice 1 Anyone,
    QueryPort 1 Anyone,
    AllocPd 4 Anyone,
    DeallocPd 2 Anyone,
    CreateChannel 3 Anyone,
    CreateCq 8 Anyone,
    CreateCqEx 3 Anyone,
    CreateCqIoctl 3 Anyone,
    ResizeCq 8 Anyone,
    ModifyCq 4 Anyone,
    ArmCq 8 Anyone,
    DestroyCq 5 Anyone,
    CreateSrq 6 Anyone,
    CreateSrqIoctl 2 Anyone,
    ModifySrq 8 Anyone,
    QuerySrq 2 Anyone,
    DestroySrq 4 Anyone,
    CreateQp 10 Anyone,
    CreateQpEx 3 Anyone,
    CreateQpIoctl 3 Anyone,
    Connect 24 Anyone,
    ModifyQp 16 Anyone,
    ModifyQpState 10 Anyone,
    QueryQp 4 Anyone,
    DestroyQp 6 Anyone,
    RegMr 16 Anyone,
    RegMrIoctl 5 Anyone,
    RegDmabuf 4 Anyone,
    ReregMr 10 Anyone,
    DeregMr 8 Anyone,
    DeregMrIoctl 3 Anyone,
    QueryMr 2 Anyone,
    AdviseMr 8 Anyone,
    AddSegment 10 Anyone,
    RemoveSegment 8 Anyone,
    TieMr 6 Anyone,
    AllocMw 6 Anyone,
    DeallocMw 4 Anyone,
    CreateAh 5 Anyone,
    DestroyAh 3 Anyone,
    AttachMcast 4 Anyone,
    DetachMcast 3 Anyone,
    CreateFlow 1 Anyone,
    PostSend 60 Anyone,
    PostRecv 40 Anyone,
    Doorbell 20 Anyone,
    ConsumeCq 24 Anyone,
    ScribbleRing 10 Anyone,
    SetIndex 8 Anyone,
    PostByCommand 3 Anyone,
    WriteCommand 6 Anyone,
    IoctlMethod 8 Anyone,
    Events 6 Anyone,
    Memory 16 Anyone,
    Touch 6 Anyone,
    Sysfs 3 Anyone,
    Netlink 4 Anyone,
    Pause 4 Anyone,
    Fork 1 Anyone,
    Die 1 Anyone,
    SysfsWrite 3 Admin,
    NetlinkAdmin 4 Admin,
    Netdev 3 Admin,
    Link 3 Admin,
}

impl Call {
    /// A random one of those that may be done.
    pub fn random(rng: &mut Rng, admin: bool) -> Self {
        let allowed = |who: Who| who == Who::Anyone || admin;
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

    /// The call of that name with those numbers.
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

    /// What it does.
    pub fn op(&self) -> Op {
        OPS[usize::from(self.op) % OPS.len()].3
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        OPS[usize::from(self.op) % OPS.len()].0
    }

    /// Whether only root may do it.
    pub fn admin(&self) -> bool {
        OPS[usize::from(self.op) % OPS.len()].2 == Who::Admin
    }

    /// One line.
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

    /// Reads what [`text`](Self::text) wrote.
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

/// Mostly small: most numbers choose among few things.
fn number(rng: &mut Rng) -> u32 {
    match rng.u8(..16) {
        0..=8 => rng.u32(..16),
        9..=12 => rng.u32(..4096),
        13 => 1 << rng.u32(..32),
        14 => u32::MAX - rng.u32(..16),
        _ => rng.u32(..),
    }
}

/// What the workers do at the same time, a list of calls for each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// By worker.
    pub lists: Vec<Vec<Call>>,
}

/// Most calls of one worker.
pub const MOST_CALLS: usize = 48;

impl Program {
    /// A random one.
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

    /// A changed copy: some calls changed, added, taken out, repeated, or from another program.
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
            list.truncate(MOST_CALLS);
        }
        if rng.u8(..8) == 0 && copy.lists.len() > 1 {
            copy.lists.rotate_left(1);
        }
        copy
    }

    /// Lines of text: each call behind its worker's number.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (worker, list) in self.lists.iter().enumerate() {
            for call in list {
                let _ = writeln!(text, "{worker} {}", call.text());
            }
        }
        text
    }

    /// Reads a file of programs, each behind a line `program`.
    pub fn parse_all(text: &str, workers: usize) -> Vec<Self> {
        text.split("program\n")
            .skip(1)
            .map(|part| Self::parse(part, workers))
            .collect()
    }

    /// Reads what [`text`](Self::text) wrote; what makes no sense is left out.
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
            assert!(program.lists.iter().all(|list| list.len() <= MOST_CALLS));
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
