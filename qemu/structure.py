#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Checks the structure of the three crates.

qemu/structure.py    prints what is wrong, a line each; status 1 if there is anything

The modules of each crate are arranged in layers, called floors, and import downwards. Those of the driver (rxe_rs/, without kapi/ and
proto/) may also import from their own floor; UPWARDS has the upward imports, with the reasons, and CIRCLE the modules that import each other
in a circle because of them. Tests are not checked. The words in RETIRED must not be used, nor the names in RETIRED_ITEMS for items. Names
of functions that C calls end with `_callback`. A module with submodules is in a file of its name, not in `mod.rs`. The driver and kapi have
imports one per line, and one list for each crate and module. The C functions in kapi/helpers are wrappers without logic. Only the functions
of SYSTEM_QUEUES use the kernel's own work queues, only those of GRACE_PERIODS wait for grace periods, the code of LOCK_FREE takes no lock,
and that of NO_RESERVES allocates without GFP_ATOMIC. Nothing but the file SERIES depends on the version of the kernel. `lint.sh audit`
checks the global symbols of the C files.
"""
import re
import subprocess
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent

DRIVER = "rxe_rs"
FOLDERS = {DRIVER: "rxe_rs", "rxe_proto": "rxe_rs/proto", "rxe_kapi": "rxe_rs/kapi"}

# From the lowest floor to the highest. A module belongs to the longest entry that its name begins with.
FLOORS = {
    DRIVER: (
        ("clock", "limits", "version"),
        ("device", "device/counters", "device/gids", "device/port"),
        ("route", "verbs/pd", "verbs/ah"),
        ("mr", "queue"),
        ("verbs/cq", "verbs/srq"),
        ("qp", "pager"),
        ("rx",),
        ("verbs", "device/netdev_events"),
        ("rxe_rs",),
    ),
    "rxe_proto": (("counter",), ("drop", "ids", "time"), ("table", "wire"), ("check",), ("engine",), ("abi",), ("sim",), ("rxe_proto",)),
    "rxe_kapi": (
        ("bindings",),
        ("alloc", "crc", "error", "layout", "prefetch", "rand", "series"),
        ("sync",),
        ("mem", "net", "time", "work"),
        ("rdma",),
        ("kunit",),
        ("rxe_kapi",),
    ),
}

# A module of the driver, a module above it that it imports, the reason, and why it would be worse without. rxe_rs/README.md shows them.
UPWARDS = (
    ("device", "mr", "a device owns the table of its memory keys",
     "the core passes the device to the verbs: a table elsewhere would have to be looked up by the device in each call"),
    ("device", "rx", "a device owns its multicast groups and raw packet queue pairs, and knows the table of queue pairs",
     "as above; and the type of the UDP port, which is closed with the device, has the receiver as a parameter"),
    ("route", "rxe_rs", "whether connections use ECN is a parameter of the module",
     "`module!` must stand in the root file, and a copy of the parameter elsewhere would be a second state"),
    ("mr", "pager", "the limit on page faults applies to prefetches as well",
     "the pager, which runs prefetches, would call them through a trait with one implementation"),
    ("verbs/cq", "qp", "a completion queue that overflows moves its queue pairs to the error state",
     "it would have to keep callbacks in place of queue pairs"),
    ("pager", "rx", "a page fault that ends finds the pager through the global table of queue pairs",
     "it may last for ever, so it holds no reference to the pager; a second global value would have to be set up and dropped with the first"),
)

# The modules of the driver that import each other in a circle, directly or through others. It is one of an owner and its objects: `DeviceCtx`
# has the tables of objects, and each object belongs to a device.
CIRCLE = {"device", "device/counters", "mr", "pager", "qp", "rx", "verbs/cq", "verbs/pd", "verbs/srq"}

# Words that must not be used in code and text, with their replacements. Each was the project's own word for something that has a name.
# They are found as parts of names too (`sq_slot` in `sq_slot_count`), in the plural, and with line breaks between their words. A line
# that also has the replacement may use them: so can CHANGELOG.md say what is called differently.
RETIRED = {
    "end_trains": "disable_gso", "has_frames": "is_ethernet", "ipsec_room": "ipsec_overhead", "rxe_rs_take": "rxe_rs_hook_rcv",
    "rxe_rs_rx_pieces": "rxe_rs_rx_frags", "rxe_rs_tx_hopeless": "rxe_rs_tx_check", "reserve_more": "kvec::reserve",
    "SqSlot": "SendWqe", "KeyOp": "LocalOp", "KeyFault": "LocalOpFault", "QpPorts": "QpBackend", "QpCore": "QpInner",
    "JobQueue": "ResponseQueue", "take_turns": "run_rounds", "Train": "RxBatch", "put_off": "defer",
    "Kind::Fixed": "VerbsMr", "Kind::Fast": "Frwr", "regions on demand": "regions with on-demand paging",
    "new_gate": "new_rearmable", "recv_take": "take_recv", "recv_scatter": "scatter_recv", "sq_slot": "send_wqe",
    "sq_retire": "retire_sends", "sq_produced": "sends_posted",
    "MsnLearnt": "MsnResync", "msn_learnt": "msn_resync", "NeedlessNak": "SpuriousNak", "needless_nak": "spurious_nak",
    "ForeignDuplicate": "DuplicateMismatch", "foreign_duplicate": "duplicate_mismatch", "PageWaitDropped": "PageFaultDropped",
    "page_wait_dropped": "page_fault_dropped", "SegmentationFallback": "GsoFallback", "tx_segmentation_fallback": "tx_gso_fallback",
    "QpFacts": "AdmissionAttrs", "WindowFacts": "WindowState", "UdMeta": "RxMeta", "NetKind": "NetworkType",
    "MAX_PIECES": "MAX_FRAGS", "drain_notice": "sqd_async_notify", "keygen": "RKey::index",
    "PortKeys": "PKeyTable", "Tally": "CounterSet", "drive_later": "schedule_transmit", "area_len": "wqe_data_len",
    "with_area": "wqe_with_data", "is_notice": "is_cnp", "persist_left": "write_back_left",
    "StrayAck": "UnmatchedResponse", "stray_ack": "unmatched_response", "told_on": "last_comp_cpu", "QpShell": "QpObject",
    "NOTICE_CLASS": "CNP_TRAFFIC_CLASS", "memory on demand": "memory with on-demand paging", "scribble": "overwrite", "glue": "helpers",
}
# Names that no item or field of the three crates may have, with what they were replaced by. As words they have other uses.
RETIRED_ITEMS = {
    "Stop": "LockedQp", "Ports": "Backend", "turn": "tx_round", "settle": "quiesce", "Due": "PendingNotify", "heed": "arm_timer",
    "tell": "notify_cq", "Kept": "DeferredPacket or ReplayEntry", "Later": "Deferred", "Effort": "FaultMode", "Job": "PendingResponse",
    "Answer": "ResponseBody", "Piece": "MrSegment", "Place": "MemCursor", "Gate": "Rearmable", "Pass": "Guard", "lasting": "persistent",
    "stray": "duplicate", "again": "retransmit", "question": "probe_pending", "shared_receives": "uses_srq",
}
# The headers of the first librxe_rs stay as they were released; the list itself and its tests name the words.
RETIRED_NOT_IN = ("ktests/old_library/", "qemu/structure.py", "qemu/selftest_structure.py", "LICENSE", "Cargo.lock")

# Functions that queue work items on the kernel's own work queues: events and completion handlers, and the freeing of memory. None of these
# waits for user space. All other work, such as page faults, which may last for ever, is on queues of the module.
SYSTEM_QUEUES = {
    "rxe_rs/kapi/rdma/deferred.rs": ("kick",),
    "rxe_rs/kapi/work.c": ("rxe_rs_queue_bh_elsewhere",),
    "rxe_rs/kapi/free.c": ("rxe_rs_free",),
}
# Functions that lock for reading where a writer may wait for ever: elsewhere readers on several CPUs could keep it from its turn.
UNFAIR_READERS = {
    # With PREEMPT_RT only, whose readers pass no writer.
    "rxe_rs/kapi/odp.c": ("rxe_rs_odp_chunk_lock",),
    # A lock of the kernel, which locks it so itself, for a moment.
    "rxe_rs/kapi/guard.c": ("rxe_rs_guard_permits",),
}
# Functions that wait for a grace period of RCU, or call one that does. A process could call a verb in a loop, or end with a hundred thousand
# objects, so none of them is on the path of a verb that destroys or changes an object.
GRACE_PERIODS = {
    "rxe_rs/rxe_rs.rs": ("drop",),
    "rxe_rs/kapi/sync.rs": ("rcu_barrier",),
    "rxe_rs/kapi/sync/exit.rs": ("wait",),
    "rxe_rs/kapi/sync/global.rs": ("drop",),
    "rxe_rs/kapi/sync/rcu_table.rs": ("remove_if_sync",),
    "rxe_rs/kapi/udp_rx.c": ("rxe_rs_endpoint_stop", "rxe_rs_net_exit"),
    # The exit of the module.
    "rxe_rs/kapi/ring_mmap.c": ("rxe_rs_ring_detach_all",),
    # Once for each 1024 chunks that page faults have added.
    "rxe_rs/kapi/mem/odp.rs": ("free_empty_chunks",),
    # Devices that are unregistered.
    "rxe_rs/rx/ingress.rs": ("remove_sync",),
    "rxe_rs/rx/tables.rs": ("remove_device",),
}
# Code that runs for each packet, also for packets of strangers, and takes no lock, so that a flood of them makes no processor wait for
# another: whole files, or functions of a file.
LOCK_FREE = {
    "rxe_rs/rx.rs": ("receive", "refuse", "packet", "lock_qp", "gsi", "multicast"),
    "rxe_rs/rx/ingress.rs": (),
    "rxe_rs/device/counters.rs": ("drop",),
    "rxe_rs/device/gids.rs": ("hash", "first_index", "contains", "netdev_of"),
    "rxe_rs/rx/multicast.rs": ("first_index", "each_entry", "each_member"),
    "rxe_rs/rx/tables.rs": ("find", "count_drop", "device_of", "find_gsi"),
    "rxe_rs/kapi/sync/global.rs": ("with",),
    "rxe_rs/kapi/sync/number_table.rs": ("borrow", "lookup"),
    "rxe_rs/kapi/sync/rcu_table.rs": ("borrow", "borrow_next"),
    "rxe_rs/kapi/numbers.c": ("rxe_rs_numbers_lookup",),
    "rxe_rs/kapi/rcu_table.c": ("rxe_rs_table_load", "rxe_rs_table_next"),
}
# Files whose allocations peers cause in any number. They do not use the reserves of the kernel.
NO_RESERVES = {"rxe_rs/qp/paging.rs"}

# The only file that may have what differs between the series of the kernel.
SERIES = "rxe_rs/kapi/series.rs"
# What tells the version of the kernel or of its compilers to C, to Rust and to Kbuild.
VERSIONS = re.compile(r"\b(?:LINUX_VERSION_\w+|KERNEL_VERSION|UTS_RELEASE|(?:linux/|generated/(?:uapi/linux/)?)(?:version|utsrelease)\.h|"
                      r"utsname\(|cfg_select!|CONFIG_(?:RUSTC|GCC|CC|CLANG|LD|LLD|AS|BINDGEN|PAHOLE)_\w+|__GNUC__|__clang_major__)|"
                      r"\$[({](?:VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION|KERNELVERSION|KERNELRELEASE)[)}]")
# What may be asked at compile time: the configuration of the kernel, and what the sources are compiled for. Whether a macro of the kernel
# exists is a question about its version.
CONDITIONS = re.compile(r"(?:CONFIG|RXE_RS)_\w+|IS_(?:ENABLED|BUILTIN|MODULE|REACHABLE)|defined|any|all|not|test|miri|feature|MODULE")


def floor_of(crate, module):
    """The floor and the name of the entry of FLOORS that a module, such as `qp/tx`, belongs to. Raises ValueError if there is none."""
    matches = [(name, number) for number, names in enumerate(FLOORS[crate]) for name in names
               if module == name or module.startswith(name + "/")]
    if not matches:
        raise ValueError(f"{FOLDERS[crate]}/{module}.rs has no floor: add it to FLOORS in qemu/structure.py")
    name, number = max(matches, key=lambda match: len(match[0]))
    return number, name


def paths_of(tree, prefix=()):
    """The paths that a tree of a `use` declaration names, as tuples."""
    tree = tree.strip()
    group = re.match(r"^([\w:]*?)(?:::)?\{(.*)\}$", tree, re.DOTALL)
    if not group:
        if tree:
            yield (*prefix, *re.sub(r"\s+as\s+\w+$", "", tree).split("::"))
        return
    prefix = (*prefix, *(part for part in group[1].split("::") if part))
    depth, part = 0, ""
    for letter in group[2] + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            yield from paths_of(part, prefix)
            part = ""
        else:
            part += letter


def imports(text, modules):
    """The modules of the same crate that a file imports by `use crate::…` or names in another path. `modules`: their texts by name."""
    text = re.sub(r"//[^\n]*", "", text)
    declaration = re.compile(r"\buse\s+(crate\b[^;]*);")
    paths = [path for tree in declaration.findall(text) for path in paths_of(tree)]
    paths += [path.split("::") for path in re.findall(r"\bcrate(?:::\w+)+", declaration.sub("", text))]
    for path in paths:
        names = path[1:]
        for length in range(len(names), 0, -1):
            if "/".join(names[:length]) in modules:
                yield "/".join(names[:length])
                break
        else:
            # Not a module; it may be an item of the root file.
            yield from (root for root in set(FOLDERS) & set(modules)
                        if names and re.search(rf"\b(?:fn|const|static|struct|enum|type|trait) {names[0]}\b", modules[root]))


def files_of(crate):
    """The texts of a crate's modules without their tests, by their names, such as `qp/tx`."""
    root = CLONE / FOLDERS[crate]
    apart = {DRIVER: ("kapi", "proto"), "rxe_proto": ("tests", "fuzz", "examples")}.get(crate, ())
    return {str(path.relative_to(root).with_suffix("")): path.read_text().split("#[cfg(test)]")[0]
            for path in sorted(root.rglob("*.rs")) if path.relative_to(root).parts[0] not in apart}


