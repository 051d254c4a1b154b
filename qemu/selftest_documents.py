# SPDX-License-Identifier: GPL-2.0
"""Tests that the documents agree with the sources: they name all parameters, attributes, counters, limits and files, and no others."""
import fnmatch
import functools
import io
import os
import re
import subprocess
import tempfile
import tokenize
import tomllib
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
GUIDE = (TOP / "docs/rxe_rs.rst").read_text()
# Folders with generated files.
GENERATED = {".git", "out", "target", "__pycache__"}


@functools.cache
def files():
    """All files of the project, by their paths in it."""
    found = []
    for folder, folders, names in os.walk(TOP):
        folders[:] = sorted(set(folders) - GENERATED)
        found += [str((Path(folder) / name).relative_to(TOP)) for name in sorted(names)]
    return found


@functools.cache
def driver():
    """The text of the module's sources, without comments and tests."""
    text = ""
    for name in files():
        if re.match(r"(rxe_rs/(?!proto/(tests|sim|examples|fuzz)/).*\.(rs|c|h)|uapi/.*\.h)$", name):
            text += re.sub(r"^\s*//.*$", "", (TOP / name).read_text(), flags=re.M)
    return text


def section(title, text=GUIDE):
    """The section of a document with that heading, subsections included."""
    found = re.search(rf"^{re.escape(title)}\n(=+)\n(.*?)(?=^[^\n]+\n\1?={{3,}}\n|\Z)", text, re.M | re.S)
    if not found:
        raise AssertionError(f"no section {title}")
    return found[2]


def terms(text):
    """The terms of definition lists."""
    return [term for line in re.findall(r"^(``.*)\n  \S", text, re.M) for term in re.findall(r"``([^`]+)``", line)]


def block(pattern):
    found = re.findall(pattern, driver(), re.S | re.M)
    if len(found) != 1:
        raise AssertionError(f"{len(found)} times in the sources: {pattern}")
    return found[0]


def number(expression):
    """The value of a constant expression in Rust; where it depends on the architecture, that of amd64."""
    text = re.sub(r"\w+::(?:try_)?from\((\S+?)\)(?:\.unwrap_or\(.*\))?", r"\1", expression.strip())
    text = re.sub(r"if cfg!\(CONFIG_ARM64\) \{ \S+ \} else \{ (\S+) \}", r"\1", text)
    text = re.sub(r"\bMtu::Mtu(\d+)\.bytes\(\)", r"\1", text)
    text = re.sub(r"(?:(\w+)::)*\b([A-Z]\w*)\b", lambda name: str(constant(name[1], name[2])), text)
    text = re.sub(r"(?<=[0-9a-f])_(?=[0-9a-f])", "", text)
    if not re.fullmatch(r"(0x[0-9a-f]+|\d+|<<|[-+*() ])+", text):
        raise AssertionError(f"no number: {expression}")
    return eval(text, {"__builtins__": {}})  # pylint: disable=eval-used


def constant(module, name):
    """The value of a constant; in the file of `module`, if that exists."""
    of_module = [path for path in files() if path.startswith("rxe_rs/") and path.endswith(f"/{module}.rs")]
    text = "".join((TOP / path).read_text() for path in of_module) or driver()
    values = {number(value) for value in re.findall(rf"^(?:pub\S* )?const {name}: \w+ = ([^;]+);", text, re.M)}
    if len(values) != 1:
        raise AssertionError(f"{name} has the values {values}")
    return values.pop()


def parameters():
    """(name, type, default) of the module's parameters."""
    text = block(r"^    params: \{(.*?)^    \},")
    return re.findall(r"(\w+): (\w+) \{\s*default: (\w+),", text)


def counters():
    traffic = re.findall(r'"(\w+)"', block(r"const NAMES: \[&'static str; \d+\] = \[(.*?)\]"))
    events, drops = (re.findall(r' = "(\w+)",', block(rf"^    pub enum {name} \{{(.*?)^    \}}")) for name in ("Count", "DropReason"))
    return traffic, events, drops


