#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Checks that citations of the InfiniBand Architecture Specification in the sources, the list of rules and the tests agree.

qemu/citations.py    prints what is wrong, a line each; status 1 if there is anything

A citation is the word IBTA and the number of a section, in a comment of a source file: `IBTA 9.7.5.1.2`. The list docs/ibta-rules.md
has a row for each rule: the section, the rule in other words, the places that implement it, the tests of it. A place is
`FILE: ITEM`, with the path of the file in rxe_rs/; the comment or the body of the item must cite the section. `FILE` alone is the comment
at the head of the file, for files of proto/wire only. A test is `file::name` on the host (below rxe_rs/) or `subject.name` in a machine.
"""
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

from vm.discovery import all_tests

CLONE = Path(__file__).resolve().parent.parent
LIST = "docs/ibta-rules.md"

SECTION = r"(?:A1[4679]|7|9|10|11|13|14|16)(?:\.[1-9]\d?)*"
STATEMENT = r"[Co](?:A?\d{1,2})-\d+(?:\.\d+)*"
CITATION = re.compile(rf"\bIBTA ({SECTION})(?![.\d]*\d)")
# Other forms of citations, and those of sections that SECTION does not match.
OTHER_FORMS = re.compile(rf"\bIBTA\b(?! {SECTION}(?![.\d]*\d))|(?<!IBTA )\bA1[4679]\.\d|\bannex A1[4679]\b", re.I)
WITHOUT_CODE = re.compile(r"(?:not implemented|does not apply): \S.*")

Item = namedtuple("Item", "name first last")
Row = namedtuple("Row", "line section rule places reason tests")


def blanked(text):
    """Rust source with comments and literals replaced by blanks; line breaks are kept."""
    pattern = re.compile(r"""//[^\n]*|/\*.*?\*/|\b[bc]?r(\#*)".*?"\1|"(?:\\.|[^"\\])*"|'(?:\\[^\n']+|[^\\\n'])'""", re.S)
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


ITEM = re.compile(r"""^[ \t]*(?:pub(?:\([^)]*\))?\s+)?(?:(?:const|async|unsafe|extern(?:\s+)?)\s+)*
                      (fn|struct|enum|union|trait|mod|type|const|static|macro_rules!|impl)\b\s*([A-Za-z_]\w*)?""", re.M | re.X)


def end_of(code, start):
    """The position of the end of the item that begins at `start`: its closing brace or its semicolon."""
    depth, braces = 0, 0
    for at in range(start, len(code)):
        letter = code[at]
        if letter == "{":
            braces += 1
        elif letter == "}":
            braces -= 1
            if braces <= 0 and depth == 0:
                return at
        elif letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == ";" and depth == 0 and braces == 0:
            return at
    return len(code) - 1


def type_of(head):
    """The type that an `impl` is for; `head` is the text between `impl` and the brace."""
    head = head.replace("->", "  ")
    while re.search(r"<[^<>]*>", head):
        head = re.sub(r"<[^<>]*>", "", head)
    head = re.split(r"\bwhere\b", head)[0]
    names = re.findall(r"[A-Za-z_]\w*", re.split(r"\bfor\b", head)[-1])
    return names[-1] if names else ""


def comment_start(lines, first, marks):
    """The number, from 1, of the first line of the comment and the attributes above line `first`."""
    at = first - 1
    while at > 0:
        line = lines[at - 1].strip()
        if line.endswith(")]") and not line.startswith(("#[", "//")):
            while at > 1 and not lines[at - 1].strip().startswith("#["):
                at -= 1
            line = lines[at - 1].strip()
        if not line.startswith(marks):
            break
        at -= 1
    return at + 1


def rust_items(text):
    """The items of a Rust source with their lines, comments included; those of an `impl` are named `Type::item`."""
    code, lines = blanked(text), text.splitlines()
    found = []
    for match in ITEM.finditer(code):
        kind, name = match[1], match[2]
        end = end_of(code, match.end(1))
        if kind == "impl":
            name = type_of(code[match.end(1):code.find("{", match.end(1))])
        if name:
            found.append((kind, name, match.start(1), end))
    items = []
    for kind, name, start, end in found:
        around = [other for other in found if other[2] < start and end < other[3] and other[0] in ("impl", "trait", "mod")]
        path = "::".join([*(other[1] for other in sorted(around, key=lambda other: other[2])), name])
        first = code.count("\n", 0, start) + 1
        items.append(Item(path, comment_start(lines, first, ("//", "#[")), code.count("\n", 0, end) + 1))
    return items


def c_items(text):
    """The functions of a C source in kernel style."""
    lines, items = text.splitlines(), []
    for match in re.finditer(r"^(?!static const |typedef )[a-z][\w \t*]*?\b(\w+)\([^;{}]*\)\n\{", text, re.M):
        first = text.count("\n", 0, match.start()) + 1
        last = next((n for n in range(first, len(lines) + 1) if lines[n - 1].startswith("}")), len(lines))
        items.append(Item(match[1], comment_start(lines, first, ("/*", "*", "//")), last))
    return items


def items_of(name, text):
    return rust_items(text) if name.endswith(".rs") else c_items(text)


def head_of(text):
    """The number of the last line of the comment at the head of a file."""
    last = 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("///") or line.strip() and not line.strip().startswith(("//", "/*", "*")):
            break
        if line.strip():
            last = number
    return last


def citations(text):
    """The citations of a file: pairs of line number and section."""
    return [(number, section) for number, line in enumerate(text.splitlines(), 1) for section in CITATION.findall(line)]