def wrong_layers(crate, files):
    """Upward imports that are not in UPWARDS, and entries of UPWARDS that are not needed."""
    used = set()
    for module, text in files.items():
        number, name = floor_of(crate, module)
        for other in sorted(set(imports(text, files))):
            above, above_name = floor_of(crate, other)
            if above < number or above_name == name or (crate == DRIVER and above == number):
                continue
            pairs = [(low, high) for low, high, *_ in UPWARDS if crate == DRIVER and (low, high) == (name, above_name)]
            used.update(pairs)
            if not pairs:
                yield f"{FOLDERS[crate]}/{module}.rs imports {other}, which is not below it"
    for low, high, *_ in UPWARDS if crate == DRIVER else ():
        if (low, high) not in used:
            yield f"qemu/structure.py: nothing of {low} imports {high} any more"


def circle(files):
    """The entries of FLOORS of the driver that import each other in a circle. `files`: the texts of the modules by their names."""
    ahead = {name: set() for names in FLOORS[DRIVER] for name in names}
    for module, text in files.items():
        for other in imports(text, files):
            ahead[floor_of(DRIVER, module)[1]].add(floor_of(DRIVER, other)[1])
    for name, found in ahead.items():
        found.discard(name)
    for middle in ahead:
        for found in ahead.values():
            if middle in found:
                found |= ahead[middle]
    return {name for name, found in ahead.items() if name in found}


