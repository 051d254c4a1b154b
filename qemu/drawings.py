#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Generates the drawings of rxe_rs/README.md, as Mermaid text, from the sources.

qemu/drawings.py          writes them to the page
qemu/drawings.py --check  status 1 if one of them is out of date

`layers` shows the crates with their modules: those of the driver on the floors of structure.py, each of which may import from the floors
below, with a dashed arrow for each import upwards, those of the other crates with an arrow for each import. `packet` shows the path of
docs/walk.md. `upwards` is not a drawing but the table of the imports upwards, with the reasons.
"""
import re
import sys
from pathlib import Path

import structure
import walk

CLONE = Path(__file__).resolve().parent.parent
PAGE = CLONE / "rxe_rs/README.md"
KERNEL = "kernel"


def files_of(crate):
    """Text of a crate's modules that are in the kernel module."""
    return {module: text for module, text in structure.files_of(crate).items() if module.split("/")[0] != "sim"}


def public_modules(root):
    """The public modules of a crate, by its root file, that are in the kernel module."""
    return [name for gate, name in re.findall(r"^(#\[cfg\(.*\n)?pub mod (\w+);", root, re.M) if not gate]


def uses(text, name):
    return re.search(rf"\buse {name}\b", re.sub(r"//[^\n]*", "", text)) is not None


def module_imports(files, modules):
    """Pairs of a module and another module of the crate that it imports."""
    found = set()
    for name, text in files.items():
        own = name.split("/")[0]
        for path in structure.imports(text, {module: "" for module in modules}):
            if own in modules and path != own:
                found.add((own, path))
    return found


def reaches(edges, start, end):
    """True if there is a path of at least one edge from start to end."""
    seen, todo = set(), [start]
    while todo:
        at = todo.pop()
        ahead = {other for one, other in edges if one == at} - seen
        seen |= ahead
        todo += ahead
    return end in seen


def reduced(edges):
    """The transitive reduction of the edges, in which edges of cycles are kept."""
    left = set(edges)
    for edge in sorted(edges):
        if not reaches(edges, edge[1], edge[0]) and reaches(left - {edge}, *edge):
            left.remove(edge)
    return sorted(left)


def layers():
    """The lines of the drawing of crates, their modules and imports."""
    yield "flowchart TB"
    yield '    subgraph rxe_rs["rxe_rs: the driver, without unsafe"]'
    floors = list(enumerate(structure.FLOORS[structure.DRIVER]))[::-1]
    for number, names in floors:
        yield f'        floor{number}["{", ".join(names)}"]'
    for (above, _), (below, _) in zip(floors, floors[1:]):
        yield f"        floor{above} --> floor{below}"
    for low, high, *_ in structure.UPWARDS:
        floor, above = (structure.floor_of(structure.DRIVER, module)[0] for module in (low, high))
        yield f'        floor{floor} -. "{low} to {high}" .-> floor{above}'
    yield "    end"
    for crate, title in (("rxe_proto", "the protocol engine, without unsafe"), ("rxe_kapi", "abstractions of the kernel")):
        files = files_of(crate)
        modules = public_modules(files[crate])
        edges = reduced(module_imports(files, modules))
        yield f'    subgraph {crate}["{crate}: {title}"]'
        for module in modules:
            yield f'        {crate}_{module}["{module}"]'
        for one, other in edges:
            yield f"        {crate}_{one} --> {crate}_{other}"
        yield "    end"
    yield f'    {KERNEL}["the kernel crate, C"]'
    for crate in structure.FOLDERS:
        for other in (*structure.FOLDERS, KERNEL):
            if other != crate and any(uses(text, other) for text in files_of(crate).values()):
                yield f"    {crate} --> {other}"


def packet(page):
    """The lines of the drawing of the paths in docs/walk.md."""
    yield "sequenceDiagram"
    yield f"    participant {KERNEL} as the kernel"
    yield from (f"    participant {crate}" for crate in ("rxe_kapi", "rxe_rs", "rxe_proto"))
    before = {}
    for title, steps in walk.steps(page).items():
        yield f"    Note over {KERNEL},rxe_proto: {title}"
        for step in steps:
            before[step.number] = step
            if step.on_path:
                caller = before.get(step.caller.split()[0])
                while caller and not caller.on_path:
                    caller = before.get(caller.caller.split()[0])
                yield f"    {caller.crate() if caller else KERNEL}->>{step.crate()}: {step.number} {step.function}"


def upwards():
    """The lines of the table of imports upwards."""
    yield "| module | imports | because | without it |"
    yield "|---|---|---|---|"
    yield from (f"| `{low}` | `{high}` | {reason} | {otherwise} |" for low, high, reason, otherwise in structure.UPWARDS)


def drawn(text, drawings):
    """The page with new drawings and tables. Raises ValueError unless it has exactly one place for each."""
    for name, lines in drawings.items():
        place = re.compile(rf"(<!-- qemu/drawings.py: {name} -->\n)(.*?)(<!-- end of (?:the drawing|the table) -->\n)", re.S)
        if len(place.findall(text)) != 1:
            raise ValueError(f"rxe_rs/README.md must have the comments around the drawing {name} exactly once")
        block = "".join(f"{line}\n" for line in lines)
        if not lines[0].startswith("|"):
            block = f"```mermaid\n{block}```\n"
        text = place.sub(lambda found: found[1] + block + found[3], text)
    return text


def current():
    return {"layers": list(layers()), "upwards": list(upwards()), "packet": list(packet(walk.PAGE.read_text()))}


def main():
    old = PAGE.read_text()
    new = drawn(old, current())
    if sys.argv[1:] == ["--check"]:
        if new != old:
            sys.exit("rxe_rs/README.md: a drawing is out of date; run qemu/drawings.py")
    else:
        PAGE.write_text(new)


if __name__ == "__main__":
    main()
