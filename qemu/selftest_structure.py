#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of structure.py, and that it finds nothing wrong in this tree."""
import re
import unittest

import structure


class Imports(unittest.TestCase):
    FILES = {"limits": "", "device": "", "device/port": "", "qp": "", "qp/tx": "", "rxe_rs": ""}

    def test_trees_of_use_declarations(self):
        text = "use crate::{\n    device::{\n        port::Port, // a comment, with a comma\n        DeviceCtx, //\n    },\n    qp::tx::KernelCrc as Crc,\n};\n"
        self.assertEqual(sorted(structure.imports(text, self.FILES)), ["device", "device/port", "qp/tx"])

    def test_imports_of_other_crates(self):
        self.assertEqual(list(structure.imports("use kernel::qp::X;\n// use crate::qp::X;\n", self.FILES)), [])

    def test_paths_outside_of_use_declarations(self):
        text = "fn f() {\n    // crate::limits::A\n    crate::qp::tx::f(crate::rxe_rs::MAX);\n}\n"
        self.assertEqual(list(structure.imports(text, self.FILES)), ["qp/tx", "rxe_rs"])

    def test_items_of_the_root_file(self):
        files = {**self.FILES, "rxe_rs": "mod limits;\nfn uses_ecn() {}\n"}
        self.assertEqual(list(structure.imports("use crate::new_rearmable;\nlet a = crate::uses_ecn();\n", files)), ["rxe_rs"])

    def test_upwards(self):
        files = {**self.FILES, "limits": "use crate::qp::tx::A;\n"}
        self.assertIn("rxe_rs/limits.rs imports qp/tx, which is not below it", list(structure.wrong_layers("rxe_rs", files)))

    def test_downwards(self):
        files = {**self.FILES, "qp/tx": "use crate::{limits::A, device::B, qp::C};\n"}
        self.assertFalse([line for line in structure.wrong_layers("rxe_rs", files) if line.startswith("rxe_rs/")])

    def test_own_floor(self):
        files = {"wire": "", "table": "use crate::wire::A;\n", "table/rows": "use crate::table::A;\n"}
        self.assertEqual(list(structure.wrong_layers("rxe_proto", files)), ["rxe_rs/proto/table.rs imports wire, which is not below it"])
        files = {"qp": "use crate::pager;\n", "pager": ""}
        self.assertFalse([line for line in structure.wrong_layers("rxe_rs", files) if line.startswith("rxe_rs/")])

    def test_cycles(self):
        for crate, low, high in (("rxe_proto", "check", "engine"), ("rxe_kapi", "mem", "rdma"), ("rxe_kapi", "net", "rdma"),
                                 ("rxe_kapi", "sync", "mem")):
            files = {low: f"use crate::{high}::A;\n", high: f"use crate::{low}::B;\n"}
            self.assertEqual(len(list(structure.wrong_layers(crate, files))), 1)

    def test_reasons_for_nothing(self):
        self.assertTrue(any("any more" in line for line in structure.wrong_layers("rxe_rs", self.FILES)))

    def test_floors(self):
        self.assertEqual(structure.floor_of("rxe_rs", "device/netdev_events")[1], "device/netdev_events")
        self.assertEqual(structure.floor_of("rxe_rs", "qp/tx")[1], "qp")
        with self.assertRaises(ValueError):
            structure.floor_of("rxe_kapi", "qp")


class Circle(unittest.TestCase):
    def test_found(self):
        files = {"device": "use crate::qp::A;\n", "qp": "", "qp/tx": "use crate::mr::B;\n", "mr": "use crate::device::C;\n", "limits": "",
                 "rx": "use crate::{qp::A, limits::D};\n"}
        self.assertEqual(structure.circle(files), {"device", "qp", "mr"})

    def test_none(self):
        self.assertEqual(structure.circle({"qp": "use crate::{mr::A, qp::B};\n", "mr": ""}), set())

    def test_growth(self):
        files = {**structure.files_of("rxe_rs"), "limits": "use crate::qp::A;\n"}
        self.assertIn("limits has become part of the circle", "\n".join(structure.wrong_circle(files)))

    def test_shrinkage(self):
        self.assertIn("qemu/structure.py: qp is no longer part of CIRCLE", list(structure.wrong_circle({"qp": ""})))