def device_limits():
    """The limits that the driver reports, by the names of the kernel."""
    stored = re.findall(r"\bto\.(max_\w+|local_ca_ack_delay) = ([^;]+);", block(r"pub\(crate\) fn store\(&self, to: &mut bindings::ib_device_attr\) \{(.*?)^    \}"))
    attributes = block(r"-> DeviceAttr \{(.*?)^    \}")
    constants = dict(re.findall(r"let (\w+) = ([^;]+);", attributes))
    fields = dict(re.findall(r"^\s+(\w+): (.*?),$", re.sub(r"if [^{]*\{\s*([\w:]+)\s*\} else \{\s*0\s*\}", r"\1", attributes), re.M))
    values = {}
    for name, value in stored:
        of = re.fullmatch(r"(?:int\()?self\.(\w+)\)?", value.strip())
        if of:
            expression = fields[of[1]]
            values[name] = number(constants.get(expression, expression))
    return values


def port_limits():
    fields = re.findall(r"^\s+(\w+): (.*?),$", block(r"PortAttr \{\s*(up: .*?)^        \}"), re.M)
    return {name: number(value) for name, value in fields if name in ("max_mtu", "gid_tbl_len", "pkey_tbl_len", "max_msg_sz")}


def table(text, n):
    """The rows of the n-th table of a section, from 0."""
    rows = re.findall(r"^=+  =+\nAttribute.*?\n=+  =+\n(.*?)^=+  =+$", text, re.M | re.S)[n]
    return {name: int(value) for name, value in re.findall(r"^``(\w+)`` +(\d+)", rows, re.M)}


class Guide(unittest.TestCase):
    """docs/rxe_rs.rst."""

    def test_parameters(self):
        documented = re.findall(r"^``(\w+)`` \((\w+), default (\w+)\)$", section("Module parameters"), re.M)
        self.assertGreater(len(documented), 1)
        self.assertEqual(sorted(documented), sorted(parameters()))

    def test_sysfs(self):
        attributes = re.findall(r"\bDEVICE_ATTR_(\w\w)\((\w+)\)", driver())
        text = section("Sysfs attributes")
        self.assertEqual(sorted(terms(text)), sorted(name for _, name in attributes))
        for access, name in attributes:
            described = re.search(rf"^``{name}``\n((?:  .*\n)+)", text, re.M)[1]
            self.assertEqual("Read-only" in described, access == "RO", name)

    def test_counters(self):
        parts = re.split(r"^(.+)\n-+\n", section("Counters"), flags=re.M)[1:]
        self.assertEqual(parts[::2], ["Traffic", "Transport events", "Dropped packets"])
        for title, text, names in zip(parts[::2], parts[1::2], counters()):
            with self.subTest(title):
                self.assertGreater(len(names), 5)
                self.assertEqual(sorted(terms(text)), sorted(names))

    def test_resource_details(self):
        names = re.findall(r'\bto\.(?:number|wide|bits)\(c"(\w+)"', driver())
        self.assertGreater(len(names), 10)
        documented = terms(section("Resource details"))
        self.assertEqual(sorted(documented), sorted({f"drv_{name}" for name in names}))

    def test_limits(self):
        text = section("Limits")
        limits = device_limits()
        self.assertGreater(len(limits), 20)
        self.assertEqual(table(text, 0), limits)
        self.assertEqual(table(text, 1), port_limits())

    def test_further_limits(self):
        text = " ".join(section("Limits").split())
        for words, name, unit in ((r"(\d+) bytes of inline data", "MAX_INLINE", 1), (r"(\d+) segments in a memory region", "RXE_RS_MAX_SEGMENTS", 1),
                                  (r"(\d+) MiB of a queue pair in the queues", "MAX_QUEUED", 1 << 20),
                                  (r"or (\d+) KiB while other", "MAX_QUEUED_SHARED", 1 << 10), (r"(\d+) packets of a queue pair", "MAX_DEFERRED", 1),
                                  (r"and (\d+) MiB of such packets", "MAX_BACKLOG", 1 << 20), (r"(\d+) page faults", "MAX_RUNNING", 1)):
            with self.subTest(name):
                defined = re.search(rf"#define {name}\s+(\w+)", driver())
                self.assertEqual(int(re.search(words, text)[1]) * unit, int(defined[1]) if defined else number(name))

    def test_user_interface(self):
        text = section("User interface beyond rdma-core")
        methods = re.findall(r"^\s(RXE_RS_METHOD_\w+) =", driver(), re.M)
        self.assertEqual(sorted(terms(text)), sorted(methods))
        exported = re.findall(r"\bEXPORT_SYMBOL(?:_GPL)?\((\w+)\)", driver())
        self.assertEqual(sorted(re.findall(r"``(\w+)\(\)``", text)), sorted(exported))

    def test_port(self):
        port = str(number("ROCE_UDP_PORT"))
        self.assertEqual(set(re.findall(r"UDP port,? (\d+)", GUIDE)), {port})

    def test_references_lead_to_sections(self):
        for title in re.findall(r"`([^`]+)`_", GUIDE):
            section(title)

    def test_headings_and_width(self):
        headings = re.findall(r"^\n([^\n]+)\n([=-]+)\n\n", GUIDE, re.M)
        self.assertGreater(len(headings), 10)
        for title, line in headings:
            self.assertEqual(len(title), len(line), title)
        long = [f"docs/rxe_rs.rst:{n}: {line}" for n, line in enumerate(GUIDE.splitlines(), 1) if len(line) > 80]
        self.assertEqual(long, [], "wrap them at 80")