def wrong_circle(files):
    """Differences between CIRCLE and the imports."""
    found = circle(files)
    for name in sorted(found - CIRCLE):
        yield f"{name} has become part of the circle of imports in the driver: remove an import, or add it to CIRCLE in qemu/structure.py"
    for name in sorted(CIRCLE - found):
        yield f"qemu/structure.py: {name} is no longer part of CIRCLE"


def retired_words(texts):
    """The places where a retired word is used, or an item has a retired name."""
    # A capital begins a word also within a name (`RxTrain`). Between words there may be a line break, with the marks of a comment.
    words = [("" if word[0].isupper() else "(?<![A-Za-z])") + word.replace(" ", r"\s+(?:(?:///?!?|\*|\#|--|>)\s+)?") for word in RETIRED]
    word = re.compile(f"({'|'.join(words)})s?(?![a-z])")
    names = "|".join(RETIRED_ITEMS)
    item = re.compile(rf"\b(?:fn|struct|enum|union|trait|type|mod|const|static) ({names})\b|^\s+(?:pub(?:\([^)]*\))? )?({names}): ", re.M)
    for name, text in texts.items():
        lines = text.splitlines()
        for match in word.finditer(text):
            number = text.count("\n", 0, match.start()) + 1
            old = " ".join(re.sub(r"\n[\s/!*#>-]+", " ", match[1]).split())
            if RETIRED[old] not in lines[number - 1]:
                yield f"{name}:{number}: {old} is called {RETIRED[old]}"
        for match in item.finditer(text) if name.startswith("rxe_rs/") and name.endswith(".rs") else ():
            old = match[1] or match[2]
            yield f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {old} is called {RETIRED_ITEMS[old]}"