class Words(unittest.TestCase):
    def test_found(self):
        found = list(structure.retired_words({"a.rs": "fn f() {}\nstruct SqSlot;\n"}))
        self.assertEqual(found, ["a.rs:2: SqSlot is called SendWqe"])

    def found(self, text, name="rxe_rs/a.rs"):
        return [line.split(": ", 1)[1] for line in structure.retired_words({name: text})]

    def test_parts_of_names(self):
        for text in ("drv_sq_slot_count", "sq_slot", "SqSlots", "RxTrain", "TrainQueue", "TRAIN Train"):
            self.assertEqual(len(self.found(text)), 1, text)

    def test_parts_of_words(self):
        for text in ("Training", "input_offer", "xsq_slot", "sq_slotted"):
            self.assertEqual(self.found(text), [], text)

    def test_phrases_over_lines(self):
        for text in ("regions on demand", "all regions\non demand", "/// regions on\n    /// demand", " * regions\n *\ton demand"):
            self.assertEqual(self.found(text), ["regions on demand is called regions with on-demand paging"], text)
        self.assertEqual(list(structure.retired_words({"a": "x\nregions\non demand"})), ["a:2: regions on demand is called regions with on-demand paging"])

    def test_beside_the_replacement(self):
        self.assertEqual(self.found("`sq_slot` is called `send_wqe`"), [])
        self.assertEqual(len(self.found("`sq_slot`\n`send_wqe`")), 1)

    def test_items(self):
        for text in ("struct Gate;", "pub(crate) fn settle(&self) {", "enum Answer {", "pub struct A {\n    pub(crate) turn: u32,\n}", "    lasting: bool,\n"):
            self.assertEqual(len(self.found(text)), 1, text)

    def test_items_elsewhere(self):
        for text in ("Place it here.", "struct Placed;", "fn settled()", "let turn = 1;", "MadResult::Pass", "    Pass,\n", "It is its turn: go on."):
            self.assertEqual(self.found(text), [], text)
        self.assertEqual(self.found("struct Place;", "ktests/models/src/a.rs"), [])


class Callbacks(unittest.TestCase):
    TEXT = 'unsafe extern "C" fn poll_cq(\nunsafe extern "C" fn poll_cq_callback(\n'

    def test_found(self):
        found = list(structure.misnamed_callbacks({"rxe_rs/kapi/rdma/cq.rs": self.TEXT}))
        self.assertEqual(found, ["rxe_rs/kapi/rdma/cq.rs: the name of poll_cq does not end with _callback"])

    def test_elsewhere(self):
        self.assertEqual(list(structure.misnamed_callbacks({"tools/librxe_rs/src/ffi.rs": self.TEXT})), [])