class Readers(unittest.TestCase):
    """Tests of the functions above that read documents and sources."""

    def test_sections(self):
        text = "One\n===\n\n``a``, ``b``\n  Text.\n\nSub\n---\n\n``c``\n  Text.\n\nTwo\n===\n\n``d``\n  Text.\n"
        self.assertEqual(terms(section("One", text)), ["a", "b", "c"])
        self.assertEqual(terms(section("Two", text)), ["d"])
        with self.assertRaises(AssertionError):
            section("Three", text)

    def test_numbers(self):
        for expression, value in (("1 << 14", 16384), ("(1 << 18) - 2", 262142), ("0xff_ffff", 0xFFFFFF), ("u32::from(3)", 3), ("16 << 20", 16 << 20),
                                  ("Mtu::Mtu4096.bytes()", 4096)):
            with self.subTest(expression):
                self.assertEqual(number(expression), value)
        with self.assertRaises(AssertionError):
            number("NO_SUCH_CONSTANT")


class Links(unittest.TestCase):
    """The files, items and make targets that documents for contributors name exist."""

    NAMES = ("CONTRIBUTING.md", "UPSTREAM.md", "CHANGELOG.md")
    TARGETS = set(re.findall(r"^([\w-]+):", (TOP / "Makefile").read_text(), re.M))

    def test_paths(self):
        for name in self.NAMES:
            paths = re.findall(r"`((?:rxe_rs|uapi|tools|qemu|ktests|docs|\.ci)(?:/[\w./*-]*)?)[`\s]", (TOP / name).read_text())
            for path in paths:
                with self.subTest(name, path=path):
                    self.assertTrue(list(TOP.glob(path)), path)
        self.assertGreater(len(paths := re.findall(r"`rxe_rs/", (TOP / "UPSTREAM.md").read_text())), 20, paths)

    def test_files_of_the_map(self):
        """A file is named by its path in rxe_rs/ or in the clone, or, behind others of its folder, by the end of its path."""
        known = ["/" + name for name in files()]
        for name in ("rxe_rs/README.md", "rxe_rs/PERFORMANCE.md", "qemu/README.md"):
            named = re.findall(r"`([\w./-]*)(?:\{([\w,/]+)\})?([\w./-]*\.(?:rs|c|h|py|md|test))`", (TOP / name).read_text())
            self.assertGreater(len(named), 10, name)
            for path in {before + choice + behind for before, choices, behind in named for choice in choices.split(",")}:
                with self.subTest(name, path=path):
                    tail = "/" + path.removeprefix("../")
                    self.assertTrue(any(file.endswith(tail) for file in known), path)

    def test_scripts_are_on_the_map(self):
        text = (HERE / "README.md").read_text()
        apart = re.compile(r"qemu/(selftest\w*\.py|README\.md|(uml|lockdep)/\w+\.(txt|patch))$")
        for name in files():
            if name.startswith("qemu/") and not apart.match(name):
                with self.subTest(name):
                    self.assertIn(f"`{name.removeprefix('qemu/')}`", text)

    def test_places_of_the_map(self):
        """What is said to be in a file is defined there."""
        count = 0
        for name in ("rxe_rs/README.md", "rxe_rs/PERFORMANCE.md", "CONTRIBUTING.md"):
            for item, path in re.findall(r"`(\w+)` (?:in|of) `([\w/]+\.(?:rs|c))`", (TOP / name).read_text()):
                with self.subTest(name, item=item):
                    text = (TOP / ("" if path.startswith("rxe_rs/") else "rxe_rs") / path).read_text()
                    defined = rf"\b(fn|struct|enum|trait|const|static|type) {item}\b|^[\w *]*\b{item}\("
                    self.assertRegex(text, re.compile(defined, re.M), path)
                    count += 1
        self.assertGreater(count, 10)

    def test_targets(self):
        for name in self.NAMES:
            for target in re.findall(r"(?:`|^    )make ([a-z][\w-]*)", (TOP / name).read_text(), re.M):
                with self.subTest(name):
                    self.assertIn(target, self.TARGETS)

    def test_help_names_all_targets(self):
        known = (HERE / "help.txt").read_text()
        for target in self.TARGETS - {"all", "module", "setup", "help", "clippy", "fmt-check"}:
            with self.subTest(target):
                self.assertRegex(known, rf"\bmake (\w+ )?{target}\b")

    def test_upstream_names_all_c_files(self):
        text = (TOP / "UPSTREAM.md").read_text()
        helpers = text[text.index("## C helpers"):]
        named = re.findall(r"^\| `(\S+\.c)` \|", helpers, re.M)
        self.assertEqual(sorted(named), sorted(name for name in files() if name.startswith("rxe_rs/") and name.endswith(".c")))


