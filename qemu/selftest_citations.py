#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of citations.py, and that it finds nothing wrong in this tree."""
import unittest

import citations

RUST = '''//! Head of the file (IBTA 9.2).

/// A type.
#[derive(
    Clone, Copy,
)]
struct Qp<'a> {
    text: &'a str, // { not a brace
}

impl<T: Into<[u8; 4]>> Trait<T> for Qp<'_> {
    /// Looks (IBTA 9.6.1).
    #[inline]
    fn look(&self) -> char {
        let quoted = "}";
        let brace = '}';
        brace
    }

    fn other(&self) {}
}

/// A constant (IBTA A17.9.3).
const LIMIT: [u8; 2] = [1, 2];

impl Qp<'_> where u8: Copy {
    const fn own() {}
}
'''
C = '''/* Head of the file. */
#include <x.h>

static int before;

/*
 * Sends (IBTA 9.7.3).
 */
static int rxe_send(struct sk_buff *skb,
		    int n)
{
	return n;
}

void rxe_other(void)
{
}
'''
LIST = '''# Rules
| section | rule | places | tests |
|---|---|---|---|
| 9.2 | the head | `proto/wire/a.rs` | `some::test` |
| 9.6.1, C9-88, o10-37.2.26 | looking | `proto/wire/a.rs: Qp::look` | `some::test`, `sub.case` |
| 9.7.3 | sending | `b.c: rxe_send` | `sub.case` |
| 9.11 | rate | not implemented: nobody wants it | |
| A17.9.3, CA17-44 | limit | `proto/wire/a.rs: LIMIT` | `some::test` |
'''
SOURCES = {"proto/wire/a.rs": RUST, "b.c": C}


class Items(unittest.TestCase):
    def test_rust(self):
        items = {item.name: (item.first, item.last) for item in citations.rust_items(RUST)}
        self.assertEqual(items["Qp::look"], (12, 18))
        self.assertEqual(items["Qp::other"], (20, 20))
        self.assertEqual(items["LIMIT"], (23, 24))
        self.assertEqual(items["Qp::own"], (27, 27))
        spans = [(item.first, item.last) for item in citations.rust_items(RUST) if item.name == "Qp"]
        self.assertEqual(spans, [(3, 9), (11, 21), (26, 28)])

    def test_types_of_implementations(self):
        for head, name in (("<'a> Packet<'a> ", "Packet"), (" Tx for BatchTx<'_, '_> ", "BatchTx"), (" ops::Drop for super::Guard ", "Guard"),
                           ("<F: Fn(u8) -> u8> Call<F> ", "Call"), (" A where B: C ", "A")):
            with self.subTest(head):
                self.assertEqual(citations.type_of(head), name)

    def test_c(self):
        items = {item.name: (item.first, item.last) for item in citations.c_items(C)}
        self.assertEqual(items, {"rxe_send": (6, 13), "rxe_other": (15, 17)})

    def test_head(self):
        self.assertEqual(citations.head_of(RUST), 1)
        self.assertEqual(citations.head_of(C), 1)

    def test_tests_on_the_host(self):
        text = "#[test]\nfn one() {}\n#[test]\n#[cfg(x)]\n/// Words.\nfn two() {}\nfn helper() {}\n"
        self.assertEqual(citations.host_tests({"proto/tests/wire/some.rs": text}), {"some::one", "some::two", "wire::one", "wire::two"})
        self.assertEqual(citations.host_tests({"proto/tests/some.rs": text}), {"some::one", "some::two"})


class Citations(unittest.TestCase):
    def test_found(self):
        self.assertEqual(citations.citations("/// IBTA 9.7.5.1.2, and IBTA A19.\n\n(IBTA 9.2: x) IBTA 12.3 IBTA 9.100"), [(1, "9.7.5.1.2"), (1, "A19"), (3, "9.2")])

    def test_forms(self):
        for text in ("IBTA vol1 9.2", "the IBTA", "IBTA 12.1", "IBTA 9.100", "IBTA 9.0", "RoCEv2 A17.3.3", "annex A16"):
            with self.subTest(text):
                self.assertEqual(len(list(citations.wrong_forms({"a.rs": f"// {text}\n"}))), 1)
        for text in ("(IBTA 9.2).", "IBTA A17.3.3, IBTA A19: x", "0xA17.3"):
            with self.subTest(text):
                self.assertEqual(list(citations.wrong_forms({"a.rs": f"// {text}\n"})), [])

    def test_order(self):
        self.assertLess(citations.key_of("9.7"), citations.key_of("9.11"))
        self.assertLess(citations.key_of("9.7"), citations.key_of("9.7.1"))
        self.assertLess(citations.key_of("16.1"), citations.key_of("A14"))