class Series(unittest.TestCase):
    def found(self, text, name):
        return [line.split(": ")[:2] for line in structure.series_elsewhere({structure.SERIES: "", name: text})]

    def test_versions(self):
        for text, word in (("int a;\n#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0)\n", "LINUX_VERSION_CODE"), ("/* a\n b */ x(UTS_RELEASE);", "UTS_RELEASE"),
                           ("\n#include <linux/version.h>", "linux/version.h")):
            with self.subTest(text):
                self.assertIn(["rxe_rs/kapi/a.c:2", word], self.found(text, "rxe_rs/kapi/a.c"))
        self.assertEqual(self.found("a := 1\nifeq ($(PATCHLEVEL),3)\n", "Kbuild"), [["Kbuild:2", "$(PATCHLEVEL)"]])

    def test_conditions_of_c(self):
        for text, word in (("#ifdef hrtimer_setup", "hrtimer_setup"), ("# if defined(CONFIG_A) && \\\n\tdefined(NET_X)", "NET_X"), ("#elif RXE > 1", "RXE")):
            with self.subTest(text):
                self.assertEqual(self.found(f"int a;\n{text}\n#endif\n", "rxe_rs/kapi/a.c"), [["rxe_rs/kapi/a.c:2", word]])
        text = "#ifndef RXE_RS_A_H\n#if IS_ENABLED(CONFIG_IPV6) || \\\n\tdefined(CONFIG_ARM64) /* not X */\n#endif // LINUX_VERSION_CODE\n"
        self.assertEqual(self.found(text, "rxe_rs/kapi/a.h"), [])

    def test_conditions_of_rust(self):
        for text, word in (("#[cfg(linux_7_3)]", "linux_7_3"), ("#[cfg_attr(all(test,\n    kernel_72), ignore)]", "kernel_72"), ("if cfg!(not(series)) {}", "series"),
                           ('#[cfg(CONFIG_RUSTC_VERSION = "1")]', "CONFIG_RUSTC_VERSION"), ('#[cfg(feature = "a", version("1.9"))]', "version"),
                           ("cfg_select! {}", "cfg_select!")):
            with self.subTest(text):
                self.assertIn(["rxe_rs/a.rs:2", word], self.found(f"fn a() {{}}\n{text}\n", "rxe_rs/a.rs"))
        text = '#[cfg(CONFIG_KUNIT = "y")]\n#[cfg_attr(miri, ignore = "slow")]\n#![cfg_attr(not(any(test, feature = "sim", MODULE)), no_std)]\n// cfg(series)\n'
        self.assertEqual(self.found(text, "rxe_rs/a.rs"), [])

    def test_elsewhere(self):
        self.assertEqual(self.found("#if LINUX_VERSION_CODE", "ktests/kverbs/a.c"), [])
        self.assertEqual(list(structure.series_elsewhere({structure.SERIES: "#[cfg(linux_7_3)]"})), [])
        self.assertEqual(list(structure.series_elsewhere({})), [f"qemu/structure.py: there is no {structure.SERIES} any more"])


class ImportLists(unittest.TestCase):
    TEXT = "use crate::{\n    a,\n    b, //\n};\npub(crate) use crate::c::{d, e};\nuse crate::{f::{self}};\n"

    def test_found(self):
        found = list(structure.horizontal_imports({"rxe_rs/kapi/mem.rs": self.TEXT}))
        self.assertEqual(found, ["rxe_rs/kapi/mem.rs:5: write the imports one per line, with // behind the last one of a list"])

    def test_elsewhere(self):
        self.assertEqual(list(structure.horizontal_imports({"rxe_rs/proto/ids.rs": self.TEXT, "tools/librxe_rs/src/lib.rs": self.TEXT})), [])


class RepeatedImports(unittest.TestCase):
    TEXT = """use crate::{
    device::counters::Traffic,
    device::DeviceCtx, //
};
use kernel::prelude::*;
use core::ptr;

fn f() {
    use core::mem;
}
"""

    def test_found(self):
        texts = {"rxe_rs/qp.rs": self.TEXT, "rxe_rs/rx.rs": "use core::mem;\nuse kernel::prelude::*;\nuse core::ptr;\n"}
        self.assertEqual(list(structure.repeated_imports(texts)), ["rxe_rs/qp.rs: write the imports from crate::device as one list",
                                                                   "rxe_rs/rx.rs: write the imports from core as one list"])

    def test_elsewhere(self):
        self.assertEqual(list(structure.repeated_imports({"rxe_rs/proto/ids.rs": self.TEXT})), [])


class Modules(unittest.TestCase):
    def test_found(self):
        found = list(structure.misplaced_modules(["rxe_rs/kapi/net/mod.rs", "rxe_rs/kapi/net.rs", "rxe_rs/proto/tests/wire/mod.rs"]))
        self.assertEqual(found, ["rxe_rs/kapi/net/mod.rs must be rxe_rs/kapi/net.rs"])


