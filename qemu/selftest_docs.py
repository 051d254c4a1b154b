#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of docs.py, and that it finds nothing missing in this tree."""
import unittest

import docs

BOTH = ("Context", "Errors")
ABOUT = "    /// Does it.\n"
CONTEXT = "    ///\n    /// # Context\n    ///\n    /// Process context; may sleep.\n"
ERRORS = "    ///\n    /// # Errors\n    ///\n    /// `ENOMEM`.\n"


def found(text, wanted=BOTH, visible=docs.PUBLIC):
    return list(docs.missing("a.rs", text, wanted, visible))


def method(*doc, head="pub fn f(&self) -> Result<u32> {", around="impl Thing {"):
    return around + "\n" + "".join(doc) + f"    {head}\n        Ok(1)\n    }}\n}}\n"


class Functions(unittest.TestCase):
    def test_nothing_missing(self):
        self.assertEqual(found(method(ABOUT, CONTEXT, ERRORS)), [])

    def test_no_context(self):
        self.assertEqual(found(method(ABOUT, ERRORS)), ["a.rs:7: f has no `# Context`, nor has its trait, impl block, type or module"])

    def test_no_errors(self):
        self.assertEqual(found(method(ABOUT, CONTEXT)), ["a.rs:7: f returns a Result and has no `# Errors`"])

    def test_empty_sections(self):
        empty = "    ///\n    /// # Errors\n"
        self.assertIn("has no `# Errors`", found(method(ABOUT, CONTEXT, empty))[0])
        empty = "    ///\n    /// # Context\n"
        self.assertIn("does not begin with a context", found(method(ABOUT, empty, ERRORS))[0])

    def test_unknown_context(self):
        self.assertIn("'Wherever you like.'", found(method(ABOUT, CONTEXT.replace("Process context; may sleep.", "Wherever you like."), ERRORS))[0])

    def test_no_documentation(self):
        self.assertEqual(len(found(method())), 2)

    def test_attributes_and_comments_between(self):
        between = "    #[inline]\n    #[allow(\n        clippy::all\n    )] // Why.\n    // Another word.\n"
        self.assertEqual(found(method(ABOUT, CONTEXT, ERRORS, between)), [])

    def test_documentation_of_something_before(self):
        text = f"impl Thing {{\n{ABOUT}{CONTEXT}{ERRORS}    const A: u32 = 1;\n    pub fn f() -> Result {{}}\n}}\n"
        self.assertEqual(len(found(text)), 2)

    def test_results_over_several_lines(self):
        head = "pub fn f(\n        &self,\n        f: impl Fn(u8) -> bool,\n    ) -> Result<(), Fault> {"
        self.assertEqual(len(found(method(ABOUT, CONTEXT, head=head))), 1)

    def test_other_returns(self):
        for of in ("Option<u32>", "impl PinInit<Self, Error>", "ResultOf"):
            self.assertEqual(found(method(ABOUT, CONTEXT, head=f"pub fn f() -> {of} {{")), [], of)
        self.assertEqual(found(method(ABOUT, CONTEXT, head="pub fn f(with: impl Fn() -> u8) {")), [])

    def test_kinds_of_functions(self):
        for head in ("pub const fn f() {", "pub unsafe fn f() {", 'pub unsafe extern "C" fn f() {'):
            self.assertEqual(len(found(method(head=head))), 1, head)

    def test_functions_that_are_not_public(self):
        for head in ("fn f() -> Result {", "pub(crate) fn f() -> Result {", "pub(super) fn f() -> Result {"):
            self.assertEqual(found(method(head=head)), [], head)
        self.assertEqual(found("mod tests {\n    pub fn f() -> Result {}\n}\n"), [])
        self.assertEqual(found("macro_rules! made {\n    () => {\n        pub fn f() {}\n    };\n}\n"), [])

    def test_functions_of_a_crate_without_public_ones(self):
        for head in ("pub fn f() -> Result {", "pub(crate) fn f() -> Result {", "pub(super) fn f() -> Result {"):
            self.assertEqual(len(found(method(head=head), ("Errors",), docs.SHARED)), 1, head)
        self.assertEqual(found(method(head="fn f() -> Result {"), ("Errors",), docs.SHARED), [])
        self.assertEqual(len(found(method(around="pub(crate) trait Thing {", head="fn f() -> Result {"), ("Errors",), docs.SHARED)), 1)

    def test_free_functions(self):
        self.assertEqual(len(found("/// Does it.\npub fn f() -> Result {\n}\n")), 2)


