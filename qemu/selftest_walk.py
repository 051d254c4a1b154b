#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Tests of walk.py, and that docs/walk.md agrees with the sources."""
import re
import unittest

import walk

FILES = {
    "rx.rs": """
impl Receive for Rx {
    fn receive(skb: RxSkb) {
        // hidden() is not called.
        let batch = RxBatch::new();
        batch.packet(verify);
    }
}

impl<'g> RxBatch<'g> {
    fn new() -> Self {
        Self
    }

    fn packet(
        &mut self,
        f: impl Fn(),
    ) {
        if !self.parse() {
            self.drop(DropReason::NoQp);
        }
    }
}

impl Other {
    fn new() -> Self {
        Self { table: hidden }
    }
}

trait Both {
    fn declared(
        &self,
    ) -> Result;

    fn hidden(&self) {}
}
""",
    "kapi/udp_rx.c": """
#define not_a_function(x) (x)

static unsigned int take(struct sk_buff *skb,
\t\t\t int hlen)
{
\t/* receive() is for others */
\tep->callback(skb);
\tfor_each(x) {
\t}
\treturn 0;
}

static const struct ops table = { .input = take };

void declared(void);
""",
    "kapi/set.c": "int open(void)\n{\n\treturn start(receive);\n}\n",
    "proto/drop.rs": '        /// No QP.\n        NoQp = "rx_no_qp",\n',
    "proto/engine/backend.rs": '        Timeout = "timeout_err",\n',
    "device/counters.rs": 'const NAMES: [&str; 2] = [\n    "sent",\n    "lost",\n];\nSelf::Sent => 0,\nSelf::Lost => 1,\n',
}
SOURCES = walk.Sources(FILES.get, list(FILES))

STEPS = (
    "| A1 | **`kapi/udp_rx.c: take`** | netfilter by `input`, set in `kapi/udp_rx.c` | softirq, RCU | Takes it. | |",
    "| A2 | `rx.rs: Rx::receive` | A1 by `callback`, set in `kapi/set.c: open` | softirq, RCU | | |",
    "| A3 | **`rx.rs: RxBatch::packet`** | A2 | softirq, RCU, QP lock | | `rx_no_qp` |",
)


def page(*changed):
    """A page with STEPS, some of them replaced by `changed` with the same numbers, and the correct counts at its head."""
    rows = {row.split()[1]: row for row in (*STEPS, *changed)}
    text = "## A walk\n\n" + "\n".join(rows.values()) + "\n"
    return "\n".join(walk.counts(text)) + "\n\n" + text