class Maintainers(unittest.TestCase):
    """MAINTAINERS has the form that the kernel requires."""

    ORDER = "MRLSWQBCPTFXNK"

    @staticmethod
    def entries():
        text = (TOP / "MAINTAINERS").read_text().split("\n----------------\n")[1]
        return [entry.splitlines() for entry in re.split(r"\n{2,}", text.strip())]

    @staticmethod
    def matches(patterns):
        """The files that F: or X: lines select: the pattern of a folder ends with a slash, and `*` does not match a slash."""
        found = set()
        for pattern in patterns:
            for name in files():
                whole = name.startswith(pattern) if pattern.endswith("/") else fnmatch.fnmatch(name, pattern) and name.count("/") == pattern.count("/")
                if whole:
                    found.add(name)
        return found

    def test_form(self):
        entries = self.entries()
        self.assertGreater(len(entries), 1)
        titles = [title for title, *_ in entries]
        self.assertEqual(titles, sorted(titles))
        for title, *lines in entries:
            with self.subTest(title):
                for line in lines:
                    self.assertRegex(line, r"^[A-Z]:\t\S")
                tags = [line[0] for line in lines]
                self.assertEqual(tags, sorted(tags, key=self.ORDER.index))
                self.assertEqual(tags.count("S"), 1)
                self.assertTrue({"M", "L"} & set(tags))
                for tag in "FX":
                    values = [line[3:] for line in lines if line[0] == tag]
                    self.assertEqual(values, sorted(values))
                    for value in values:
                        self.assertTrue(self.matches([value]), value)

    def test_every_source_has_an_entry(self):
        covered = set()
        for _, *lines in self.entries():
            covered |= self.matches(line[3:] for line in lines if line[0] == "F") - self.matches(line[3:] for line in lines if line[0] == "X")
        sources = {name for name in files() if re.search(r"\.(rs|c|h|py|sh|test|suite|rst)$", name)}
        self.assertEqual(sources - covered, set())


def kernel_tree():
    """The prepared sources of the kernel."""
    shown = subprocess.run([HERE / "kernel.py", "show", *filter(None, [os.environ.get("KERNEL")])], check=True, capture_output=True, text=True).stdout
    return Path(re.search(r"^TREE=(.*)$", shown, re.M)[1])


class Explanations(unittest.TestCase):
    """What `rxectl explain` knows of the RDMA CM, which the sources of the driver do not name."""

    def test_events_of_the_rdma_cm(self):
        table = (TOP / "tools/rxectl/src/explain/cm_events.rs").read_text()
        entries = re.findall(r'name: "(RDMA_CM_EVENT_\w+)",\n\s*number: Some\((\d+)\),\n\s*also: &\[(.*?)\],', table)
        header = (kernel_tree() / "include/rdma/rdma_cm.h").read_text()
        names = re.findall(r"\b(RDMA_CM_EVENT_\w+)", re.search(r"enum rdma_cm_event_type \{(.*?)\};", header, re.S)[1])
        self.assertGreater(len(names), 15)
        self.assertEqual([(name, int(number)) for name, number, _ in entries], [(name, number) for number, name in enumerate(names)])
        messages = dict(re.findall(r'\[(RDMA_CM_EVENT_\w+)\]\s*= "([^"]+)"', (kernel_tree() / "drivers/infiniband/core/cma.c").read_text()))
        self.assertGreater(len(messages), 15)
        self.assertEqual({name: also for name, _, also in entries if also}, {name: f'"{text.strip()}"' for name, text in messages.items()})