class Checks(unittest.TestCase):
    def check(self, text=LIST, sources=None, tests=None):
        return citations.check(text, sources or SOURCES, tests or {}, {"some::test"}, {"sub.case"})

    def assert_found(self, words, **changed):
        found = self.check(**changed)
        self.assertTrue(any(words in line for line in found), found)

    def test_nothing_wrong(self):
        self.assertEqual(self.check(tests={"proto/tests/x.rs": "// IBTA 9.11\n"}), [])

    def test_rows(self):
        for row, words in (("| 9.12 | x |", "a row must have"), ("| 9.12 | | `proto/wire/a.rs` | `some::test` |", "a row must have"), ("| 12.1 | x | `proto/wire/a.rs` | |", "is not a section"),
                           ("| 9.12, 9-88 | x | `proto/wire/a.rs` | |", "is not a section"), ("| 9.12 | x | a.rs | |", "in backticks"), ("| 9.12 | x | | |", "in backticks"),
                           ("| 9.12 | x | `proto/wire/a.rs` `b.c` | |", "in backticks"), ("| 9.12 | x | not implemented | |", "in backticks")):
            with self.subTest(row):
                self.assert_found(words, text=LIST + row + "\n")

    def test_places(self):
        self.assert_found("there is no proto/wire/a.rs: Qp::loook", text=LIST.replace("Qp::look", "Qp::loook"))
        self.assert_found("there is no c.rs", text=LIST.replace("`proto/wire/a.rs`", "`c.rs`"))
        self.assert_found("there is no b.c: rxe_sent", text=LIST.replace("rxe_send", "rxe_sent"))

    def test_places_are_items(self):
        self.assert_found("name the item of qp.rs", text=LIST.replace("`proto/wire/a.rs`", "`qp.rs`"), sources={**SOURCES, "qp.rs": RUST})

    def test_places_cite(self):
        self.assert_found("proto/wire/a.rs: Qp::other does not cite IBTA 9.6.1", text=LIST.replace("Qp::look", "Qp::other"))
        self.assert_found("b.c: rxe_send does not cite IBTA 9.7.3", sources={**SOURCES, "b.c": C.replace("9.7.3", "9.7.4")})
        self.assert_found("proto/wire/a.rs does not cite IBTA 9.2", sources={**SOURCES, "proto/wire/a.rs": RUST.replace(" (IBTA 9.2)", "")})

    def test_citations_have_rows(self):
        self.assert_found("rxe_rs/proto/wire/a.rs:20: ", sources={**SOURCES, "proto/wire/a.rs": RUST.replace("    fn other", "    // IBTA 9.6.1\n    fn other")})
        self.assert_found("no row for IBTA 9.7.3", text=LIST.replace("| 9.7.3 | sending | `b.c: rxe_send` | `sub.case` |\n", ""))
        self.assert_found("proto/tests/x.rs:1: ", tests={"proto/tests/x.rs": "// IBTA 9.5\n"})

    def test_tests(self):
        self.assert_found("there is no test some::tset", text=LIST.replace("some::test", "some::tset"))
        self.assert_found("there is no test sub.caze", text=LIST.replace("sub.case", "sub.caze"))
        self.assert_found("9.7.3 is implemented, but names no test", text=LIST.replace("rxe_send` | `sub.case`", "rxe_send` | "))

    def test_sorted(self):
        self.assert_found("9.3 belongs above", text=LIST + "| 9.3 | x | not implemented: y | |\n")


class Tree(unittest.TestCase):
    def test_citations(self):
        self.assertEqual(citations.findings(), [])

    def test_readers_find_something(self):
        sources, tests = citations.tree()
        rows, _ = citations.rows_of((citations.CLONE / citations.LIST).read_text())
        self.assertGreater(len(rows), 100)
        self.assertGreater(sum(len(citations.citations(text)) for text in sources.values()), 150)
        self.assertGreater(len(citations.host_tests({**sources, **tests})), 200)


if __name__ == "__main__":
    unittest.main()