def helpers_with_logic(texts):
    """Places of `kapi/helpers` that decide something: its functions are wrappers, and logic is in files of its own."""
    for name, text in texts.items():
        if name.startswith("rxe_rs/kapi/helpers/"):
            code = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
            for number, line in enumerate(code.splitlines(), 1):
                if re.search(r"\b(if|else|for|while|do|switch|goto|static)\b|\?", line):
                    yield f"{name}:{number}: a wrapper has logic: {line.strip()}"


def code_lines(text):
    """The lines of a Rust or C file with their numbers, without comments."""
    text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
    return [(number, re.sub(r"//.*", "", line)) for number, line in enumerate(text.splitlines(), 1)]


def function_lines(text, function):
    """The lines of a Rust or C function with their numbers, without comments; none if there is no such function."""
    lines = code_lines(text)
    for at, (_, line) in enumerate(lines):
        head = re.match(rf"( *)(?:pub(?:\([^)]*\))? )?(?:const |unsafe )*fn {function}\b|()\w[\w *]*\b{function}\(", line)
        if head:
            end = next((n for n in range(at, len(lines)) if lines[n][1] == (head[1] or "") + "}"), at)
            return lines[at:end + 1]
    return []


def uses_by_function(texts, use, allowed, refusal, nothing):
    """The places of the driver and its C files where the regular expression `use` matches outside of the functions that `allowed` has for a
    file, and functions there that do not match. `refusal` and `nothing` are what is said of them."""
    for name, text in texts.items():
        if not re.fullmatch(r"rxe_rs/.*\.(rs|c|h)", name):
            continue
        found = {number: match[0] for number, line in code_lines(text) if (match := use.search(line))}
        for function in allowed.get(name, ()):
            inside = [number for number, _ in function_lines(text, function) if number in found]
            if not inside:
                yield f"qemu/structure.py: {function} of {name} {nothing}"
            for number in inside:
                del found[number]
        yield from (f"{name}:{number}: {word}: {refusal}" for number, word in found.items())


