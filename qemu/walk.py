#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Compares docs/walk.md, which lists the functions that a received WRITE and a posted SEND pass through, with the sources.

qemu/walk.py         prints where the page disagrees with the sources, a line each; status 1 if there is anything
qemu/walk.py write   renumbers the steps, and writes the table of files and jumps at the head of the page

A step that is inserted between R24 and R25 is R24a, in its own row and in the rows of the functions that it calls, until `write` has
renumbered it.

A step is a row of a table: its number, a function as `file: function` (files are those of rxe_rs/), its caller, the context, what it
decides, and the counters of what it drops or records. The function is in bold if it is on the path that a reader follows, and plain if
it is a helper. A caller is a step of the page, whose function must call this one, or

    R2 by `name`, set in `file: function`   step R2 calls it through `name`, and that function assigns or passes it
    core by `name`, set in `file`           the same for a caller outside of the driver; a line of the file assigns it

What a function in bold calls is a step as well, unless it has one line only or NOT_STEPS names it.
"""
import re
import sys
from pathlib import Path

import docs

CLONE = Path(__file__).resolve().parent.parent
PAGE = CLONE / "docs/walk.md"
ROOT = CLONE / "rxe_rs"

CONTEXTS = re.compile(r"(process|softirq|process or softirq)(, (RCU|BH off|QP lock|CQ lock|SQ lock|chunk lock))*$")
C_FUNCTION = re.compile(r"^(?!\s|#|/|\*|struct \w+ =)[\w *]*?\b\*?(\w+)\(")

# Functions that need no step although one in bold calls them, by the reason.
NOT_STEPS = {
    "names that several functions have, most of them in the standard library":
        "add advance cancel count drop each from get len map next offset pkey put replace set slice slot state store with",
    "values, computed without an effect":
        "ack_deadline ack_every_single bits bytes counter_set delayed_ack_deadline disable_bh errno establishes_communication free_slots "
        "from_slice front gap gso_index has_new_gap head ifindex implied_nak in_flight is_acknowledgement is_allowed is_marked is_multicast is_over "
        "is_send least_window limit may_ack_later net_hdr op opcode operation packets packets_of pad_of path_state poll_resume poll_timeout queued_bytes request_bth "
        "rnr_wait_ns rxe_rs_ct_unconfirmed same_id_hdr storage syndrome tag takes takes_resource verbs_mr wqe_with_data",
    "other operations, services and kinds of packets":
        "complete_local cursor_at discard exceeds_window execute_atomic execute_atomic_write execute_flush execute_local execute_read "
        "execute_send flow_of_ah gsi handle_cnp handle_data handle_datagram handle_uc remote_invalidate send_read send_response "
        "send_single vlan_of",
    "packets by reference, which do not leave the kernel":
        "by_reference offer reference_in send_reference with_source",
    "what follows an error, a loss or a page fault":
        "accepts apply_denied ask_for_gap begins_repeat count_drop discard_buffer drop_nak duplicate_response end_repeat enter_error entering_error enter_sqe "
        "fail_oldest fail_with handle_loss keep learn lost move_cursor nak_and_fail note_fault on_answered on_gap_closed owe_nak on_retransmit overflow probe_oldest raise_error_event "
        "record_fault recv_error refuse_duplicate repeat replay_kept request_missing room_for_sends rxe_rs_tx_undo send_ack_before start_page_in start_work waits_for_room",
    "timers, pacing and records":
        "advance_past arm_at arm_timer budget kick kick_elsewhere note_drained note_fill note_in_flight note_sent on_acknowledged on_marked "
        "on_packet on_request on_request_sent on_sent postpone raise_events rearm request_ack resume_at rxe_rs_ct_confirm spend sync_consumer traffic try_get",
}


class Step:
    """A row of a table."""

    def __init__(self, cells):
        self.number, function, self.caller, self.context, self.text, self.counters = cells
        self.on_path = function.startswith("**")
        found = re.fullmatch(r"`([\w/.]+): ([\w:]+)`", function.strip("*"))
        if not found:
            raise ValueError(f"step {self.number}: {function} is not `file: function`")
        self.file, self.function = found.groups()

    def crate(self):
        return crate_of(self.file)

    def names(self):
        """The counters in the last column."""
        return re.findall(r"`(\w+)`", self.counters)


def crate_of(file):
    return {"kapi": "rxe_kapi", "proto": "rxe_proto"}.get(file.split("/")[0], "rxe_rs")


def steps(page):
    """The steps of each walk by its heading, in the order of the page."""
    found, title = {}, None
    for line in page.splitlines():
        if line.startswith("## "):
            title = line[3:]
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if re.fullmatch(r"[A-Z]\d+[a-z]?", cells[0]) and len(cells) == 6:
            found.setdefault(title, []).append(Step(cells))
    return found


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def rust_bodies(text):
    """The type or trait, the name and the text of each function of a Rust file."""
    lines = text.splitlines()
    blocks = []
    for at, line in enumerate(lines):
        while blocks and line == f"{blocks[-1][0]}}}":
            blocks.pop()
        block, function = docs.BLOCK.match(line), docs.FUNCTION.match(line)
        if block and not line.rstrip().endswith((";", "}")):
            header, more = block[4], at
            while "{" not in header:
                more += 1
                header += " " + lines[more].strip()
            blocks.append((block[1], docs.implemented(header)[1] if block[3] == "impl" else re.match(r"\w*", header)[0]))
        elif function:
            end = at
            while end + 1 < len(lines) and not re.match(rf"{function[1]}(\}}|\).*;$)", lines[end]) and not re.search(r"[};]$", lines[at]):
                end += 1
            yield blocks[-1][1] if blocks else "", function[4], "\n".join(lines[at:end + 1])


def c_bodies(text):
    """The same for a C file, with empty types. Loop macros are not functions: they are indented."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        found = C_FUNCTION.match(line)
        if not found:
            continue
        start = at
        while start < len(lines) and not lines[start].endswith((";", "{")) and lines[start] != "{":
            start += 1
        if start < len(lines) and lines[start] == "{":
            end = lines.index("}", start)
            yield "", found[1], "\n".join(lines[at:end + 1])


