# SPDX-License-Identifier: GPL-2.0
"""Tests of ktests/vm/lib/page.py, which finds the code blocks of the documentation for docs.test; and that each page says what is done with
each block."""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
LIB = CLONE / "ktests/vm/lib"
sys.path.insert(0, str(LIB))
import page  # noqa: E402

PAGES = [CLONE / "README.md", CLONE / "tools/README.md", *sorted((CLONE / "docs").glob("*.md")), CLONE / "docs/rxe_rs.rst"]
SAMPLE = """# Title

<!-- run: a b -->

    first
      indented

    behind an empty line

<!-- prints -->

    a … of    it

Text
    that continues, and is no block.

<!-- serve: b cm -->
```
server $x
```

<!-- not run: because -->

    nothing
"""


class Blocks(unittest.TestCase):
    def test_found(self):
        found = [(block.kind, block.words, block.line, block.lines) for block in page.blocks(SAMPLE)]
        self.assertEqual(found, [
            ("run", "a b", 5, ["first", "  indented", "", "behind an empty line"]),
            ("prints", "", 12, ["a … of    it"]),
            ("serve", "b cm", 18, ["server $x"]),
            ("not run", "because", 24, ["nothing"]),
        ])

    def test_calls(self):
        """The shell gets the text of the blocks as it is."""
        functions = "; ".join(f'{name}_block() {{ printf "%s|" {name} "$@"; }}' for name in ("run", "serve", "prints"))
        calls = page.calls("<!-- run: a -->\n\n    echo '$x' \"\\n\"\n" + SAMPLE)
        said = subprocess.run(["bash", "-c", f"{functions}; {'; '.join(calls)}"], check=True, stdout=subprocess.PIPE, text=True).stdout
        self.assertEqual(said, "run|3|a|echo '$x' \"\\n\"|run|8|a b|first\n  indented\n\nbehind an empty line|prints|15||a … of    it|"
                               "serve|21|b cm|server $x|")

    def refused(self, text, why):
        with self.assertRaisesRegex(page.Malformed, why):
            page.blocks(text)

    def test_malformed(self):
        self.refused("Text\n\n    block\n", "line 3: nothing says")
        self.refused("```\nblock\n```\n", "line 1: nothing says")
        self.refused("<!-- run: a -->\nText\n\n    block\n", "line 2: .*belongs to no block")
        self.refused("<!-- run: a -->\n", "at the end")
        self.refused("<!-- run: c -->\n\n    block\n", "not understood")
        self.refused("<!-- serve: a -->\n\n    block\n", "not understood")
        self.refused("<!-- not run: -->\n\n    block\n", "not understood")
        self.refused("<!-- prints -->\n\n    block\n", "no block that is run")
        self.refused("<!-- not run: x -->\n\n    y\n\n<!-- prints -->\n\n    block\n", "no block that is run")
        # One comment is for one block.
        self.refused("<!-- run: a -->\n\n    block\n\nText\n\n    block\n", "line 7: nothing says")


    def test_block_of(self):
        """Tests get the one block that begins with a text."""
        self.assertEqual(page.block_of(SAMPLE, "noth"), ["nothing"])
        self.assertEqual(page.block_of(SAMPLE, "server"), ["server $x"])
        for text, start in ((SAMPLE, "a …"), (SAMPLE, "thing"), (SAMPLE + "\n<!-- not run: because -->\n\n    nothing\n", "nothing")):
            with self.subTest(start), self.assertRaisesRegex(page.Malformed, "[02] blocks begin with"):
                page.block_of(text, start)

    def test_program_block(self):
        command = [sys.executable, LIB / "page.py", "--block", CLONE / "docs/containers.md", "cdiVersion:"]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        self.assertEqual((said[0], said[-1]), ("cdiVersion: 0.5.0", "    - path: /dev/infiniband/rdma_cm"))