class KernelConfig(unittest.TestCase):
    """rxe_rs/Kconfig, evaluated by the kernel's conf."""

    ENTRY = TOP / "rxe_rs/Kconfig"
    # The symbols of the architectures for which the module is built; a kernel has one of them.
    ARCHITECTURES = {"X86_64", "ARM64"}

    @classmethod
    def setUpClass(cls):
        cls.tree = kernel_tree()
        cls.symbols = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", "\n".join(re.findall(r"^\t(?:depends on|select|imply) (.*)$", cls.ENTRY.read_text(), re.M))))

    def test_symbols_exist(self):
        self.assertGreater(len(self.symbols), 5)
        known = set()
        for folder in ("arch/x86", "arch/arm64", "init", "lib", "net", "drivers/infiniband"):
            for path in (self.tree / folder).rglob("Kconfig*"):
                known |= set(re.findall(r"^\s*(?:menu)?config (\w+)$", path.read_text(), re.M))
        self.assertEqual(self.symbols - known, set())

    def test_kernel_has_what_it_asks_for(self):
        have = dict(re.findall(r"^CONFIG_(\w+)=(\S+)$", (self.tree / "include/config/auto.conf").read_text(), re.M))
        self.assertEqual({name for name in self.symbols - self.ARCHITECTURES if have.get(name) not in ("y", "m")}, set())
        self.assertEqual(sum(have.get(name) == "y" for name in self.ARCHITECTURES), 1)

    def configure(self, **without):
        """The value of the symbol RDMA_RXE_RS in a configuration with all symbols that it needs, changed by `without`."""
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            stub = "config MODULES\n\tbool\n\tmodules\n\tdefault y\n"
            stub += "".join(f'config {name}\n\ttristate "{name}"\n' for name in sorted(self.symbols))
            (folder / "Kconfig").write_text(f'mainmenu "test"\n{stub}source "{self.ENTRY}"\n')
            values = {**dict.fromkeys(self.symbols, "y"), "RDMA_RXE": "m", **without, "RDMA_RXE_RS": "m"}
            (folder / ".config").write_text("".join(f"CONFIG_{name}={value}\n" for name, value in values.items() if value != "n"))
            done = subprocess.run([self.tree / "scripts/kconfig/conf", "--olddefconfig", "Kconfig"], cwd=folder, capture_output=True, text=True,
                                  env={**os.environ, "KCONFIG_WARN_UNKNOWN_SYMBOLS": "1", "srctree": "."})
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            found = re.search(r"^CONFIG_RDMA_RXE_RS=(.)$", (folder / ".config").read_text(), re.M)
            return found and found[1]

    def test_choices(self):
        self.assertEqual(self.configure(), "m")
        self.assertEqual(self.configure(RDMA_RXE="n"), "m")
        selected = set(re.findall(r"^\tselect (\w+)$", self.ENTRY.read_text(), re.M))
        for name in self.ARCHITECTURES:
            with self.subTest(name):
                self.assertEqual(self.configure(**{name: "n"}), "m")
        self.assertIsNone(self.configure(**dict.fromkeys(self.ARCHITECTURES, "n")))
        for name in self.symbols - selected - self.ARCHITECTURES - {"RDMA_RXE"}:
            with self.subTest(name):
                self.assertIsNone(self.configure(**{name: "n"}))
        self.assertIsNone(self.configure(RDMA_RXE="y"))

    def test_preprocessor_needs_nothing_else(self):
        """The options without which the sources cannot be compiled are dependencies, or selected by one."""
        self.assertIn("INFINIBAND_ON_DEMAND_PAGING", self.symbols)
        self.assertIn("#ifndef CONFIG_HMM_MIRROR", driver())


