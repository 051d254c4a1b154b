#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Checks that the documentation of public functions has the required sections.

qemu/docs.py    prints what is missing, a line each; status 1 if there is anything

The section `# Context` of functions of rxe_rs/kapi says in which contexts they may be called. A section of the trait, the impl block, the
type or the module (`//!`) applies to all functions in it that do not have their own; the innermost one applies. The section `# Errors` of
functions of all three crates that return a Result says when it is an error; in the driver, of which nothing is public outside, those of
functions that other modules can call: `pub(crate)` and `pub(super)`. A comment of a field or a function is not just a unit (`Bytes.`): it
says what is counted. The sections of a trait apply to the functions of
`impl Trait for Type`.
"""
import re
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent

PUBLIC = ("pub ",)
SHARED = ("pub ", "pub(crate) ", "pub(super) ")

# A folder, the sections that its functions need, the visibility of these functions, and the parts of the folder that are not checked.
FOLDERS = (
    ("rxe_rs/kapi", ("Context", "Errors"), PUBLIC, ("bindings.rs", "kunit.rs")),
    ("rxe_rs/proto", ("Errors",), PUBLIC, ("tests/", "sim/", "sim.rs", "fuzz/", "examples/")),
    ("rxe_rs", ("Errors",), SHARED, ("kapi/", "proto/")),
)

# What a `# Context` section begins with. "Any context" includes hard interrupts and callers with interrupts off.
CONTEXTS = re.compile(r"(Any context|Process context|Softirq|As (of|for) |As \[|Within |The context of )")

UNIT = re.compile(r"\s*/// (In )?(?i:(bytes|bits|packets|pages|entries|WQEs|CQEs|[KMG]iB|(nano|micro|milli)?seconds|[nµm]?s|[MG]bit/s))\b[^a-z]*$")
FUNCTION = re.compile(r'^(\s*)(pub(?:\([^)]*\))? )?((?:const |async |unsafe |extern "C" )*)fn (\w+)')
BLOCK = re.compile(r"^(\s*)(pub(?:\([^)]*\))? )?(?:unsafe )?(impl\b|trait\b|mod\b|macro_rules!)\s*(.*)$")
TYPE = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:struct|enum|union|type) (\w+)")


class Function:
    """A public function, with the documentation that applies to it from the innermost to the outermost."""

    def __init__(self, line, name, signature, docs):
        self.line, self.name, self.signature, self.docs = line, name, signature, docs

    def returns_result(self):
        return re.search(r"->\s*(?:\w+::)*Result\b", self.signature) is not None


def sections(doc):
    """The sections of a documentation comment by their headings; that before the first heading by `None`."""
    found, title = {}, None
    for line in doc:
        heading = re.match(r"#+ (.+)$", line)
        if heading:
            title = heading[1]
        found[title] = f"{found.get(title, '')} {'' if heading else line}".strip()
    return found


def implemented(header):
    """The trait and the type in the header of an `impl` block; the trait is `None` in an inherent one."""
    depth, at = 0, 0
    if header.startswith("<"):
        for at, letter in enumerate(header):
            depth += (letter == "<") - (letter == ">" and header[at - 1] != "-")
            if depth == 0:
                break
        header = header[at + 1:]
    of = re.match(r"\s*(?:(.+?) for )?(?:&'?\w* ?)?(?:\w+::)*(\w+)", header)
    return (of[1], of[2]) if of else (None, "")


def functions(text, visible=PUBLIC):
    """The functions of a file that have one of the visibilities, and are in traits and modules that have."""
    lines = text.splitlines()
    module = [re.sub(r"^//! ?", "", line) for line in lines if line.startswith("//!")]
    types, blocks, doc = {}, [], []
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        bare = line.strip()
        if bare.startswith("///"):
            doc.append(re.sub(r"^/// ?", "", bare))
            continue
        if bare.startswith("#["):
            while bare.count("[") > bare.count("]") and number < len(lines):
                bare += lines[number].strip()
                number += 1
            continue
        if bare.startswith("//"):
            continue
        while blocks and line == f"{blocks[-1][0]}}}":
            blocks.pop()
        kind = TYPE.match(line)
        if kind:
            types[kind[1]] = doc
        block, function = BLOCK.match(line), FUNCTION.match(line)
        if block and not bare.endswith((";", "}")):
            indent, public, what, header = block.groups()
            while "{" not in header and number < len(lines):
                header += " " + lines[number].strip()
                number += 1
            blocks.append((indent, what, public in visible, header, doc))
        elif function:
            start, signature = number, line
            while not re.search(r"[{;]\s*$|[{].*}\s*$", signature) and number < len(lines):
                signature += " " + lines[number].strip()
                number += 1
            docs, public = [doc], function[2] in visible
            for _, what, block_public, header, block_doc in reversed(blocks):
                docs.append(block_doc)
                if what == "trait":
                    public = block_public
                elif what == "impl":
                    trait, of = implemented(header)
                    public &= trait is None
                    docs.append(types.get(of, []))
                elif what == "mod":
                    public &= block_public
                else:
                    public = False
            if public:
                yield Function(start, function[4], signature, [*docs, module])
        doc = []


def missing(name, text, wanted, visible=PUBLIC):
    """The missing sections of the functions of a file."""
    for function in functions(text, visible):
        where = f"{name}:{function.line}: {function.name}"
        found = [sections(doc) for doc in function.docs]
        if "Context" in wanted:
            nearest = next((each["Context"] for each in found if "Context" in each), None)
            if nearest is None:
                yield f"{where} has no `# Context`, nor has its trait, impl block, type or module"
            elif not CONTEXTS.match(nearest):
                yield f"{where}: the section `# Context` does not begin with a context: {nearest[:60]!r}"
        if "Errors" in wanted and function.returns_result() and not found[0].get("Errors"):
            yield f"{where} returns a Result and has no `# Errors`"


def bare_units(name, text):
    """The documentation comments that consist of a unit, and do not say of what."""
    lines = ["", *text.splitlines(), ""]
    for number in range(1, len(lines) - 1):
        around = lines[number - 1], lines[number + 1]
        if UNIT.match(lines[number]) and not any(line.strip().startswith("///") for line in around):
            yield f"{name}:{number}: the comment is only a unit: {lines[number].strip()[4:]}"


def sources(folder, without):
    """The paths and texts of the sources of a crate."""
    for path in sorted((CLONE / folder).rglob("*.rs")):
        part = str(path.relative_to(CLONE / folder))
        if not part.startswith(without):
            yield f"{folder}/{part}", path.read_text()


def all_missing():
    for folder, wanted, visible, without in FOLDERS:
        for name, text in sources(folder, without):
            yield from missing(name, text, wanted, visible)
    for folder in ("rxe_rs", "tools"):
        for name, text in sources(folder, ("target/",)):
            yield from bare_units(name, text)


def main():
    wrong = list(all_missing())
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