class Sources:
    """Functions of the driver's files. `read` returns the text of a file, or `None`."""

    def __init__(self, read, files=()):
        self.read, self.files, self.known = read, files, {}

    def functions(self, file):
        if file not in self.known:
            text = self.read(file)
            bodies = c_bodies if file.endswith(".c") else rust_bodies
            self.known[file] = [] if text is None else [(of, name, without_comments(body)) for of, name, body in bodies(text)]
        return self.known[file]

    def body(self, file, function):
        """The text of a function given as `name` or `Type::name`; `None` unless there is exactly one (in C, one for each configuration)."""
        of, _, name = function.rpartition("::")
        found = [body for its, called, body in self.functions(file) if called == name and of in ("", its)]
        if not found or (len(found) > 1 and not file.endswith(".c")):
            return None
        return "\n".join(found)

    def long_functions(self):
        """The names of the functions that have more than one line in their bodies."""
        return {name for file in self.files for _, name, body in self.functions(file) if body.count("\n") > 2}


def tree():
    files = [str(path.relative_to(ROOT)) for pattern in ("*.rs", "*.c") for path in sorted(ROOT.rglob(pattern))]
    apart = re.compile(r"proto/(tests|sim|fuzz|examples)\b|kapi/kunit")
    return Sources(lambda file: (ROOT / file).read_text() if (ROOT / file).is_file() else None,
                   [file for file in files if not apart.match(file)])


def counters(sources):
    """The names of the counters with the values of the enumerations that they count: `{"rx_no_qp": "NoQp"}`."""
    found = {}
    for file in ("proto/drop.rs", "proto/engine/backend.rs"):
        found.update({name: value for value, name in re.findall(r"^ +(\w+) = \"(\w+)\",$", sources.read(file) or "", re.M)})
    text = sources.read("device/counters.rs") or ""
    names = re.findall(r'"(\w+)"', (re.search(r"NAMES[^=]*= \[(.*?)\];", text, re.S) or [""])[0])
    values = re.findall(r"Self::(\w+) => (\d+)", text)
    found.update({names[int(at)]: value for value, at in values if int(at) < len(names)})
    return found


def calls(body, function):
    """True if the text calls the function, or names it otherwise."""
    return re.search(rf"\b{function.rpartition('::')[2]}\b", body.split("{", 1)[-1]) is not None


def wrong_callers(step, before, sources):
    """Errors in the caller of a step."""
    direct = re.fullmatch(r"([A-Z]\d+[a-z]?)", step.caller)
    stored = re.fullmatch(r"([A-Z]\d+[a-z]?|[a-z]+) by `(\w+)`, set in `([\w/.]+)(?:: ([\w:]+))?`", step.caller)
    if not direct and not stored:
        yield f"step {step.number}: the caller {step.caller!r} has none of the forms that the head of qemu/walk.py describes"
        return
    caller = (direct or stored)[1]
    if caller[0].isupper():
        if caller not in before:
            yield f"step {step.number}: its caller {caller} does not come before it"
            return
        by = before[caller]
        name = step.function if direct else stored[2]
        body = sources.body(by.file, by.function)
        if body is not None and not calls(body, name):
            yield f"step {step.number}: {by.file}: {by.function} does not call {name}"
    if stored and stored[4]:
        body = sources.body(stored[3], stored[4])
        if body is None:
            yield f"step {step.number}: {stored[3]} must define {stored[4]} exactly once"
        elif not calls(body, step.function):
            yield f"step {step.number}: {stored[3]}: {stored[4]} does not name {step.function}"
    elif stored:
        lines = without_comments(sources.read(stored[3]) or "").splitlines()
        if not any(calls("{" + line, step.function) and calls("{" + line, stored[2]) for line in lines):
            yield f"step {step.number}: no line of {stored[3]} sets {stored[2]} to {step.function}"