def key_of(section):
    """The sort key of a section: chapters by number, then annexes."""
    return [(part.startswith("A"), int(part.lstrip("A"))) for part in section.split(".")]


def names_in(cell):
    """The names in backticks in a cell, or None if it has anything else."""
    return re.findall(r"`([^`]+)`", cell) if re.fullmatch(r"(?:`[^`]+`(?:, (?=`)|$))*", cell) else None


def rows_of(text):
    """The rows of the list, and errors in their form."""
    rows, wrong = [], []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not line.startswith("| ") or cells[0] == "section":
            continue
        place = f"{LIST}:{number}"
        if len(cells) != 4 or not cells[1]:
            wrong.append(f"{place}: a row must have four columns: section, rule, places, tests")
            continue
        numbers = re.fullmatch(rf"({SECTION})(?:, {STATEMENT})*", cells[0])
        if not numbers:
            wrong.append(f"{place}: {cells[0]} is not a section, which compliance statements may follow")
            continue
        reason = WITHOUT_CODE.fullmatch(cells[2])
        places, tests = [] if reason else names_in(cells[2]), names_in(cells[3])
        if places is None or tests is None or not (places or reason):
            wrong.append(f"{place}: names must be in backticks and separated by commas; a rule without a place needs a reason")
            continue
        rows.append(Row(number, numbers[1], cells[1], [tuple(re.split(r": ?", name, maxsplit=1)) for name in places], reason, tests))
    return rows, wrong


def wrong_order(rows):
    for before, after in zip(rows, rows[1:]):
        if key_of(after.section) < key_of(before.section):
            yield f"{LIST}:{after.line}: {after.section} belongs above {before.section}"


def wrong_tests(rows, host, machine):
    for row in rows:
        if row.places and not row.tests:
            yield f"{LIST}:{row.line}: {row.section} is implemented, but names no test"
        for test in row.tests:
            if test not in (host if "::" in test else machine):
                yield f"{LIST}:{row.line}: there is no test {test}"


def spans(place, sources):
    """The ranges of lines of a place; empty if it does not exist."""
    name, *item = place
    text = sources.get(name)
    if text is None:
        return []
    if not item:
        return [(1, head_of(text))]
    return [(found.first, found.last) for found in items_of(name, text) if found.name == item[0]]


def wrong_places(rows, sources):
    """Places that do not exist or do not cite their section, and citations that the list does not have."""
    listed = {}
    for row in rows:
        for place in row.places:
            found = spans(place, sources)
            if not found:
                yield f"{LIST}:{row.line}: there is no {': '.join(place)}"
                continue
            if len(place) == 1 and not place[0].startswith("proto/wire/"):
                yield f"{LIST}:{row.line}: name the item of {place[0]} that implements the rule"
            listed.setdefault((place[0], row.section), []).extend(found)
            cited = [number for number, section in citations(sources[place[0]]) if section == row.section]
            if not any(first <= number <= last for first, last in found for number in cited):
                yield f"{LIST}:{row.line}: {': '.join(place)} does not cite IBTA {row.section}"
    for name, text in sources.items():
        for number, section in citations(text):
            if not any(first <= number <= last for first, last in listed.get((name, section), [])):
                yield f"rxe_rs/{name}:{number}: {LIST} has no row for IBTA {section} in this place"


def wrong_forms(texts):
    for name, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            if OTHER_FORMS.search(line):
                yield f"rxe_rs/{name}:{number}: a citation must be `IBTA` and the section, on one line"


def unlisted(rows, tests):
    """Citations in tests of sections that the list does not have."""
    sections = {row.section for row in rows}
    for name, text in tests.items():
        for number, section in citations(text):
            if section not in sections:
                yield f"rxe_rs/{name}:{number}: {LIST} has no row for IBTA {section}"


def check(text, sources, tests, host, machine):
    """Errors in a list and in the files to which it refers: texts by their paths in rxe_rs/, names of tests."""
    rows, wrong = rows_of(text)
    return [*wrong, *wrong_order(rows), *wrong_places(rows, sources), *wrong_tests(rows, host, machine),
            *unlisted(rows, tests), *wrong_forms({**sources, **tests})]


def tree():
    """The texts of the module's sources and of its tests, by their paths in rxe_rs/."""
    out = subprocess.run(["git", "-C", CLONE / "rxe_rs", "ls-files", "-coz", "--exclude-standard"], check=True, stdout=subprocess.PIPE, text=True).stdout
    sources, tests = {}, {}
    for name in out.split("\0"):
        path = CLONE / "rxe_rs" / name
        if path.suffix in (".rs", ".c", ".h") and path.exists():
            is_test = name.startswith(("proto/tests/", "proto/sim", "proto/fuzz/", "proto/examples/"))
            (tests if is_test else sources)[name] = path.read_text()
    return sources, tests


def host_tests(texts):
    """The names of the tests in Rust files. A test in a folder of tests has the name of the folder as well, as in SECURITY.md."""
    found = set()
    for name, text in texts.items():
        files = {Path(name).stem, Path(name).parent.name} - {"tests"}
        for test in re.findall(r"#\[test\]\s*(?:(?:#\[[^\]]*\]|//[^\n]*)\s*)*fn (\w+)", text):
            found |= {f"{file}::{test}" for file in files}
    return found


def findings():
    sources, tests = tree()
    machine = {test.name for test in all_tests()}
    return check((CLONE / LIST).read_text(), sources, tests, host_tests({**sources, **tests}), machine)


def main():
    wrong = findings()
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
