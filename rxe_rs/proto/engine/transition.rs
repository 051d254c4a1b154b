// SPDX-License-Identifier: GPL-2.0
//! The state machine of a QP as its owner drives it: which changes are allowed, and with which attributes.
//!
//! ```text
//!             INIT attributes     peer, path        own PSN, retries
//!   RESET ───────────────▶ INIT ──────────▶ RTR ──────────────────▶ RTS ◀────────┐
//!                          ↺                                        ↺│ ▲         │
//!                                                                    ▼ │         │
//!                                                                   SQD          │
//!                                                                    ↺           │
//!                            a send of UC, UD or raw frames fails: RTS ──▶ SQE ──┘
//!
//!   Every state but RESET may go to ERR; every state may go to RESET. ↺ marks where attributes
//!   can change without a change of state. A failure of an RC, or a receive that fails, leads to
//!   ERR by itself; SQE is never entered by request.
//! ```
//!
//! What a QP does in each state:
//!
//! | state | receives posted | packets arriving | sends posted |
//! |---|---|---|---|
//! | RESET | kept by librxe, which asks nobody | dropped, counted | refused |
//! | INIT | kept | dropped, counted | refused |
//! | RTR | kept | executed and answered | refused |
//! | RTS | kept | executed and answered | executed |
//! | SQD | kept | executed and answered | kept; those begun are finished |
//! | SQE | kept | executed and answered | flushed |
//! | ERR | flushed | dropped, counted | flushed |
//!
//! Source: IBTA vol1 10.3.1 (figure 124), 11.2.5.2 (table of modifiers by transition), as
//! `include/rdma/ib_verbs.h` and the core encode it for RoCE.

use super::attrs::{Service, State};

/// Bits that name attributes, those of `enum ib_qp_attr_mask` (`include/rdma/ib_verbs.h`).
pub mod attr {
    /// The state itself: never required, the state stays the same without it.
    pub const STATE: u32 = 1;
    /// The state that the owner believes the QP to be in.
    pub const CUR_STATE: u32 = 1 << 1;
    /// Ask for an event when the send queue has drained.
    pub const SQD_NOTIFY: u32 = 1 << 2;
    /// Rights of the peer.
    pub const ACCESS: u32 = 1 << 3;
    /// Index into the P_Key table.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// Port.
    pub const PORT: u32 = 1 << 5;
    /// Q_Key.
    pub const QKEY: u32 = 1 << 6;
    /// Path to the peer.
    pub const AV: u32 = 1 << 7;
    /// Path MTU.
    pub const PATH_MTU: u32 = 1 << 8;
    /// ACK timeout.
    pub const TIMEOUT: u32 = 1 << 9;
    /// Transport retries.
    pub const RETRY_CNT: u32 = 1 << 10;
    /// Receiver-not-ready retries.
    pub const RNR_RETRY: u32 = 1 << 11;
    /// First PSN expected.
    pub const RQ_PSN: u32 = 1 << 12;
    /// READs and ATOMICs outstanding at the peer.
    pub const MAX_RD_ATOMIC: u32 = 1 << 13;
    /// Alternate path.
    pub const ALT_PATH: u32 = 1 << 14;
    /// Timer code of receiver-not-ready NAKs.
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// First PSN sent.
    pub const SQ_PSN: u32 = 1 << 16;
    /// READs and ATOMICs of the peer outstanding here.
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// Path migration state.
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    /// The peer's number.
    pub const DEST_QPN: u32 = 1 << 20;
}

use attr::*;

/// Attributes by transport service.
#[derive(Clone, Copy)]
struct Masks {
    rc: u32,
    uc: u32,
    /// UD, and GSI but for the port, which its creation fixed.
    ud: u32,
    raw: u32,
}

impl Masks {
    const NONE: Self = Self {
        rc: 0,
        uc: 0,
        ud: 0,
        raw: 0,
    };

    const fn of(&self, service: Service) -> u32 {
        match service {
            Service::Rc => self.rc,
            Service::Uc => self.uc,
            Service::Ud => self.ud,
            Service::Gsi => self.ud & !PORT,
            Service::Raw => self.raw,
        }
    }
}

/// A transition with attributes; those to RESET and ERR have none.
struct Rule {
    from: State,
    to: State,
    required: Masks,
    optional: Masks,
}

