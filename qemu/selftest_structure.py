#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of structure.py, and what it finds in this tree."""
import unittest

import structure


class Imports(unittest.TestCase):
    FILES = {"limits": "", "device": "", "device/port": "", "qp": "", "qp/tx": "", "rxe_rs": ""}

    def test_trees_of_use_declarations(self):
        text = "use crate::{\n    device::{\n        port::Port, // a comment, with a comma\n        DeviceCtx, //\n    },\n    qp::tx::KernelCrc as Crc,\n};\n"
        self.assertEqual(sorted(structure.imports(text, self.FILES)), ["device", "device/port", "qp/tx"])

    def test_what_is_not_of_the_driver(self):
        self.assertEqual(list(structure.imports("use kernel::qp::X;\n// use crate::qp::X;\n", self.FILES)), [])

    def test_upwards(self):
        files = {**self.FILES, "limits": "use crate::qp::tx::A;\n"}
        self.assertIn("rxe_rs/limits.rs imports qp/tx, which is above it", list(structure.wrong_layers(files)))

    def test_downwards(self):
        files = {**self.FILES, "qp/tx": "use crate::{limits::A, device::B, qp::C};\n"}
        self.assertFalse([line for line in structure.wrong_layers(files) if line.startswith("rxe_rs/")])

    def test_reasons_for_nothing(self):
        self.assertTrue(any("any more" in line for line in structure.wrong_layers(self.FILES)))

    def test_floors(self):
        self.assertEqual(structure.floor_of("device/netdev_events")[1], "device/netdev_events")
        self.assertEqual(structure.floor_of("qp/tx")[1], "qp")


class Words(unittest.TestCase):
    def test_found(self):
        found = list(structure.retired_words({"a.rs": "fn f() {}\nstruct SqSlot;\n"}))
        self.assertEqual(found, ["a.rs:2: SqSlot is called SendWqe"])

    def test_parts_of_words(self):
        self.assertEqual(list(structure.retired_words({"a.rs": "SqSlots xKeyOp"})), [])


class Callbacks(unittest.TestCase):
    TEXT = 'unsafe extern "C" fn poll_cq(\nunsafe extern "C" fn poll_cq_callback(\n'

    def test_found(self):
        found = list(structure.misnamed_callbacks({"rxe_rs/kapi/rdma/cq.rs": self.TEXT}))
        self.assertEqual(found, ["rxe_rs/kapi/rdma/cq.rs: the name of poll_cq does not end with _callback"])

    def test_elsewhere(self):
        self.assertEqual(list(structure.misnamed_callbacks({"tools/librxe_rs/src/ffi.rs": self.TEXT})), [])


class Tree(unittest.TestCase):
    def test_callbacks(self):
        self.assertEqual(list(structure.misnamed_callbacks(dict(structure.tracked()))), [])

    def test_layers(self):
        self.assertEqual(list(structure.wrong_layers(structure.driver_files())), [])

    def test_words(self):
        self.assertEqual(list(structure.retired_words(dict(structure.tracked()))), [])

    def test_every_file_has_a_floor(self):
        for module in structure.driver_files():
            structure.floor_of(module)


if __name__ == "__main__":
    unittest.main()
