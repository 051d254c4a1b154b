#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The code blocks of a page of the documentation, and how they are run in two machines.

page.py FILE             prints a call of a shell function of docs.test for each block: run_block, serve_block, prints_block
page.py --printed FILE   checks that FILE has the lines of standard input, in this order
page.py --block FILE START   prints the block that begins with START, for tests that use it in another way

A comment in the lines above a block says what is done with it:

    <!-- run: a -->          it is run on host a; `a b`: on a, and then on b
    <!-- serve: b cm -->     it is a server on host b, which listens with the RDMA CM, or on a TCP port; the next block is the client
    <!-- prints -->          lines that the block before it prints; … stands for any characters, and spaces for any white space
    <!-- not run: why -->    it is not run

A block is indented by four spaces or between fences. In reStructuredText (a FILE *.rst) a paragraph that ends with `::` precedes it, and above
that paragraph is the comment, `.. run: a`.
"""
import re
import shlex
import sys

KINDS = "run|serve|prints|not run"
MARK = re.compile(rf"<!--\s*({KINDS})\b:?\s*(.*?)\s*-->$")
RST_MARK = re.compile(rf"\.\.\s+({KINDS})\b:?\s*(.*?)\s*$")


class Malformed(Exception):
    """A page with a block of which nothing says what is done with it."""


class Block:
    """A code block: what is done with it, the words of its mark, the number of its first line, its lines."""

    def __init__(self, kind, words, line, lines):
        self.kind, self.words, self.line, self.lines = kind, words, line, lines


def blocks(text):
    """The code blocks of a page, in their order."""
    found, mark, current, fenced, above_blank = [], None, None, False, True
    for number, line in enumerate(text.splitlines(), 1):
        if fenced:
            if line.startswith("```"):
                fenced, current = False, None
            else:
                current.lines.append(line)
            continue
        indented = line.startswith("    ")
        if line.startswith("```") or indented and (current or above_blank):
            if current is None:
                if mark is None:
                    raise Malformed(f"line {number}: nothing says whether this block is run")
                current = Block(*mark, number, [])
                found.append(current)
                mark = None
            fenced = not indented
            if indented:
                current.lines.append(line[4:])
        elif line.strip():
            current = None
            if match := MARK.match(line):
                mark = match[1], match[2]
            elif mark is not None and not line.startswith("<!--"):
                raise Malformed(f"line {number}: the comment {mark[0]!r} above it belongs to no block")
        elif current:
            current.lines.append("")
        above_blank = not line.strip() or bool(MARK.match(line))
    for block in found:
        block.lines = "\n".join(block.lines).rstrip("\n").split("\n")
        check(block)
    if mark is not None:
        raise Malformed(f"the comment {mark[0]!r} at the end belongs to no block")
    for before, block in zip([None, *found], found):
        if block.kind == "prints" and (before is None or before.kind != "run"):
            raise Malformed(f"line {block.line}: no block that is run precedes what it prints")
    return found


def from_rst(text):
    """A page in reStructuredText as one in Markdown, with the same lines: without the colons and the indentation of blocks, and each mark
    directly above its block."""
    lines, mark, block = text.splitlines(), None, False
    for at, line in enumerate(lines):
        if block and (not line.strip() or line.startswith(" ")):
            if line.strip():
                indentation = indentation or len(line) - len(line.lstrip())
                lines[at] = "    " + line[indentation:]
            elif mark:
                lines[at], mark = mark, None
            continue
        block = False
        if match := RST_MARK.match(line):
            if mark:
                raise Malformed(f"line {at + 1}: the comment above it belongs to no block")
            mark, lines[at] = f"<!-- {match[1]}: {match[2]} -->", ""
        elif line.endswith("::") and not line.startswith(".."):
            block, indentation, lines[at] = True, 0, line[:-1]
        else:
            # What is indented there is no code.
            lines[at] = line.lstrip()
    return "\n".join([*lines, *([mark] if mark else [])]) + "\n"


def check(block):
    """Raises Malformed unless the words of the mark are correct."""
    forms = {"run": r"[ab]( [ab])?", "serve": r"[ab] (cm|[0-9]+)", "prints": "", "not run": r"\S.*"}
    if not re.fullmatch(forms[block.kind], block.words):
        raise Malformed(f"line {block.line}: the words {block.words!r} of the comment {block.kind!r} are not understood")


def read(path):
    """The text of a page, in Markdown."""
    with open(path, encoding="utf-8") as file:
        return from_rst(file.read()) if str(path).endswith(".rst") else file.read()


def calls(text):
    """The shell commands that run the blocks of a page."""
    return [f"{block.kind}_block {block.line} {shlex.quote(block.words)} {shlex.quote(chr(10).join(block.lines))}"
            for block in blocks(text) if block.kind != "not run"]


def block_of(text, start):
    """The lines of the only block of a page that begins with a text, other than what a block prints."""
    found = [block.lines for block in blocks(text) if block.kind != "prints" and block.lines[0].startswith(start)]
    if len(found) != 1:
        raise Malformed(f"{len(found)} blocks begin with {start!r}")
    return found[0]


def missing(lines, printed):
    """The first of the lines that is not in the output, in this order; None if all are."""
    at = 0
    for line in lines:
        if not line.strip():
            continue
        words = [".*".join(map(re.escape, word.split("…"))) for word in line.split()]
        match = re.compile(r"[^\S\n]+".join(words)).search(printed, at)
        if not match:
            return line
        at = match.end()
    return None


def main(arguments):
    if arguments[:1] == ["--printed"]:
        with open(arguments[1], encoding="utf-8", errors="replace") as file:
            line = missing(sys.stdin.read().splitlines(), file.read())
        return f"not printed: {line}" if line else 0
    if arguments[:1] == ["--block"]:
        print("\n".join(block_of(read(arguments[1]), arguments[2])))
        return 0
    print("\n".join(calls(read(arguments[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
