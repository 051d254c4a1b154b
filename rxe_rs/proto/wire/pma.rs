// SPDX-License-Identifier: GPL-2.0
//! Performance management agent (PMA): responses to queries of port counters.
//!
//! MADs come from the network as well as from ib_core of this kernel. Only PerformanceGet is
//! supported: a sender of datagrams may not reset the counters of a port.

/// Bytes of a management datagram.
pub const MAD_LEN: usize = 256;

/// Offset of the attribute after header and reserved bytes.
const ATTRIBUTE: usize = 64;

/// Management class of performance management.
const CLASS: u8 = 0x04;

const METHOD_GET: u8 = 0x01;
const METHOD_SET: u8 = 0x02;
const METHOD_GET_RESP: u8 = 0x81;

const ATTR_CLASS_PORT_INFO: u16 = 0x0001;
const ATTR_PORT_COUNTERS: u16 = 0x0012;
const ATTR_PORT_COUNTERS_EXT: u16 = 0x001d;

/// `CapabilityMask` of class port info: there are 64 bit counters, all of them.
const CAP_EXTENDED_WIDTH: u16 = 0x0200;

/// `RespTimeValue`: a response takes at most 4.096 us * 2^18, a second.
const RESPONSE_TIME: u8 = 18;

const STATUS_BAD_VERSION: u16 = 0x0004;
const STATUS_BAD_METHOD_ATTRIBUTE: u16 = 0x000c;
const STATUS_BAD_VALUE: u16 = 0x001c;

/// The counters of a port since its creation (IBTA 16.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    /// Bytes sent.
    pub xmit_bytes: u64,
    /// Bytes received.
    pub rcv_bytes: u64,
    /// Packets sent.
    pub xmit_packets: u64,
    /// Packets received.
    pub rcv_packets: u64,
    /// Number of times the link went down.
    pub link_downed: u64,
    /// Damaged packets received.
    pub rcv_errors: u64,
    /// Packets that could not be sent.
    pub xmit_discards: u64,
    /// Packets received with a wrong P_Key.
    pub rcv_constraint_errors: u64,
}

/// Writes `bytes` at `at`.
fn put<const N: usize>(to: &mut [u8], at: usize, bytes: [u8; N]) -> Option<()> {
    *to.get_mut(at..)?.first_chunk_mut()? = bytes;
    Some(())
}

/// Answers a query of port `port` (IBTA 13.4). `None` if the MAD is not one, then `reply` may still
/// have been written to.
pub fn answer(
    request: &[u8; MAD_LEN],
    port: u8,
    counters: &PortCounters,
    reply: &mut [u8; MAD_LEN],
) -> Option<()> {
    let [_, class, class_version, method, ..] = *request;
    if class != CLASS || !matches!(method, METHOD_GET | METHOD_SET) {
        return None;
    }
    reply.fill(0);
    // The response has the header of the request with its transaction ID.
    reply.get_mut(..24)?.copy_from_slice(request.get(..24)?);
    *reply.get_mut(3)? = METHOD_GET_RESP;
    let status = if class_version != 1 {
        STATUS_BAD_VERSION
    } else if method != METHOD_GET {
        STATUS_BAD_METHOD_ATTRIBUTE
    } else {
        let attribute = u16::from_be_bytes(*request.get(16..)?.first_chunk()?);
        fill(attribute, request, port, counters, reply)?
    };
    put(reply, 4, status.to_be_bytes())
}

/// Writes the attribute; returns the status.
fn fill(
    attribute: u16,
    request: &[u8; MAD_LEN],
    port: u8,
    counters: &PortCounters,
    reply: &mut [u8; MAD_LEN],
) -> Option<u16> {
    let to = reply.get_mut(ATTRIBUTE..)?;
    if attribute == ATTR_CLASS_PORT_INFO {
        put(to, 0, [1, 1])?;
        put(to, 2, CAP_EXTENDED_WIDTH.to_be_bytes())?;
        put(to, 7, [RESPONSE_TIME])?;
        return Some(0);
    }
    if !matches!(attribute, ATTR_PORT_COUNTERS | ATTR_PORT_COUNTERS_EXT) {
        return Some(STATUS_BAD_METHOD_ATTRIBUTE);
    }
    let selector: [u8; 4] = *request.get(ATTRIBUTE..)?.first_chunk()?;
    let [_, selected, ..] = selector;
    if selected != port {
        return Some(STATUS_BAD_VALUE);
    }
    put(to, 0, selector)?;
    // Data counters are in words of four bytes.
    let (sent, received) = (counters.xmit_bytes >> 2, counters.rcv_bytes >> 2);
    if attribute == ATTR_PORT_COUNTERS_EXT {
        for (at, value) in [
            (8, sent),
            (16, received),
            (24, counters.xmit_packets),
            (32, counters.rcv_packets),
            (40, counters.xmit_packets),
            (48, counters.rcv_packets),
        ] {
            put(to, at, value.to_be_bytes())?;
        }
        return Some(0);
    }
    // These counters saturate.
    let byte = |value: u64| u8::try_from(value).unwrap_or(u8::MAX).to_be_bytes();
    let half = |value: u64| u16::try_from(value).unwrap_or(u16::MAX).to_be_bytes();
    let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes();
    put(to, 7, byte(counters.link_downed))?;
    put(to, 8, half(counters.rcv_errors))?;
    put(to, 14, half(counters.xmit_discards))?;
    put(to, 17, byte(counters.rcv_constraint_errors))?;
    put(to, 24, word(sent))?;
    put(to, 28, word(received))?;
    put(to, 32, word(counters.xmit_packets))?;
    put(to, 36, word(counters.rcv_packets))?;
    Some(0)
}