/// What may change while the QP works.
const LIVE: Masks = Masks {
    rc: CUR_STATE | ACCESS | MIN_RNR_TIMER | ALT_PATH | PATH_MIG_STATE,
    uc: CUR_STATE | ACCESS | ALT_PATH | PATH_MIG_STATE,
    ud: CUR_STATE | QKEY,
    raw: 0,
};

/// What makes a QP belong to a port and a partition.
const PLACE: Masks = Masks {
    rc: PKEY_INDEX | PORT | ACCESS,
    uc: PKEY_INDEX | PORT | ACCESS,
    ud: PKEY_INDEX | PORT | QKEY,
    raw: PORT,
};

const RULES: [Rule; 9] = [
    Rule {
        from: State::Reset,
        to: State::Init,
        required: PLACE,
        optional: Masks::NONE,
    },
    Rule {
        from: State::Init,
        to: State::Init,
        required: Masks::NONE,
        optional: Masks { raw: 0, ..PLACE },
    },
    Rule {
        from: State::Init,
        to: State::Rtr,
        required: Masks {
            rc: AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            uc: AV | PATH_MTU | DEST_QPN | RQ_PSN,
            ud: 0,
            raw: 0,
        },
        optional: Masks {
            rc: ALT_PATH | ACCESS | PKEY_INDEX,
            uc: ALT_PATH | ACCESS | PKEY_INDEX,
            ud: PKEY_INDEX | QKEY,
            raw: 0,
        },
    },
    Rule {
        from: State::Rtr,
        to: State::Rts,
        required: Masks {
            rc: TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
            uc: SQ_PSN,
            ud: SQ_PSN,
            raw: 0,
        },
        optional: LIVE,
    },
    Rule {
        from: State::Rts,
        to: State::Rts,
        required: Masks::NONE,
        optional: LIVE,
    },
    Rule {
        from: State::Rts,
        to: State::Sqd,
        required: Masks::NONE,
        optional: Masks {
            rc: SQD_NOTIFY,
            uc: SQD_NOTIFY,
            ud: SQD_NOTIFY,
            raw: 0,
        },
    },
    Rule {
        from: State::Sqd,
        to: State::Rts,
        required: Masks::NONE,
        optional: LIVE,
    },
    Rule {
        from: State::Sqd,
        to: State::Sqd,
        required: Masks::NONE,
        optional: Masks {
            rc: PORT
                | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | ALT_PATH
                | ACCESS
                | PKEY_INDEX
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
            uc: AV | ALT_PATH | ACCESS | PKEY_INDEX | PATH_MIG_STATE,
            ud: PKEY_INDEX | QKEY,
            raw: 0,
        },
    },
    Rule {
        from: State::Sqe,
        to: State::Rts,
        required: Masks::NONE,
        optional: Masks {
            rc: 0,
            uc: CUR_STATE | ACCESS,
            ud: CUR_STATE | QKEY,
            raw: 0,
        },
    },
];

/// Why a change is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No such transition.
    Transition,
    /// These attributes must be given, too.
    Missing(u32),
    /// These attributes cannot be given with this transition.
    Foreign(u32),
}

/// Checks a change from state `from` to `to` that names the attributes of `mask`.
///
/// # Errors
///
/// See [`Refusal`]; the first that applies, in the order transition, missing, foreign.
pub fn check(service: Service, from: State, to: State, mask: u32) -> Result<(), Refusal> {
    let (required, optional) = match (from, to) {
        (_, State::Reset) => (0, 0),
        (State::Reset, State::Err) => return Err(Refusal::Transition),
        (_, State::Err) => (0, 0),
        _ => {
            let mut rules = RULES.iter();
            let rule = rules.find(|rule| rule.from == from && rule.to == to);
            let rule = rule.ok_or(Refusal::Transition)?;
            (rule.required.of(service), rule.optional.of(service))
        }
    };
    let missing = required & !mask;
    if missing != 0 {
        return Err(Refusal::Missing(missing));
    }
    let foreign = mask & !(STATE | required | optional);
    if foreign != 0 {
        return Err(Refusal::Foreign(foreign));
    }
    Ok(())
}

#[cfg(test)]
#[path = "../tests/transition.rs"]
mod tests;