class Helpers(unittest.TestCase):
    NAME = "rxe_rs/kapi/helpers/net.c"

    def test_wrappers(self):
        text = "/*\n * Why, if you ask?\n */\nbool f(int a)\n{\n\tint flags; /* for it */\n\n\tlock(flags);\n\treturn is_up(a) && ready(a);\n}\n"
        self.assertEqual(list(structure.helpers_with_logic({self.NAME: text})), [])

    def test_logic(self):
        for line in ("if (a)", "} while (a);", "return a ? b : c;", "static int calls;", "switch (kind) {", "for (;;)"):
            found = list(structure.helpers_with_logic({self.NAME: f"/*\n *\n */\n\t{line}\n"}))
            self.assertEqual(found, [f"{self.NAME}:4: a wrapper has logic: {line}"])
            self.assertEqual(list(structure.helpers_with_logic({"rxe_rs/kapi/work.c": line})), [])


class SystemQueues(unittest.TestCase):
    def setUp(self):
        self.texts = dict(structure.tracked())

    def found(self, text, name="rxe_rs/mr/odp.rs"):
        return list(structure.system_queues({**self.texts, name: text}))

    def test_found(self):
        self.assertEqual(self.found("use a;\nworkqueue::system().enqueue(work);\n"),
                         ["rxe_rs/mr/odp.rs:2: workqueue::system: use a work queue of the module"])
        for line in ("workqueue::system_unbound().enqueue(work);", "system_dfl().enqueue(work);", "system().enqueue(work);",
                     "bindings::system_unbound_wq", "bindings::system_wq,"):
            self.assertEqual(len(self.found(line)), 1, line)
        for line in ("schedule_work(&work);", "schedule_delayed_work_on(cpu, &work, 5);", "queue_work_on(cpu, system_bh_wq, work);"):
            self.assertEqual(len(self.found(line, "rxe_rs/kapi/odp.c")), 1, line)

    def test_elsewhere(self):
        for line in ("// the system_wq", "self.system_image(),", "system_id()", "queues.local.enqueue(work);", "/*\n * schedule_work() */"):
            self.assertEqual(self.found(line), [], line)
        self.assertEqual(self.found("schedule_work(&work);", "ktests/kverbs/main.c"), [])

    def test_other_functions(self):
        """A work queue of the module that is one of the kernel's."""
        name = "rxe_rs/kapi/work.c"
        for kind in ("WQ_BH | WQ_PERCPU, 0", "WQ_PERCPU, max_active", "WQ_UNBOUND, max_active"):
            old = f'alloc_workqueue("%s", {kind}, name)'
            self.assertIn(old, self.texts[name])
            found = self.found(self.texts[name].replace(old, "system_unbound_wq"), name)
            self.assertRegex("\n".join(found), r"^rxe_rs/kapi/work\.c:\d+: system_unbound_wq: use a work queue of the module$")

    def test_permissions_for_nothing(self):
        self.assertEqual(self.found("/* schedule_work() */\n", "rxe_rs/kapi/free.c"),
                         ["qemu/structure.py: rxe_rs_free of rxe_rs/kapi/free.c uses no work queue of the kernel any more"])


class OfTheTree(unittest.TestCase):
    """Tests of one check with the files of this tree, a part of which is changed."""

    def setUp(self):
        self.texts = dict(structure.tracked())

    def found(self, name, old, new):
        """What is wrong if a part of a file is changed."""
        self.assertIn(old, self.texts[name])
        return list(self.check({**self.texts, name: self.texts[name].replace(old, new)}))


class GracePeriods(OfTheTree):
    check = staticmethod(structure.grace_periods)

    def test_verbs(self):
        """Of regions, windows, completion queues, multicast groups and segments."""
        for name, wait in (("rxe_rs/kapi/sync/replaceable.rs", "unsafe { bindings::synchronize_rcu() };"),
                           ("rxe_rs/mr/window.rs", "rxe_kapi::sync::rcu_barrier();"),
                           ("rxe_rs/kapi/rdma/cq.rs", "unsafe { bindings::synchronize_rcu_expedited() };"),
                           ("rxe_rs/rx/multicast.rs", "self.table.remove_if_sync(|_| true);"),
                           ("rxe_rs/kapi/segments.c", "synchronize_net();")):
            text = self.texts[name]
            found = self.found(name, text, f"{text}{wait}\n")
            self.assertEqual(len(found), 1, name)
            self.assertRegex(found[0], rf"^{name}:{text.count(chr(10)) + 1}: \S+\(: a process may cause this in a loop")

    def test_without(self):
        self.assertEqual(self.found("rxe_rs/kapi/sync/exit.rs", "synchronize_rcu", "rcu_read_lock"),
                         ["qemu/structure.py: wait of rxe_rs/kapi/sync/exit.rs waits for no grace period any more"])