class Pages(unittest.TestCase):
    def wrong(self, *changed):
        return list(walk.wrong(page(*changed), SOURCES, {}))

    def test_nothing_wrong(self):
        self.assertEqual(self.wrong(), [])

    def test_unknown_function(self):
        self.assertIn("step A3: rx.rs must define RxBatch::parcel exactly once", self.wrong(STEPS[2].replace("::packet", "::parcel")))

    def test_function_of_another_type(self):
        self.assertIn("step A3: rx.rs must define Other::packet exactly once", self.wrong(STEPS[2].replace("RxBatch::", "Other::")))

    def test_ambiguous_function(self):
        self.assertIn("step A3: rx.rs must define new exactly once", self.wrong(STEPS[2].replace("RxBatch::packet", "new")))

    def test_unknown_file(self):
        self.assertIn("step A3: tx.rs must define RxBatch::packet exactly once", self.wrong(STEPS[2].replace("rx.rs", "tx.rs")))

    def test_no_function(self):
        with self.assertRaisesRegex(ValueError, "step A3"):
            self.wrong(STEPS[2].replace("rx.rs: ", ""))

    def test_caller_that_does_not_call(self):
        self.assertIn("step A3: kapi/udp_rx.c: take does not call RxBatch::packet", self.wrong(STEPS[2].replace("| A2 |", "| A1 |")))

    def test_comments_are_not_calls(self):
        row = STEPS[2].replace("RxBatch::packet", "Both::hidden").replace("`rx_no_qp`", "")
        self.assertIn("step A3: rx.rs: Rx::receive does not call Both::hidden", self.wrong(row))

    def missing(self, *names):
        """The messages about steps that are missing if `RxBatch::packet` calls a function of `queue.rs`, and `names` are exempt."""
        long, short = "fn long() {\n    one();\n    two();\n}\n", "fn short() {\n    one();\n}\n"
        text = FILES["rx.rs"].replace("if !self.parse()", "if !self.long() || short()")
        files = {**FILES, "rx.rs": text, "queue.rs": long + short}
        sources = walk.Sources(files.get, list(files))
        return [line for line in walk.wrong(page(), sources, {"of a reason": " ".join(names)}) if "NOT_STEPS" in line]

    def test_missing_step(self):
        self.assertEqual(self.missing(), ["step A3: RxBatch::packet calls long, which is no step: add one, or add the name to NOT_STEPS in qemu/walk.py"])

    def test_exempt_step(self):
        self.assertEqual(self.missing("long"), [])

    def test_exempt_without_need(self):
        self.assertEqual(self.missing("long", "gone"), ["qemu/walk.py: NOT_STEPS has gone, which is a step or is not called by a function in bold"])

    def test_caller_that_comes_later(self):
        self.assertIn("step A2: its caller A3 does not come before it", self.wrong(STEPS[1].replace("A1", "A3")))

    def test_caller_of_another_form(self):
        self.assertIn("step A3: the caller 'somebody' has none of the forms that the head of qemu/walk.py describes", self.wrong(STEPS[2].replace("| A2 |", "| somebody |")))

    def test_callers_by_name(self):
        self.assertIn("step A2: kapi/udp_rx.c: take does not call handler", self.wrong(STEPS[1].replace("callback", "handler")))
        self.assertIn("step A2: kapi/udp_rx.c: take does not name Rx::receive", self.wrong(STEPS[1].replace("kapi/set.c: open", "kapi/udp_rx.c: take")))
        self.assertIn("step A2: kapi/set.c must define shut exactly once", self.wrong(STEPS[1].replace("open", "shut")))
        self.assertIn("step A1: no line of kapi/udp_rx.c sets output to take", self.wrong(STEPS[0].replace("`input`", "`output`")))

    def test_contexts(self):
        for context in ("", "hard interrupt", "softirq, something"):
            found = self.wrong(STEPS[2].replace("softirq, RCU, QP lock", context))
            self.assertIn(f"step A3: {context!r} is not a context", found)

    def test_counters(self):
        self.assertIn("step A3: there is no counter rx_no_qps", self.wrong(STEPS[2].replace("rx_no_qp", "rx_no_qps")))
        self.assertIn("step A3: RxBatch::packet does not mention Timeout, which timeout_err counts",
                      self.wrong(STEPS[2].replace("`rx_no_qp`", "`rx_no_qp`, `timeout_err`")))
        self.assertIn("step A3: RxBatch::packet does not mention Lost, which lost counts", self.wrong(STEPS[2].replace("`rx_no_qp`", "`rx_no_qp`, `lost`")))

    def test_drop_that_no_step_names(self):
        self.assertIn("no step has the counter rx_no_qp: name it in the last column of the step whose function decides to drop the packet", self.wrong(STEPS[2].replace("`rx_no_qp`", "")))

    def test_number_twice(self):
        found = list(walk.wrong(page() + STEPS[0] + "\n", SOURCES, {}))
        self.assertIn("step A1: two steps have this number (call the new one A1a, and run qemu/walk.py write)", found)

    def test_counts(self):
        self.assertIn("| A walk | 2 | 1 | 1 | 2 | 1 | 1 |", page())
        found = list(walk.wrong(page().replace("| 2 | 1 | 1 | 2 |", "| 2 | 0 | 1 | 2 |"), SOURCES, {}))
        self.assertEqual(found, ["the page lacks this row (run qemu/walk.py write): | A walk | 2 | 1 | 1 | 2 | 1 | 1 |"])

    def test_counts_of_another_revision(self):
        """`write` changes the first row of a walk, and leaves those of later tables alone."""
        old = "| A walk | 5 | 6 | 7 | 8 | 9 | 10 |"
        head, text = page().split("\n\n", 1)
        draft = "\n\n".join((head.replace("| 2 | 1 | 1 | 2 |", "| 2 | 0 | 1 | 2 |"), old, text))
        self.assertEqual(walk.written(draft), "\n\n".join((head, old, text)))

    def test_numbers(self):
        """An inserted step renumbers those after it, in their own rows and in references to them."""
        first, second, third = STEPS
        added = first.replace("A1", "A1a")
        behind = second.replace("A1 by", "A1a by").replace("RCU | | |", "RCU | As A3. | |")
        draft = page().replace("\n".join(STEPS), "\n".join((first, added, behind, third)))
        self.assertIn("step A1a: run qemu/walk.py write, which renumbers the steps", list(walk.wrong(draft, SOURCES, {})))
        numbers = [(step.number, step.caller.split()[0], step.text) for step in walk.steps(walk.written(draft))["A walk"]]
        self.assertEqual(numbers, [("A1", "netfilter", "Takes it."), ("A2", "netfilter", "Takes it."), ("A3", "A2", "As A4."), ("A4", "A3", "")])
        self.assertEqual(list(walk.wrong(walk.written(draft), SOURCES, {})), [])
        self.assertEqual(walk.written(page()), page())
        with self.assertRaisesRegex(ValueError, "A1a"):
            walk.numbered(page() + first + "\n")

    def test_jumps(self):
        files = ("rx.rs", "rx.rs", "mr.rs", "kapi/mem.rs", "rx.rs")
        rows = [walk.Step([f"A{n}", f"`{file}: f`", "", "", "", ""]) for n, file in enumerate(files)]
        self.assertEqual(walk.count(rows), (3, 3, 2))


