// SPDX-License-Identifier: GPL-2.0
//! Attributes of devices and ports.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use crate::bindings;
use core::ffi::c_int;

/// Limits and properties of a device; numbers are limits unless said otherwise.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // The names are those of `struct ib_device_attr`.
pub struct DeviceAttr {
    /// Major, minor and patch number.
    pub fw_ver: (u32, u16, u16),
    pub sys_image_guid: [u8; 8],
    /// Length of the largest region in bytes.
    pub max_mr_size: u64,
    /// Sizes of pages in bytes: bit `n` stands for 2^`n`.
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_sge_rd: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    /// Pages of a region for fast registration (FRWR).
    pub max_fast_reg_pages: u32,
    pub max_pd: u32,
    pub max_ah: u32,
    pub max_raw_ethy_qp: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_qp_rd_atom: u32,
    pub max_pkeys: u16,
    /// Code of the time that the device itself adds to an acknowledgement, 0..=31: 4.096 µs times
    /// two to this power.
    pub local_ca_ack_delay: u8,
    /// Atomic operations are atomic with respect to the CPUs as well as to this device.
    pub atomics: bool,
    /// Peers may flush memory to persistence.
    pub persistence: bool,
    /// What works on memory with on-demand paging.
    pub on_demand: OnDemand,
}

/// Accesses to memory with on-demand paging, by transport: bits of [`OnDemand::SEND`] and so on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct OnDemand {
    pub rc: u32,
    pub uc: u32,
    pub ud: u32,
}

#[allow(missing_docs)] // The names are those of `enum ib_odp_transport_cap_bits`.
impl OnDemand {
    pub const SEND: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SEND;
    pub const RECV: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_RECV;
    pub const WRITE: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_WRITE;
    pub const READ: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_READ;
    pub const ATOMIC: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC;
    pub const SRQ_RECV: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SRQ_RECV;
    pub const FLUSH: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_FLUSH;
    pub const ATOMIC_WRITE: u32 = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC_WRITE;

    fn store(&self, to: &mut bindings::ib_device_attr) {
        to.kernel_cap_flags |= u64::from(bindings::ib_kernel_cap_flags_IBK_ON_DEMAND_PAGING);
        to.odp_caps.general_caps = u64::from(
            bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT
                | bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT_IMPLICIT,
        );
        let by_transport = &mut to.odp_caps.per_transport_caps;
        by_transport.rc_odp_caps = self.rc;
        by_transport.uc_odp_caps = self.uc;
        by_transport.ud_odp_caps = self.ud;
    }
}

impl DeviceAttr {
    pub(crate) fn store(&self, to: &mut bindings::ib_device_attr) {
        let (major, minor, patch) = self.fw_ver;
        to.fw_ver = u64::from(major) << 32 | u64::from(minor) << 16 | u64::from(patch);
        to.sys_image_guid = u64::from_ne_bytes(self.sys_image_guid);
        to.max_mr_size = self.max_mr_size;
        to.page_size_cap = self.page_size_cap;
        to.vendor_id = self.vendor_id;
        to.vendor_part_id = self.vendor_part_id;
        to.hw_ver = self.hw_ver;
        to.max_qp = int(self.max_qp);
        to.max_qp_wr = int(self.max_qp_wr);
        to.max_send_sge = int(self.max_send_sge);
        to.max_recv_sge = int(self.max_recv_sge);
        to.max_sge_rd = int(self.max_sge_rd);
        to.max_cq = int(self.max_cq);
        to.max_cqe = int(self.max_cqe);
        to.max_srq = int(self.max_srq);
        to.max_srq_wr = int(self.max_srq_wr);
        to.max_srq_sge = int(self.max_srq_sge);
        to.max_mr = int(self.max_mr);
        to.max_mw = int(self.max_mw);
        to.max_fast_reg_page_list_len = self.max_fast_reg_pages;
        to.max_pd = int(self.max_pd);
        to.max_ah = int(self.max_ah);
        to.max_raw_ethy_qp = int(self.max_raw_ethy_qp);
        to.max_mcast_grp = int(self.max_mcast_grp);
        to.max_mcast_qp_attach = int(self.max_mcast_qp_attach);
        to.max_total_mcast_qp_attach = int(self.max_total_mcast_qp_attach);
        to.max_qp_rd_atom = int(self.max_qp_rd_atom);
        to.max_qp_init_rd_atom = int(self.max_qp_rd_atom);
        to.max_res_rd_atom = int(u32::try_from(
            u64::from(self.max_qp_rd_atom).saturating_mul(u64::from(self.max_qp)),
        )
        .unwrap_or(u32::MAX));
        to.max_pkeys = self.max_pkeys;
        to.local_ca_ack_delay = self.local_ca_ack_delay;
        to.atomic_cap = if self.atomics {
            bindings::ib_atomic_cap_IB_ATOMIC_GLOB
        } else {
            bindings::ib_atomic_cap_IB_ATOMIC_NONE
        };
        to.device_cap_flags = (bindings::ib_device_cap_flags_IB_DEVICE_BAD_PKEY_CNTR
            | bindings::ib_device_cap_flags_IB_DEVICE_BAD_QKEY_CNTR
            | bindings::ib_device_cap_flags_IB_DEVICE_CURR_QP_STATE_MOD
            | bindings::ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT
            | bindings::ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID
            | bindings::ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN
            | bindings::ib_device_cap_flags_IB_DEVICE_SRQ_RESIZE
            | bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS
            | bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW
            | bindings::ib_device_cap_flags_IB_DEVICE_FLUSH_GLOBAL
            | bindings::ib_device_cap_flags_IB_DEVICE_ATOMIC_WRITE
            | bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B)
            as u64;
        if self.persistence {
            to.device_cap_flags |= bindings::ib_device_cap_flags_IB_DEVICE_FLUSH_PERSISTENT as u64;
        }
        // Any value that fits: the core passes both in 16 bits.
        to.cq_caps.max_cq_moderation_count = u16::MAX;
        to.cq_caps.max_cq_moderation_period = u16::MAX;
        to.kernel_cap_flags = u64::from(
            bindings::ib_kernel_cap_flags_IBK_ALLOW_USER_UNREG
                | bindings::ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY,
        );
        self.on_demand.store(to);
    }
}