class Inherited(unittest.TestCase):
    SECTION = "/// # Context\n///\n/// Any context.\n"

    def test_from_the_type(self):
        for header in ("impl Thing {", "impl<'a, T: Fn() -> u8> Thing<'a, T> {", "impl<T> module::Thing<T>\nwhere\n    T: Send,\n{"):
            text = f"/// A thing.\n///\n{self.SECTION}pub struct Thing;\n\n" + method(ABOUT, ERRORS, around=header)
            self.assertEqual(found(text), [], header)

    def test_not_from_another_type(self):
        text = f"/// A thing.\n///\n{self.SECTION}pub struct Other;\n\n" + method(ABOUT, ERRORS)
        self.assertEqual(len(found(text)), 1)

    def test_from_the_impl_block(self):
        self.assertEqual(found(self.SECTION + method(ABOUT, ERRORS)), [])

    def test_from_the_module(self):
        self.assertEqual(found("//! A module.\n//!\n" + self.SECTION.replace("///", "//!") + method(ABOUT, ERRORS)), [])

    def test_errors_are_not_inherited(self):
        text = "/// # Errors\n///\n/// `ENOMEM`.\n" + method(ABOUT, CONTEXT)
        self.assertEqual(len(found(text)), 1)

    def test_innermost_applies(self):
        text = "//! # Context\n//!\n//! Any context.\n" + method(ABOUT, CONTEXT.replace("Process", "No"), ERRORS)
        self.assertEqual(len(found(text)), 1)

    def test_after_a_block(self):
        text = self.SECTION + method(ABOUT, ERRORS) + "\n" + method(ABOUT, ERRORS, around="impl Other {")
        self.assertEqual(len(found(text)), 1)


class Traits(unittest.TestCase):
    def test_functions_of_a_public_trait(self):
        self.assertEqual(len(found(method(ABOUT, around="pub trait Thing {", head="fn f(&self) -> Result;\n    fn g(&self) {"))), 3)

    def test_functions_of_another_trait(self):
        for around in ("trait Thing {", "pub(crate) trait Thing {"):
            self.assertEqual(found(method(around=around, head="fn f(&self) -> Result {")), [])

    def test_implementations(self):
        for around in ("impl Trait for Thing {", "impl<T> Trait<T> for Thing<T> {", "impl Drop for Thing {"):
            self.assertEqual(found(method(around=around, head="fn f(&self) -> Result {")), [])


class Units(unittest.TestCase):
    def test_bare(self):
        for comment in ("Bytes.", "In bytes.", "Nanoseconds", "Mbit/s; 0.", "KiB."):
            self.assertEqual(list(docs.bare_units("a.rs", f"struct A {{\n    /// {comment}\n    a: u8,\n}}\n")),
                             [f"a.rs:2: the comment is only a unit: {comment}"])

    def test_with_what_is_counted(self):
        for comment in ("Length in bytes.", "Bytes sent.", "Entries of the table.", "Begins here,\n    /// in bytes.", "256 bytes.", "Seconds are long."):
            self.assertEqual(list(docs.bare_units("a.rs", f"struct A {{\n    /// {comment}\n    a: u8,\n}}\n")), [], comment)


class Tree(unittest.TestCase):
    def test_nothing_is_missing(self):
        self.assertEqual(list(docs.all_missing()), [])

    def test_functions_are_found(self):
        for folder, _, visible, without in docs.FOLDERS:
            names = [function.name for _, text in docs.sources(folder, without) for function in docs.functions(text, visible)]
            self.assertGreater(len(names), 150, folder)


if __name__ == "__main__":
    unittest.main()