class UnfairReaders(OfTheTree):
    check = staticmethod(structure.unfair_readers)

    def test_reader(self):
        found = self.found("rxe_rs/kapi/odp.c", "write_lock_bh(&chunk->lock);\n\tmmu", "read_lock_bh(&chunk->lock);\n\tmmu")
        self.assertRegex("\n".join(found), r"^rxe_rs/kapi/odp\.c:\d+: read_lock_bh\(: with bottom halves disabled it passes a writer")
        self.assertEqual(self.found("rxe_rs/kapi/odp.c", "mmap_read_lock(mm)", "rcu_read_lock()"), [])

    def test_without(self):
        self.assertEqual(self.found("rxe_rs/kapi/odp.c", "\t\tread_lock(", "\t\twrite_lock("),
                         ["qemu/structure.py: rxe_rs_odp_chunk_lock of rxe_rs/kapi/odp.c does not call it any more"])


class Locks(OfTheTree):
    check = staticmethod(structure.locks)

    def test_in_a_whole_file(self):
        found = self.found("rxe_rs/rx/ingress.rs", "        let mut any = None;\n", "        let mut any = self.any.lock();\n")
        self.assertRegex("\n".join(found), r"^rxe_rs/rx/ingress\.rs:\d+: \.lock\(: this code must take no lock$")
        self.assertEqual(len(self.found("rxe_rs/rx/ingress.rs", "    table: RcuTable<T>,", "    table: SpinLockBh<RcuTable<T>>,")), 1)

    def test_in_functions(self):
        line = "        let mut next = first_index(gid);\n"
        self.assertEqual(len(self.found("rxe_rs/device/gids.rs", line, line + "        let _all = self.all.try_lock();\n")), 1)
        line = "        self.each_entry(group, rcu, |_, member| {\n"
        self.assertEqual(len(self.found("rxe_rs/rx/multicast.rs", line, "        let _joined = self.joined.lock();\n" + line)), 1)
        line = "\tentry = xa_find(xa, &at, U32_MAX, XA_PRESENT);\n"
        self.assertEqual(len(self.found("rxe_rs/kapi/rcu_table.c", line, "\txa_lock_bh(xa);\n" + line)), 1)

    def test_in_other_functions(self):
        self.assertIn("self.joined.lock()", self.texts["rxe_rs/rx/multicast.rs"])
        self.assertIn("xa_lock_irqsave(", self.texts["rxe_rs/kapi/rcu_table.c"])
        self.assertEqual(list(structure.locks(self.texts)), [])

    def test_missing(self):
        self.assertEqual(self.found("rxe_rs/device/gids.rs", "fn contains(", "fn has("),
                         ["qemu/structure.py: rxe_rs/device/gids.rs has no contains any more"])
        del self.texts["rxe_rs/rx/ingress.rs"]
        self.assertEqual(list(structure.locks(self.texts)), ["qemu/structure.py: rxe_rs/rx/ingress.rs has no code any more"])


class Reserves(unittest.TestCase):
    NAME = "rxe_rs/qp/paging.rs"

    def test_found(self):
        for flags in ("GFP_ATOMIC", "GFP_NOWAIT | __GFP_HIGH", "gfp_atomic_account()"):
            self.assertEqual(len(list(structure.reserves({self.NAME: f"const FLAGS: Flags = {flags};\n"}))), 1, flags)

    def test_others(self):
        self.assertEqual(list(structure.reserves({self.NAME: "// not GFP_ATOMIC\nconst FLAGS: Flags = GFP_NOWAIT;\n"})), [])

    def test_missing(self):
        self.assertEqual(list(structure.reserves({})), [f"qemu/structure.py: there is no {self.NAME} any more"])