def system_queues(texts):
    """Uses of the kernel's own work queues by other functions than those of SYSTEM_QUEUES, and such functions that use none."""
    use = re.compile(r"\bsystem_(?:\w+_)?wq\b|\bschedule_(?:delayed_)?work(?:_on)?\b|"
                     r"\bworkqueue::system\w*|(?<!\.)\bsystem(?:_(?:bh|dfl|freezable|highpri|long|percpu|power_efficient|unbound)\w*)?\(\)")
    yield from uses_by_function(texts, use, SYSTEM_QUEUES, "use a work queue of the module", "uses no work queue of the kernel any more")


def grace_periods(texts):
    """Waits for grace periods in other functions than those of GRACE_PERIODS, and such functions that do not wait."""
    use = re.compile(r"\bsynchronize_(?:rcu|net|srcu)\w*\(|\b(?:s?rcu_barrier|cond_synchronize_\w+)\(|\.remove(?:_if)?_sync\(")
    texts = {name: text for name, text in texts.items() if name != "rxe_rs/kapi/kunit.rs"}
    yield from uses_by_function(texts, use, GRACE_PERIODS, "a process may cause this in a loop, use a count of users or call_rcu",
                                "waits for no grace period any more")


def unfair_readers(texts):
    """C functions that lock for reading by read_lock(), but for those of UNFAIR_READERS."""
    texts = {name: text for name, text in texts.items() if name.endswith((".c", ".h"))}
    yield from uses_by_function(texts, re.compile(r"(?<!\w)read_lock(?:_bh|_irq\w*)?\("), UNFAIR_READERS,
                                "with bottom halves disabled it passes a writer that waits, use read_trylock()", "does not call it any more")


