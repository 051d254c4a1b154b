// SPDX-License-Identifier: GPL-2.0
//! Copies between slices.

use zerocopy::IntoBytes;

/// Copies `src` to the start of `dst` and returns what follows it in `dst`; `None` if there is no
/// room for it, and nothing is copied.
///
/// It has no panic for lengths that differ, as `copy_from_slice` has: whether the compiler sees
/// that they are equal depends on its version.
///
/// # Examples
///
/// ```
/// use rxe_proto::wire::bytes::put;
///
/// let mut packet = [0; 4];
/// assert_eq!(put(&mut packet, &[1, 2, 3]), Some(&mut [0][..]));
/// assert_eq!(packet, [1, 2, 3, 0]);
/// assert_eq!(put(&mut packet, &[9; 5]), None);
/// assert_eq!(packet, [1, 2, 3, 0]);
/// ```
#[inline]
pub fn put<'a>(dst: &'a mut [u8], src: &[u8]) -> Option<&'a mut [u8]> {
    let (to, rest) = dst.split_at_mut_checked(src.len())?;
    src.write_to(to).ok()?;
    Some(rest)
}
