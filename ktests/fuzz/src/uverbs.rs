// SPDX-License-Identifier: GPL-2.0
//! Numbers of the user interface: the commands of `ib_user_verbs.h`, and the methods of
//! `ib_user_ioctl_cmds.h` and `uapi/rxe_rs.h`. Attributes of methods are written as their numbers
//! in these headers.

/// Commands (`enum ib_uverbs_write_cmds`).
pub mod command {
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const CREATE_AH: u32 = 5;
    pub const DESTROY_AH: u32 = 8;
    pub const REG_MR: u32 = 9;
    pub const REREG_MR: u32 = 11;
    pub const DEREG_MR: u32 = 13;
    pub const ALLOC_MW: u32 = 14;
    pub const DEALLOC_MW: u32 = 16;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const RESIZE_CQ: u32 = 19;
    pub const DESTROY_CQ: u32 = 20;
    pub const REQ_NOTIFY_CQ: u32 = 23;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const POST_SEND: u32 = 28;
    pub const POST_RECV: u32 = 29;
    pub const ATTACH_MCAST: u32 = 30;
    pub const DETACH_MCAST: u32 = 31;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const DESTROY_SRQ: u32 = 35;
    pub const POST_SRQ_RECV: u32 = 36;
    /// Extended commands only.
    pub const CREATE_FLOW: u32 = 50;
    pub const MODIFY_CQ: u32 = 57;
}

/// Methods of the uverbs ioctl: the type of the object, and the number of the method.
pub mod method {
    pub const INVOKE_WRITE: (u16, u16) = (0, 0);
    pub const INFO_HANDLES: (u16, u16) = (0, 1);
    pub const QUERY_PORT: (u16, u16) = (0, 2);
    pub const GET_CONTEXT: (u16, u16) = (0, 3);
    pub const QUERY_CONTEXT: (u16, u16) = (0, 4);
    pub const QUERY_GID_TABLE: (u16, u16) = (0, 5);
    pub const QUERY_GID_ENTRY: (u16, u16) = (0, 6);
    pub const QUERY_PORT_SPEED: (u16, u16) = (0, 7);
    pub const PD_DESTROY: (u16, u16) = (1, 0);
    pub const CQ_CREATE: (u16, u16) = (3, 0);
    pub const CQ_DESTROY: (u16, u16) = (3, 1);
    pub const QP_CREATE: (u16, u16) = (4, 0);
    pub const QP_DESTROY: (u16, u16) = (4, 1);
    pub const SRQ_CREATE: (u16, u16) = (5, 0);
    pub const SRQ_DESTROY: (u16, u16) = (5, 1);
    pub const AH_DESTROY: (u16, u16) = (6, 0);
    pub const DM_MR_REG: (u16, u16) = (7, 0);
    pub const MR_DESTROY: (u16, u16) = (7, 1);
    pub const ADVISE_MR: (u16, u16) = (7, 2);
    pub const QUERY_MR: (u16, u16) = (7, 3);
    pub const REG_DMABUF_MR: (u16, u16) = (7, 4);
    pub const REG_MR: (u16, u16) = (7, 5);
    pub const MR_ADD: (u16, u16) = (7, 0x1000);
    pub const MR_REMOVE: (u16, u16) = (7, 0x1001);
    pub const MR_TIE: (u16, u16) = (7, 0x1002);
    pub const MW_DESTROY: (u16, u16) = (8, 0);
    pub const DM_ALLOC: (u16, u16) = (14, 0);
    pub const COUNTERS_CREATE: (u16, u16) = (15, 0);
    pub const ASYNC_EVENT_ALLOC: (u16, u16) = (16, 0);
    pub const DMAH_ALLOC: (u16, u16) = (17, 0);
    pub const DMABUF_ALLOC: (u16, u16) = (18, 0);
}

/// Attributes with the driver's parts of a request and of a response (`UVERBS_ATTR_UHW_IN`,
/// `UVERBS_ATTR_UHW_OUT`).
pub const UHW_IN: u16 = 0x1000;
pub const UHW_OUT: u16 = 0x1001;

/// Attributes of the driver's methods (`uapi/rxe_rs.h`).
pub mod rxe_rs_attr {
    pub const MR: u16 = 0x1000;
    pub const REQUEST: u16 = 0x1001;
    pub const STATE: u16 = 0x1002;
    pub const QP: u16 = 0x1003;
}