def locks(texts):
    """Locks in the code of LOCK_FREE, and its functions and files that do not exist any more."""
    lock = re.compile(r"\.(?:try_)?lock\(|\w*(?:SpinLock|Mutex|RwLock|RwSemaphore)\w*|"
                      r"\b(?:raw_spin|spin|mutex|xa)_(?:try)?lock\w*|\bdown_(?:read|write)\w*")
    for name, functions in LOCK_FREE.items():
        text = texts.get(name, "")
        for function in functions or [""]:
            lines = function_lines(text, function) if function else code_lines(text)
            if not lines:
                yield f"qemu/structure.py: {name} has no {function or 'code'} any more"
            for number, line in lines:
                if match := lock.search(line):
                    yield f"{name}:{number}: {match[0]}: this code must take no lock"


def reserves(texts):
    """Allocations from the reserves in files of NO_RESERVES."""
    for name in sorted(NO_RESERVES):
        if name not in texts:
            yield f"qemu/structure.py: there is no {name} any more"
        for number, line in code_lines(texts.get(name, "")):
            match = re.search(r"\bGFP_ATOMIC\b|\bgfp_atomic\w*|\b__GFP_(?:HIGH|MEMALLOC)\b", line)
            if match:
                yield f"{name}:{number}: {match[0]}: peers cause these allocations, use GFP_NOWAIT"


def conditions(text, is_rust):
    """The conditions of conditional compilation in a Rust or C file with the numbers of their lines, without string literals."""
    text = "\n".join(line for _, line in code_lines(text))
    if not is_rust:
        for match in re.finditer(r"^[ \t]*#[ \t]*(?:el)?if(?:n?def)?\b((?:\\\n|.)*)", text, re.M):
            yield text.count("\n", 0, match.start()) + 1, match[1]
        return
    for match in re.finditer(r"\bcfg(_attr)?!?\(", text):
        end, depth = match.end(), 1
        # The condition of cfg_attr ends at a comma.
        while end < len(text) and depth and not (match[1] and depth == 1 and text[end] == ","):
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        yield text.count("\n", 0, match.start()) + 1, re.sub(r'"[^"]*"', "", text[match.end():end])


