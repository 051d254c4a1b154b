#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of drawings.py, and that the drawings are up to date."""
import unittest

import drawings

PLACE = "Before.\n<!-- qemu/drawings.py: one -->\nold\n<!-- end of the drawing -->\nAfter.\n"


class Places(unittest.TestCase):
    def test_drawn(self):
        text = drawings.drawn(PLACE, {"one": ["flowchart TB", "    a --> b"]})
        self.assertEqual(text, PLACE.replace("old\n", "```mermaid\nflowchart TB\n    a --> b\n```\n"))
        self.assertEqual(drawings.drawn(text, {"one": ["flowchart TB", "    a --> b"]}), text)

    def test_table(self):
        text = drawings.drawn(PLACE, {"one": ["| a |", "|---|"]})
        self.assertEqual(text, PLACE.replace("old\n", "| a |\n|---|\n"))

    def test_no_place(self):
        for text in ("", PLACE.replace("one", "two"), PLACE + PLACE):
            with self.assertRaises(ValueError):
                drawings.drawn(text, {"one": []})


class Edges(unittest.TestCase):
    def test_transitive_edge(self):
        self.assertEqual(drawings.reduced({("a", "b"), ("b", "c"), ("a", "c")}), [("a", "b"), ("b", "c")])

    def test_two_paths(self):
        edges = {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "d")}
        self.assertEqual(drawings.reduced(edges), sorted(edges - {("a", "d")}))

    def test_cycles_are_kept(self):
        edges = {("a", "b"), ("b", "a"), ("a", "c")}
        self.assertEqual(drawings.reduced(edges), sorted(edges))

    def test_one_of_two_edges_into_a_cycle(self):
        self.assertEqual(len(drawings.reduced({("a", "b"), ("b", "a"), ("a", "c"), ("b", "c")})), 3)

    def test_imports(self):
        files = {"mem/ring": "use crate::sync::Users;\n", "sync": "use crate::{bindings, mem};\n", "net": ""}
        self.assertEqual(drawings.module_imports(files, ["mem", "net", "sync"]), {("mem", "sync"), ("sync", "mem")})

    def test_modules(self):
        root = "mod bindings;\npub mod crc;\n#[cfg(feature = \"sim\")]\npub mod sim;\npub mod layout;\npub mod mem;\n"
        self.assertEqual(drawings.public_modules(root), ["crc", "layout", "mem"])


class Packets(unittest.TestCase):
    def test_helpers_are_left_out(self):
        page = ("## A walk\n| A1 | **`kapi/udp_rx.c: take`** | netfilter by `x`, set in `y` | | | |\n| A2 | `rx.rs: helper` | A1 | | | |\n"
                "| A3 | **`proto/engine/qp.rs: Qp::handle`** | A2 | | | |\n")
        self.assertEqual(list(drawings.packet(page))[-2:], ["    kernel->>rxe_kapi: A1 take", "    rxe_kapi->>rxe_proto: A3 Qp::handle"])


class Tree(unittest.TestCase):
    def test_up_to_date(self):
        text = drawings.PAGE.read_text()
        self.assertEqual(drawings.drawn(text, drawings.current()), text, "run qemu/drawings.py")

    def test_every_floor_and_crate(self):
        text = "\n".join(drawings.layers())
        for names in drawings.structure.FLOORS["rxe_rs"]:
            self.assertIn(f'"{", ".join(names)}"', text)
        for low, high, *_ in drawings.structure.UPWARDS:
            self.assertRegex(text, rf'floor\d -\. "{low} to {high}" \.-> floor\d\n')
        for arrow in ("rxe_rs --> rxe_proto", "rxe_rs --> rxe_kapi", "rxe_kapi --> kernel"):
            self.assertIn(f"    {arrow}\n", text + "\n")
        # The engine imports no other crate, and the abstractions do not import the engine.
        self.assertNotIn("    rxe_proto -->", text)
        self.assertNotIn("rxe_kapi --> rxe_proto", text)


if __name__ == "__main__":
    unittest.main()