class Tree(unittest.TestCase):
    def test_helpers(self):
        texts = dict(structure.tracked())
        self.assertTrue(any(name.startswith("rxe_rs/kapi/helpers/") for name in texts))
        self.assertEqual(list(structure.helpers_with_logic(texts)), [])

    def test_imports(self):
        self.assertEqual(list(structure.horizontal_imports(dict(structure.tracked()))), [])

    def test_system_queues(self):
        self.assertEqual(list(structure.system_queues(dict(structure.tracked()))), [])

    def test_unfair_readers(self):
        self.assertEqual(list(structure.unfair_readers(dict(structure.tracked()))), [])

    def test_grace_periods(self):
        self.assertEqual(list(structure.grace_periods(dict(structure.tracked()))), [])

    def test_numbers_cannot_be_enumerated(self):
        """A completion queue that overflows asks its own queue pairs, not all of them: their table offers no enumeration."""
        texts = dict(structure.tracked())
        functions = re.findall(r"^    pub(?:\(\w+\))? fn (\w+)", texts["rxe_rs/kapi/sync/number_table.rs"], re.M)
        self.assertEqual(set(functions), {"new", "reserve", "number", "publish", "keep", "borrow", "get", "remove"})
        functions = re.findall(r"^\w[\w *]*\b(rxe_rs_\w+)\(", texts["rxe_rs/kapi/numbers.c"], re.M)
        self.assertEqual({name.removeprefix("rxe_rs_numbers_") for name in functions}, {"alloc", "free", "insert", "lookup", "remove"})

    def test_order_at_exit(self):
        """The module ends its work items before it waits for what they have left to RCU, and that before what is freed after it."""
        text = dict(structure.tracked())["rxe_rs/rxe_rs.rs"]
        body = "".join(line for _, line in structure.function_lines(text, "drop"))
        steps = re.findall(r"self\.(\w+)\.take|(\w+\.wait)\(|\b(unregister_all|detach_mappings|rcu_barrier|flush_freed)\b", body)
        self.assertEqual(["".join(step) for step in steps],
                         ["links", "unregister_all", "detach_mappings", "demux", "rcu_barrier", "demux_exit", "demux_exit.wait", "queues",
                          "rcu_barrier", "flush_freed"])

    def test_locks(self):
        self.assertEqual(list(structure.locks(dict(structure.tracked()))), [])

    def test_reserves(self):
        self.assertEqual(list(structure.reserves(dict(structure.tracked()))), [])

    def test_series(self):
        self.assertEqual(list(structure.series_elsewhere(dict(structure.tracked()))), [])

    def test_lists_of_imports(self):
        self.assertEqual(list(structure.repeated_imports(dict(structure.tracked()))), [])

    def test_modules(self):
        self.assertEqual(list(structure.misplaced_modules(dict(structure.tracked()))), [])

    def test_callbacks(self):
        self.assertEqual(list(structure.misnamed_callbacks(dict(structure.tracked()))), [])

    def test_layers(self):
        for crate in structure.FLOORS:
            self.assertEqual(list(structure.wrong_layers(crate, structure.files_of(crate))), [])

    def test_circle(self):
        self.assertEqual(list(structure.wrong_circle(structure.files_of("rxe_rs"))), [])

    def test_words(self):
        texts = dict(structure.tracked())
        self.assertEqual(list(structure.retired_words(texts)), [])
        for name in ("CHANGELOG.md", "Kbuild", "Makefile", "qemu/run", "qemu/lib.sh", "Cargo.toml", "ktests/suites/ucx.suite", ".ci/run"):
            self.assertIn(name, texts)

    def test_every_file_has_a_floor(self):
        for crate in structure.FLOORS:
            for module in structure.files_of(crate):
                structure.floor_of(crate, module)


if __name__ == "__main__":
    unittest.main()
