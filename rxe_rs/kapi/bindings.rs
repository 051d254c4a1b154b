// SPDX-License-Identifier: GPL-2.0
//! Raw bindings of the RDMA and network headers.
//!
//! Nothing outside this crate sees these types; the modules of the crate wrap them.
//! All types the kernel crate already binds are its own, so no type exists twice.
#![allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::cast_lossless,
    clippy::as_underscore
)]

pub(crate) use kernel::bindings::*;
use kernel::ffi;
use pin_init::{
    MaybeZeroable,
    Zeroable, //
};

// SAFETY: A newtype around `Storage`, which may be all zeroes.
unsafe impl<Storage: Zeroable> Zeroable for __BindgenBitfieldUnit<Storage> {}

// SAFETY: A zero-sized marker.
unsafe impl<T> Zeroable for __BindgenUnionField<T> {}

include!(concat!(env!("RXE_KAPI_OUT"), "/bindings_generated.rs"));
