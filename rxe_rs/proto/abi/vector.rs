// SPDX-License-Identifier: GPL-2.0
//! Address vectors by which old libraries name address handles.
//!
//! librxe before rdma-core 39 expects no response when it creates an address handle, so it knows
//! no number. It copies the address vector to each request for a datagram in place of that.

/// The fields of an address vector that tell the destinations of one protection domain apart.
///
/// The hop limit is none of them: the RDMA core sets it when it resolves the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VectorKey {
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Flow label; only 20 bits count.
    pub flow_label: u32,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

impl VectorKey {
    /// Returns a digest (FNV-1a), by which requests name the address handle.
    pub fn digest(&self) -> u32 {
        let label = (self.flow_label & 0xf_ffff).to_le_bytes();
        let rest = [self.sgid_index, self.traffic_class];
        let bytes = self.dgid.iter().chain(&label).chain(&rest);
        bytes.fold(0x811c_9dc5, |digest: u32, byte| {
            (digest ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        })
    }
}