def series_elsewhere(texts):
    """Places of the module outside of SERIES that depend on the version of the kernel."""
    if SERIES not in texts:
        yield f"qemu/structure.py: there is no {SERIES} any more"
    for name, text in texts.items():
        if name == SERIES or not re.fullmatch(r"Kbuild|rxe_rs/(?!proto/(tests|fuzz|examples)/).*\.(rs|c|h)", name):
            continue
        found = [(number, match[0]) for number, line in code_lines(text) for match in VERSIONS.finditer(line)]
        if name != "Kbuild":
            found += [(number, word) for number, condition in conditions(text, name.endswith(".rs"))
                      for word in re.findall(r"[A-Za-z_]\w*", condition) if not CONDITIONS.fullmatch(word)]
        yield from (f"{name}:{number}: {word}: what depends on the version of the kernel belongs in {SERIES}" for number, word in sorted(set(found)))


def horizontal_imports(texts):
    """Imports of several items on one line, in the driver and in kapi, which have them one per line as the kernel's Rust code."""
    for name, text in texts.items():
        if re.fullmatch(r"rxe_rs/(?!proto/).*\.rs", name):
            for number, line in enumerate(text.splitlines(), 1):
                if re.match(r"\s*(pub(\([^)]*\))? )?use [^;]*\{[^}]*,[^}]*\}", line):
                    yield f"{name}:{number}: write the imports one per line, with // behind the last one of a list"


def repeated_imports(texts):
    """Imports from one crate, or from one module of it, in several lists of the same file, in the driver and in kapi."""
    for name, text in texts.items():
        if not re.fullmatch(r"rxe_rs/(?!proto/).*\.rs", name):
            continue
        crates = re.findall(r"^(?:pub )?use (\w+)::", text, re.M)
        modules = [f"{of}::{module}" for of, trees in re.findall(r"^use ([\w:]+)::\{\n(.*?)^\};", text, re.M | re.S)
                   for module in re.findall(r"^    (\w+)::", trees, re.M)]
        for path in sorted({path for path in crates + modules if (crates + modules).count(path) > 1}):
            yield f"{name}: write the imports from {path} as one list"


def misplaced_modules(names):
    """Modules of the three crates that are in a file `mod.rs`: all of them are in a file that has the module's name."""
    for name in names:
        if re.fullmatch(r"rxe_rs/(?!proto/tests/).*/mod\.rs", name):
            yield f"{name} must be {name.removesuffix('/mod.rs')}.rs"


def misnamed_callbacks(texts):
    """Functions that C calls through a pointer and whose names lack the suffix `_callback`, which rust/kernel uses."""
    for name, text in texts.items():
        for function in re.findall(r'\bextern "C" fn (\w+)', text) if name.startswith("rxe_rs/kapi/") else ():
            if not function.endswith("_callback"):
                yield f"{name}: the name of {function} does not end with _callback"


def tracked():
    """The names and texts of the tracked files to which RETIRED applies."""
    out = subprocess.run(["git", "-C", CLONE, "ls-files", "-z"], check=True, stdout=subprocess.PIPE, text=True).stdout
    for name in filter(None, out.split("\0")):
        if not name.startswith(RETIRED_NOT_IN) and (CLONE / name).exists():
            yield name, (CLONE / name).read_text()


def main():
    texts = dict(tracked())
    layers = [line for crate in FLOORS for line in wrong_layers(crate, files_of(crate))]
    wrong = [*layers, *wrong_circle(files_of(DRIVER)), *retired_words(texts), *misnamed_callbacks(texts), *misplaced_modules(texts),
             *helpers_with_logic(texts), *horizontal_imports(texts), *repeated_imports(texts), *system_queues(texts),
             *grace_periods(texts), *unfair_readers(texts), *locks(texts), *reserves(texts), *series_elsewhere(texts)]
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