def missing_steps(found, sources, not_steps):
    """Functions that one in bold calls and that are neither steps nor in `not_steps`, and names in that without need."""
    present = {step.function.rpartition("::")[2] for step in found}
    exempt = {name: reason for reason, names in not_steps.items() for name in names.split()}
    defined, used = sources.long_functions(), set()
    for step in (step for step in found if step.on_path):
        body = (sources.body(step.file, step.function) or "").split("{", 1)[-1]
        called = set(re.findall(r"\b(\w+)(?:::<[^>()]*>)?\(", body)) & defined - present
        used |= called
        for name in sorted(called - set(exempt)):
            yield f"step {step.number}: {step.function} calls {name}, which is no step: add one, or add the name to NOT_STEPS in qemu/walk.py"
    for name in sorted(set(exempt) - used):
        yield f"qemu/walk.py: NOT_STEPS has {name}, which is a step or is not called by a function in bold"


def wrong(page, sources, not_steps=NOT_STEPS):
    """Where the page disagrees with the sources."""
    known, before = counters(sources), {}
    for step in (step for walk in steps(page).values() for step in walk):
        if step.number[-1].isalpha():
            yield f"step {step.number}: run qemu/walk.py write, which renumbers the steps"
        if step.number in before:
            yield f"step {step.number}: two steps have this number (call the new one {step.number}a, and run qemu/walk.py write)"
        if sources.body(step.file, step.function) is None:
            yield f"step {step.number}: {step.file} must define {step.function} exactly once"
        if not CONTEXTS.match(step.context):
            yield f"step {step.number}: {step.context!r} is not a context"
        yield from wrong_callers(step, before, sources)
        for name in step.names():
            if name not in known:
                yield f"step {step.number}: there is no counter {name}"
            elif not re.search(rf"\b{known[name]}\b", sources.body(step.file, step.function) or ""):
                yield f"step {step.number}: {step.function} does not mention {known[name]}, which {name} counts"
        before[step.number] = step
    yield from missing_steps(list(before.values()), sources, not_steps)
    named = {name for step in before.values() for name in step.names()}
    for reason in re.findall(r"^ +\w+ = \"(\w+)\",$", sources.read("proto/drop.rs") or "", re.M):
        if reason not in named:
            yield f"no step has the counter {reason}: name it in the last column of the step whose function decides to drop the packet"
    for line in counts(page):
        if line not in page.splitlines():
            yield f"the page lacks this row (run qemu/walk.py write): {line}"


def count(walk):
    """The number of files, of jumps from file to file between steps, and of those from crate to crate."""
    pairs = list(zip(walk, walk[1:]))
    return (len({step.file for step in walk}), sum(one.file != other.file for one, other in pairs),
            sum(one.crate() != other.crate() for one, other in pairs))


def counts(page):
    """The rows of the table at the head of the page."""
    for title, walk in steps(page).items():
        path = count([step for step in walk if step.on_path])
        yield f"| {title} | " + " | ".join(str(number) for number in (*path, *count(walk))) + " |"


def numbered(page):
    """The page with its steps renumbered in their order, and references to them."""
    new, last = {}, {}
    for old in re.findall(r"^\| ([A-Z]\d+[a-z]?) \|", page, re.M):
        if old in new:
            raise ValueError(f"there are two steps {old}: call the new one {old}a")
        last[old[0]] = last.get(old[0], 0) + 1
        new[old] = f"{old[0]}{last[old[0]]}"
    return re.sub(r"\b[A-Z]\d+[a-z]?\b", lambda found: new.get(found[0], found[0]), page)


def written(page):
    """The page with right numbers, of the steps and at its head."""
    page = numbered(page)
    for line in counts(page):
        title = re.escape(line.split(" | ")[0])
        # The first row of the walk only: tables below it have the numbers of other revisions.
        page = re.sub(rf"^{title}( \| \d+)+ \|$", line, page, count=1, flags=re.M)
    return page


def main():
    page = PAGE.read_text()
    if sys.argv[1:] == ["write"]:
        PAGE.write_text(written(page))
        return
    found = list(wrong(page, tree()))
    print("\n".join(found))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