/// A limit in the integer type the kernel happens to use; saturates at the largest `int`.
fn int<T: TryFrom<u32> + Default>(v: u32) -> T {
    T::try_from(v.min(i32::MAX.unsigned_abs())).unwrap_or_default()
}

/// State and properties of a port.
#[derive(Clone, Copy, Debug)]
pub struct PortAttr {
    /// The network device is running and has a carrier.
    pub up: bool,
    /// Largest path MTU in bytes.
    pub max_mtu: u32,
    /// Largest path MTU now, in bytes.
    pub active_mtu: u32,
    /// MTU of the network device in bytes.
    pub phys_mtu: u32,
    /// Number of entries of the GID table.
    pub gid_tbl_len: u32,
    /// Number of entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
    /// Packets refused for their P_Key.
    pub bad_pkey_cntr: u32,
    /// Packets refused for their Q_Key.
    pub qkey_viol_cntr: u32,
    /// Speed of the network device in Mbit/s; 0 if it is unknown.
    pub speed: u32,
}

impl PortAttr {
    pub(crate) fn store(&self, to: &mut bindings::ib_port_attr) {
        if self.up {
            to.state = bindings::ib_port_state_IB_PORT_ACTIVE;
            to.phys_state = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP as u8;
        } else {
            to.state = bindings::ib_port_state_IB_PORT_DOWN;
            to.phys_state = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED as u8;
        }
        to.max_mtu = mtu_to_raw(self.max_mtu);
        to.active_mtu = mtu_to_raw(self.active_mtu);
        to.phys_mtu = self.phys_mtu;
        to.gid_tbl_len = c_int::try_from(self.gid_tbl_len).unwrap_or(c_int::MAX);
        to.port_cap_flags = bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP;
        // All GIDs of RoCE v2 are IP addresses.
        to.set_ip_gids(1);
        to.max_msg_sz = self.max_msg_sz;
        to.bad_pkey_cntr = self.bad_pkey_cntr;
        to.qkey_viol_cntr = self.qkey_viol_cntr;
        to.pkey_tbl_len = self.pkey_tbl_len;
        to.max_vl_num = 1;
        let (width, speed) = match self.speed {
            400_000.. => (
                bindings::ib_port_width_IB_WIDTH_4X,
                bindings::ib_port_speed_IB_SPEED_NDR,
            ),
            200_000.. => (
                bindings::ib_port_width_IB_WIDTH_4X,
                bindings::ib_port_speed_IB_SPEED_HDR,
            ),
            100_000.. => (
                bindings::ib_port_width_IB_WIDTH_4X,
                bindings::ib_port_speed_IB_SPEED_EDR,
            ),
            50_000.. => (
                bindings::ib_port_width_IB_WIDTH_1X,
                bindings::ib_port_speed_IB_SPEED_HDR,
            ),
            40_000.. => (
                bindings::ib_port_width_IB_WIDTH_4X,
                bindings::ib_port_speed_IB_SPEED_FDR10,
            ),
            25_000.. => (
                bindings::ib_port_width_IB_WIDTH_1X,
                bindings::ib_port_speed_IB_SPEED_EDR,
            ),
            10_000.. => (
                bindings::ib_port_width_IB_WIDTH_1X,
                bindings::ib_port_speed_IB_SPEED_FDR10,
            ),
            5_000.. => (
                bindings::ib_port_width_IB_WIDTH_1X,
                bindings::ib_port_speed_IB_SPEED_DDR,
            ),
            _ => (
                bindings::ib_port_width_IB_WIDTH_1X,
                bindings::ib_port_speed_IB_SPEED_SDR,
            ),
        };
        to.active_width = width as u8;
        to.active_speed = speed as u16;
    }
}

/// The largest `enum ib_mtu` not above `bytes`.
pub(super) fn mtu_to_raw(bytes: u32) -> bindings::ib_mtu {
    match bytes {
        4096.. => bindings::ib_mtu_IB_MTU_4096,
        2048.. => bindings::ib_mtu_IB_MTU_2048,
        1024.. => bindings::ib_mtu_IB_MTU_1024,
        512.. => bindings::ib_mtu_IB_MTU_512,
        _ => bindings::ib_mtu_IB_MTU_256,
    }
}
