// SPDX-License-Identifier: GPL-2.0
//! Enumerations whose values are counters, each with a line for its name.

/// Defines an enumeration of counters: `Value = "name"`, where the name is what `hw_counters` and
/// `rdma statistic` show. Everything that counts, shows or documents them follows from that line,
/// or a test fails until it does (`CONTRIBUTING.md`, "Counters").
macro_rules! counters {
    (
        $(#[$outer:meta])*
        pub enum $Type:ident {
            $( $(#[$meta:meta])* $name:ident = $text:literal, )*
        }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum $Type {
            $( $(#[$meta])* $name, )*
        }

        impl $Type {
            /// All of them, in index order.
            pub const ALL: [Self; Self::COUNT] = [$( Self::$name, )*];

            /// Number of counters.
            pub const COUNT: usize = [$( $text, )*].len();

            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$name => $text, )*
                }
            }

            /// Position in an array of counters.
            #[inline]
            #[allow(clippy::as_conversions, reason = "the discriminants of a fieldless enum")]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use crate::drop::DropReason;
    use crate::engine::backend::Count;
    use std::collections::BTreeSet;

    #[test]
    fn values_index_their_own_counters() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason.index(), index);
        }
        for (index, count) in Count::ALL.into_iter().enumerate() {
            assert_eq!(count.index(), index);
        }
    }

    #[test]
    fn names_differ() {
        let drops = DropReason::ALL.into_iter().map(DropReason::name);
        let names: BTreeSet<_> = drops
            .chain(Count::ALL.into_iter().map(Count::name))
            .collect();
        assert_eq!(names.len(), DropReason::COUNT + Count::COUNT);
    }

    /// Users add up the drops by the prefix of their names, as `ktests/vm/lib/counters.py` does.
    /// What peers request is counted under the names that other drivers use and programs know.
    #[test]
    fn names_tell_drops_from_events() {
        let is_drop = |name: &str| name.starts_with("rx_") && !name.ends_with("_requests");
        for name in DropReason::ALL.map(DropReason::name) {
            assert!(is_drop(name), "a drop reason begins with rx_: {name}");
        }
        for name in Count::ALL.map(Count::name) {
            assert!(!is_drop(name), "rx_ is for drop reasons: {name}");
        }
    }
}
