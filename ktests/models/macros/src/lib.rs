// SPDX-License-Identifier: GPL-2.0
//! `pin_data` and `pinned_drop` of the kernel crate. Values that are pinned in the kernel may move
//! on the host: structures that need a fixed address are in boxes there.

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Removes the attribute `#[pin]` of fields.
#[proc_macro_attribute]
pub fn pin_data(_: TokenStream, item: TokenStream) -> TokenStream {
    without_pin(item)
}

fn without_pin(tokens: TokenStream) -> TokenStream {
    let mut kept = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group)
                if group.delimiter() == Delimiter::Bracket
                    && group.stream().to_string() == "pin" =>
            {
                // The `#` before it.
                kept.pop();
            }
            TokenTree::Group(group) => {
                let inner = Group::new(group.delimiter(), without_pin(group.stream()));
                kept.push(inner.into());
            }
            other => kept.push(other),
        }
    }
    kept.into_iter().collect()
}

/// Makes `impl PinnedDrop` an `impl Drop`.
#[proc_macro_attribute]
pub fn pinned_drop(_: TokenStream, item: TokenStream) -> TokenStream {
    item.to_string()
        .replacen("PinnedDrop", "Drop", 1)
        .replacen("self: Pin<&mut Self>", "&mut self", 1)
        .parse()
        .expect("an implementation of PinnedDrop")
}
