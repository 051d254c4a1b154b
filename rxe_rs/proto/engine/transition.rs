// SPDX-License-Identifier: GPL-2.0
//! The QP state machine as driven by modify QP: which transitions are allowed, and with which
//! attributes.
//!
//! ```text
//!             INIT attributes     peer, path        SQ PSN, retries
//!   RESET ───────────────▶ INIT ──────────▶ RTR ──────────────────▶ RTS ◀────────┐
//!                          ↺                                        ↺│ ▲         │
//!                                                                    ▼ │         │
//!                                                                   SQD          │
//!                                                                    ↺           │
//!                     a send request of UC, UD or raw packet fails: RTS ──▶ SQE ──┘
//!
//!   Every state but RESET may go to ERR; every state may go to RESET. ↺ marks states in which
//!   attributes can change without a transition. An error of an RC QP, or of a receive, moves the
//!   QP to ERR by itself; modify QP never enters SQE.
//! ```
//!
//! Behaviour in each state:
//!
//! | state | receives posted | packets arriving | sends posted |
//! |---|---|---|---|
//! | RESET | queued by librxe without a system call | dropped, counted | refused |
//! | INIT | queued | dropped, counted | refused |
//! | RTR | queued | executed and answered | refused |
//! | RTS | queued | executed and answered | executed |
//! | SQD | queued | executed and answered | queued; started ones complete |
//! | SQE | queued | executed and answered | flushed |
//! | ERR | flushed | dropped, counted | flushed |
//!
//! Source: the rules that [`check`] cites, as `include/rdma/ib_verbs.h` and ib_core encode them for
//! RoCE.

use super::attrs::{Service, State};

/// Attribute mask bits, those of `enum ib_qp_attr_mask` (`include/rdma/ib_verbs.h`).
pub mod attr {
    /// The state: never required, without it the state stays the same.
    pub const STATE: u32 = 1;
    /// The current state as assumed by the caller.
    pub const CUR_STATE: u32 = 1 << 1;
    /// Request an event when the send queue is drained.
    pub const SQD_NOTIFY: u32 = 1 << 2;
    /// Remote access rights.
    pub const ACCESS: u32 = 1 << 3;
    /// Index into the P_Key table.
    pub const PKEY_INDEX: u32 = 1 << 4;
    /// Port.
    pub const PORT: u32 = 1 << 5;
    /// Q_Key.
    pub const QKEY: u32 = 1 << 6;
    /// Primary path (address vector).
    pub const AV: u32 = 1 << 7;
    /// Path MTU.
    pub const PATH_MTU: u32 = 1 << 8;
    /// ACK timeout.
    pub const TIMEOUT: u32 = 1 << 9;
    /// Transport retries.
    pub const RETRY_CNT: u32 = 1 << 10;
    /// Receiver-not-ready retries.
    pub const RNR_RETRY: u32 = 1 << 11;
    /// Expected PSN of the receive queue.
    pub const RQ_PSN: u32 = 1 << 12;
    /// Maximum READs and ATOMICs outstanding at the peer.
    pub const MAX_RD_ATOMIC: u32 = 1 << 13;
    /// Alternate path.
    pub const ALT_PATH: u32 = 1 << 14;
    /// Timer code of receiver-not-ready NAKs.
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    /// First PSN of the send queue.
    pub const SQ_PSN: u32 = 1 << 16;
    /// Responder resources for READs and ATOMICs of the peer.
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    /// Path migration state.
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    /// QP number of the peer.
    pub const DEST_QPN: u32 = 1 << 20;
}

use attr::*;

/// Attribute masks by transport service.
#[derive(Clone, Copy)]
struct Masks {
    rc: u32,
    uc: u32,
    /// UD; also GSI except for the port, which is fixed at creation.
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

/// A transition and its attributes; transitions to RESET and ERR have none.
struct Rule {
    from: State,
    to: State,
    required: Masks,
    optional: Masks,
}

/// Attributes that may change in RTS.
const RTS_OPTIONAL: Masks = Masks {
    rc: CUR_STATE | ACCESS | MIN_RNR_TIMER | ALT_PATH | PATH_MIG_STATE,
    uc: CUR_STATE | ACCESS | ALT_PATH | PATH_MIG_STATE,
    ud: CUR_STATE | QKEY,
    raw: 0,
};

/// Attributes of RESET to INIT: port, partition and access rights.
const RESET_TO_INIT: Masks = Masks {
    rc: PKEY_INDEX | PORT | ACCESS,
    uc: PKEY_INDEX | PORT | ACCESS,
    ud: PKEY_INDEX | PORT | QKEY,
    raw: PORT,
};

const RULES: [Rule; 9] = [
    Rule {
        from: State::Reset,
        to: State::Init,
        required: RESET_TO_INIT,
        optional: Masks::NONE,
    },
    Rule {
        from: State::Init,
        to: State::Init,
        required: Masks::NONE,
        optional: Masks {
            raw: 0,
            ..RESET_TO_INIT
        },
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
        optional: RTS_OPTIONAL,
    },
    Rule {
        from: State::Rts,
        to: State::Rts,
        required: Masks::NONE,
        optional: RTS_OPTIONAL,
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
        optional: RTS_OPTIONAL,
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

/// Why a transition is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransitionError {
    /// No such transition.
    NoTransition,
    /// These required attributes are missing from the mask.
    Missing(u32),
    /// These attributes are not allowed with this transition.
    NotAllowed(u32),
}

/// Checks a transition from state `from` to `to` (IBTA 10.3.1) with the attributes of `mask`
/// (IBTA 11.2.5.2).
///
/// # Errors
///
/// The first [`TransitionError`] that applies, in the order transition, missing, not allowed.
pub fn check(service: Service, from: State, to: State, mask: u32) -> Result<(), TransitionError> {
    let (required, optional) = match (from, to) {
        (_, State::Reset) => (0, 0),
        (State::Reset, State::Err) => return Err(TransitionError::NoTransition),
        (_, State::Err) => (0, 0),
        _ => {
            let mut rules = RULES.iter();
            let rule = rules.find(|rule| rule.from == from && rule.to == to);
            let rule = rule.ok_or(TransitionError::NoTransition)?;
            (rule.required.of(service), rule.optional.of(service))
        }
    };
    let missing = required & !mask;
    if missing != 0 {
        return Err(TransitionError::Missing(missing));
    }
    let not_allowed = mask & !(STATE | required | optional);
    if not_allowed != 0 {
        return Err(TransitionError::NotAllowed(not_allowed));
    }
    Ok(())
}

#[cfg(test)]
#[path = "../tests/transition.rs"]
mod tests;