class RestructuredText(unittest.TestCase):
    SAMPLE = """Title
=====

Text::no block.

.. run: a

This is code::

  first
    indented

  behind an empty line

``a``
    A definition, and no block.

.. not run: because

And this, too::


    nothing
"""

    def test_found(self):
        found = [(block.kind, block.words, block.line, block.lines) for block in page.blocks(page.from_rst(self.SAMPLE))]
        self.assertEqual(found, [("run", "a", 10, ["first", "  indented", "", "behind an empty line"]), ("not run", "because", 23, ["nothing"])])

    def test_malformed(self):
        for text, why in (("Text::\n\n  block\n", "line 3: nothing says"), (".. run: a\n\nText\n", "at the end"),
                          (".. run: a\n\n.. run: a\n\nText::\n\n  block\n", "line 3: .*belongs to no block"),
                          (".. run: a\n\nText::\n\n  block\n\nText::\n\n  block\n", "line 9: nothing says")):
            with self.subTest(text), self.assertRaisesRegex(page.Malformed, why):
                page.blocks(page.from_rst(text))


class Printed(unittest.TestCase):
    OUT = "one   two three\nfour (5) six\nseven\n"

    def test_lines(self):
        for lines in (["one two three"], ["two"], ["four (5)", "seven"], ["o…e two"], ["four … six", "", "seven"]):
            self.assertIsNone(page.missing(lines, self.OUT), lines)

    def test_missing(self):
        for lines in (["eight"], ["seven", "four (5)"], ["one…six"], ["three four"], ["(6)"]):
            self.assertIsNotNone(page.missing(lines, self.OUT), lines)

    def test_program(self):
        """Its status and what it says."""
        for text, said in (("two", ""), ("two\nnothing", "not printed: nothing\n")):
            file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "out"
            file.write_text(self.OUT)
            done = subprocess.run([sys.executable, LIB / "page.py", "--printed", file], input=text, stderr=subprocess.PIPE, text=True)
            self.assertEqual((done.returncode, done.stderr), (int(bool(said)), said))


class Pages(unittest.TestCase):
    def test_each_block(self):
        for path in PAGES:
            with self.subTest(path.name):
                page.blocks(page.read(path))

    def test_each_page_is_run(self):
        """docs.test runs each page that has blocks to run, and no other."""
        called = re.findall(r"\bpage (\S+\.(?:md|rst))(?:; \}|$)", (CLONE / "ktests/vm/docs.test").read_text(), re.M)
        self.assertEqual(sorted(called), sorted(str(path.relative_to(CLONE)) for path in PAGES if page.calls(page.read(path))))
        self.assertGreaterEqual(len(called), 3)

    def test_segments_compile(self):
        """The calls that README.md shows for segments."""
        (block,) = [block for block in page.blocks(page.read(CLONE / "README.md")) if "rxe_rs_mr_add(" in block.lines[0]]
        code = ["#include <infiniband/verbs.h>", "#include <rxe_rs_verbs.h>", "int f(struct ibv_mr *mr, void *addr, size_t length, uint64_t iova) {",
                "struct rxe_rs_mr_state state; int ret;", *block.lines, "return ret; }"]
        done = subprocess.run(["gcc", "-Wall", "-Werror", "-fsyntax-only", f"-I{CLONE}/tools/librxe_rs/include", f"-I{CLONE}/uapi", "-x", "c", "-"],
                              input="\n".join(code), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_links(self):
        """Links between pages lead to a file, and to a heading of it."""
        links = 0
        for path in PAGES:
            for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
                if "://" in target:
                    continue
                name, _, anchor = target.partition("#")
                other = path.parent / (name or path.name)
                self.assertTrue(other.exists(), f"{path.name}: {target}")
                headings = re.findall(r"^#+ (.*)$", other.read_text(), re.M)
                if anchor:
                    self.assertIn(anchor, [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings], path.name)
                links += 1
        self.assertGreater(links, 5)