class Functions(unittest.TestCase):
    def test_rust(self):
        names = [(of, name) for of, name, _ in walk.rust_bodies(FILES["rx.rs"])]
        self.assertEqual(names, [("Rx", "receive"), ("RxBatch", "new"), ("RxBatch", "packet"), ("Other", "new"), ("Both", "declared"), ("Both", "hidden")])

    def test_declarations_have_no_body(self):
        bodies = {name: body for _, name, body in walk.rust_bodies(FILES["rx.rs"])}
        self.assertNotIn("hidden", bodies["declared"])

    def test_c(self):
        self.assertEqual([name for _, name, _ in walk.c_bodies(FILES["kapi/udp_rx.c"])], ["take"])


class Tree(unittest.TestCase):
    # Shows all lines, each of which says what to do.
    maxDiff = None

    def test_page(self):
        self.assertEqual(list(walk.wrong(walk.PAGE.read_text(), walk.tree())), [])

    # The most files of the path in bold and jumps between them. Helpers are not bounded: their number grows with what the page describes.
    BOUNDS = {
        "Received WRITE, to its completion": (11, 15),
        "Received WRITE, to its ACK": (5, 5),
        "Posted SEND, to the wire": (10, 12),
        "Posted SEND, to its completion": (7, 7),
    }

    def test_page_has_all_walks(self):
        found = walk.steps(walk.PAGE.read_text())
        self.assertEqual(list(found), list(self.BOUNDS))
        for title, rows in found.items():
            self.assertGreater(len(rows), 20, title)
            self.assertGreater(len([step for step in rows if step.on_path]), 5, title)
            self.assertEqual([step.number for step in rows if not step.text], [], title)

    def test_path_is_in_few_files(self):
        for title, rows in walk.steps(walk.PAGE.read_text()).items():
            files, jumps, _ = walk.count([step for step in rows if step.on_path])
            self.assertLessEqual(files, self.BOUNDS[title][0], title)
            self.assertLessEqual(jumps, self.BOUNDS[title][1], title)

    def test_every_row_is_a_step(self):
        rows = len(re.findall(r"^\| *[A-Z]\d", walk.PAGE.read_text(), re.M))
        self.assertEqual(sum(map(len, walk.steps(walk.PAGE.read_text()).values())), rows)


if __name__ == "__main__":
    unittest.main()
