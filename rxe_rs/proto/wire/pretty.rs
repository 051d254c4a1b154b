// SPDX-License-Identifier: GPL-2.0
//! A packet on one line, for tools and failing tests.

use super::{Packet, Syndrome};
use core::fmt;

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bth = self.bth();
        write!(
            f,
            "{:?} {} qp {:#x} psn {:#x} pkey {:#x}",
            bth.opcode.transport(),
            bth.opcode.operation().as_str(),
            bth.dest_qpn.get(),
            bth.psn.get(),
            bth.pkey.0,
        )?;
        for (flag, name) in [
            (bth.se, "se"),
            (bth.ack_req, "ackreq"),
            (bth.fecn, "fecn"),
            (bth.becn, "becn"),
        ] {
            if flag {
                write!(f, " {name}")?;
            }
        }
        if let Some(deth) = self.deth() {
            write!(
                f,
                " from {:#x} qkey {:#x}",
                deth.src_qpn().get(),
                deth.qkey().0
            )?;
        }
        if let Some(feth) = self.feth() {
            write!(
                f,
                " flush {:?} place {:#x}",
                feth.selectivity(),
                feth.placement()
            )?;
        }
        if let Some(reth) = self.reth() {
            let (va, rkey) = (reth.va(), reth.rkey().0);
            write!(f, " va {va:#x} rkey {rkey:#x} dmalen {}", reth.dma_len())?;
        }
        if let Some(eth) = self.atomic_eth() {
            let (va, rkey) = (eth.va(), eth.rkey().0);
            write!(f, " va {va:#x} rkey {rkey:#x}")?;
            write!(
                f,
                " swap/add {:#x} compare {:#x}",
                eth.swap_add(),
                eth.compare()
            )?;
        }
        if let Some(aeth) = self.aeth() {
            match aeth.syndrome() {
                Syndrome::Ack { credits } => write!(f, " ack credits {credits}")?,
                Syndrome::RnrNak { timer } => write!(f, " rnr-nak timer {timer}")?,
                Syndrome::Nak(code) => write!(f, " nak {code:?}")?,
                Syndrome::Reserved => write!(f, " reserved syndrome")?,
            }
            write!(f, " msn {}", aeth.msn().get())?;
        }
        if let Some(eth) = self.atomic_ack() {
            write!(f, " original {:#x}", eth.original())?;
        }
        if let Some(imm) = self.imm() {
            write!(f, " imm {imm:02x?}")?;
        }
        if let Some(ieth) = self.ieth() {
            write!(f, " inv {:#x}", ieth.rkey().0)?;
        }
        write!(f, " len {} pad {}", self.payload_len(), bth.pad)
    }
}