class Style(unittest.TestCase):
    """.editorconfig agrees with the files and with the settings of the linters."""

    @staticmethod
    def sections(text=(TOP / ".editorconfig").read_text()):
        found = []
        for title, body in re.findall(r"^\[(.*)\]\n((?:(?!\[).*\n)*)", text, re.M):
            found.append((Style.globs(title.strip()), dict(re.findall(r"^(\w+) = (\S+)$", body, re.M))))
        return found

    @staticmethod
    def globs(title):
        braces = re.search(r"\{([^{}]*)\}", title)
        if not braces:
            return [title]
        return [glob for one in braces[1].split(",") for glob in Style.globs(title[:braces.start()] + one + title[braces.end():])]

    def rules(self, name):
        rules = {}
        for globs, body in self.sections():
            if any(fnmatch.fnmatch(name if "/" in glob else name.rsplit("/", 1)[-1], glob.replace("**", "*")) for glob in globs):
                rules |= body
        return rules

    def test_braces(self):
        self.assertEqual(self.globs("{a,b}/*.{c,h}"), ["a/*.c", "a/*.h", "b/*.c", "b/*.h"])
        self.assertEqual(self.rules("rxe_rs/x.rs")["indent_style"], "space")
        self.assertEqual(self.rules("qemu/x.sh")["indent_style"], "tab")
        self.assertEqual(self.rules("qemu/x.py")["indent_style"], "space")

    def test_files_follow(self):
        for name in files():
            try:
                text = (TOP / name).read_text()
            except UnicodeDecodeError:
                continue
            rules = self.rules(name)
            with self.subTest(name):
                self.assertTrue(not text or text.endswith("\n"), "no newline at the end")
                self.assertNotIn("\r\n", text)
                if rules["trim_trailing_whitespace"] == "true":
                    self.assertIsNone(re.search(r"[ \t]$", text, re.M), "blanks at the end of a line")
                if name.endswith((".rs", ".py")):
                    self.assertEqual(rules["indent_style"], "space")
                if name.endswith(".rs"):
                    self.assertIsNone(re.search(r"^ *\t", text, re.M), "a tab in the indentation")
                if name.endswith(".py"):
                    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
                    self.assertEqual([token.start for token in tokens if token.type == tokenize.INDENT and "\t" in token.string], [])
                if name.endswith((".c", ".h", ".sh")):
                    self.assertEqual(rules["indent_style"], "tab")
                    self.assertIsNone(re.search(r"^ {8}", text, re.M), "indented by spaces")

    @staticmethod
    def too_long(name, text):
        """The comments of a Rust file above 100 columns, and the text of a Markdown file above 140, without tables and code."""
        rust, fenced, indented = name.endswith(".rs"), False, False
        before = ""
        for number, line in enumerate(text.splitlines(), 1):
            fenced ^= line.lstrip(" /!").startswith("```")
            # Four blanks begin code after a blank line, but not in a list.
            indented = line.startswith("    ") and (indented or not before.strip()) and not re.match(r" *(- |\d+\. )", line)
            exempt = fenced or (not re.match(r"\s*//", line) if rust else indented or line.lstrip().startswith("|"))
            if len(line) > (100 if rust else 140) and " " in line.strip(" -/!") and not exempt:
                yield f"{name}:{number}: {len(line)} columns"
            before = line

    def test_too_long(self):
        long = "word " * 40
        for name, text in (("a.rs", f"    // {long}"), ("a.rs", f"/// {long}"), ("a.md", long), ("a.md", f"- item\n\n  {long}")):
            self.assertEqual(len(list(self.too_long(name, f"one\n\n{text}\n"))), 1, text)
        for name, text in (("a.rs", f'    let a = "{long}";'), ("a.rs", f"/// ```text\n/// {long}\n/// ```"), ("a.md", f"| {long} |"), ("a.rs", "// " + "w" * 120),
                           ("a.md", f"    {long}"), ("a.md", f"```\n{long}\n```"), ("a.md", "- " + "w" * 150)):
            self.assertEqual(list(self.too_long(name, f"one\n\n{text}\n")), [], text)

    def test_widths_of_comments_and_text(self):
        # The first librxe_rs is left as it was.
        names = [name for name in files() if name.endswith((".rs", ".md")) and not name.startswith("ktests/old_library/")]
        self.assertEqual([line for name in names for line in self.too_long(name, (TOP / name).read_text())], [], "wrap them")

    def test_widths(self):
        rust = tomllib.loads((TOP / "rustfmt.toml").read_text()).get("max_width", 100)
        self.assertEqual(self.rules("rxe_rs/x.rs")["max_line_length"], str(rust))
        # The default of checkpatch, which applies it to whole files only with --strict.
        lint = (HERE / "lint.sh").read_text()
        self.assertIn("--strict -f", lint)
        self.assertNotIn("--max-line-length", lint)
        self.assertEqual(self.rules("rxe_rs/x.c")["max_line_length"], "100")


if __name__ == "__main__":
    unittest.main()
