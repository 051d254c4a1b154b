# SPDX-License-Identifier: GPL-2.0
"""Reads docs/rxe-ci-workflow.yml, for its tests (selftest_workflow.py, ci_test.py).

Python's standard library has no parser of YAML. This one knows what the workflow uses, and refuses the rest: mappings, sequences of mappings
and of words, flow sequences of words, plain and quoted strings on one line, and literal blocks (`|`), whose text it returns unchanged.
"""
import re
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "docs/rxe-ci-workflow.yml"
KEY = re.compile(r"([A-Za-z_][\w-]*):(?: +(.*))?$")


class Malformed(Exception):
    """A text with something that this parser does not know."""


class Parser:
    """The lines of a text, and the number of the next one."""

    def __init__(self, text):
        self.lines, self.at = text.splitlines(), 0

    def die(self, why):
        raise Malformed(f"line {self.at + 1}: {why}")

    def peek(self):
        """(indentation, text) of the next line that has something; (-1, "") at the end."""
        while self.at < len(self.lines) and re.match(r" *(#|$)", self.lines[self.at]):
            self.at += 1
        if self.at == len(self.lines):
            return -1, ""
        line = self.lines[self.at]
        text = line.lstrip(" ")
        if "\t" in line:
            self.die("a tab")
        return len(line) - len(text), re.sub(r" +#.*$", "", text) if not re.search(r"""["']""", text) else text.rstrip()

    def scalar(self, text):
        if flow := re.fullmatch(r"\[(\w+(?:, \w+)*)\]", text):
            return flow[1].split(", ")
        if quoted := re.fullmatch(r'"([^"\\]*)"' r"|'([^']*)'", text):
            return quoted[1] if quoted[1] is not None else quoted[2]
        # A quotation mark inside of a plain string is an ordinary character.
        if re.match(r"[-?:,\[\]{}#&*!|>'\"%@`]", text) or re.search(r": |:$| #", text):
            self.die(f"not understood: {text}")
        return text

    def literal(self, above):
        """The text of a literal block, which is indented by more than `above`."""
        found, indentation = [], None
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.strip():
                own = len(line) - len(line.lstrip(" "))
                indentation = own if indentation is None else indentation
                if own <= above:
                    break
                if own < indentation:
                    self.die("a literal block ends with another indentation")
            found.append(line[indentation or 0:])
            self.at += 1
        if not "".join(found).strip():
            self.die("an empty literal block")
        return "\n".join(found).rstrip("\n") + "\n"

    def value(self, text, above):
        """What follows a key or a dash whose indentation is `above`."""
        if text == "|":
            return self.literal(above)
        if text:
            return self.scalar(text)
        indentation, text = self.peek()
        # The dashes of a sequence may be below its key.
        if indentation > above or indentation == above and text.startswith("- "):
            return self.node(indentation)
        return ""

    def node(self, indentation):
        """The mapping or the sequence that begins at the next line."""
        sequence = self.peek()[1].startswith("- ")
        found = [] if sequence else {}
        while (line := self.peek())[0] == indentation and line[1].startswith("- ") == sequence:
            key = KEY.match(line[1])
            if sequence:
                item = line[1][2:].lstrip()
                if KEY.match(item):
                    # The mapping begins behind the dash.
                    self.lines[self.at] = self.lines[self.at].replace("-", " ", 1)
                    found.append(self.node(self.peek()[0]))
                else:
                    self.at += 1
                    found.append(self.value(item, indentation))
            elif not key or key[1] in found:
                self.die("no key, or one that is there already")
            else:
                self.at += 1
                found[key[1]] = self.value(key[2] or "", indentation)
        if self.peek()[0] > indentation:
            self.die("an indentation that nothing asks for")
        return found


def parse(text):
    """The document as dictionaries, lists and strings. Raises Malformed."""
    parser = Parser(text)
    found = parser.node(0)
    if parser.peek()[0] >= 0:
        parser.die("not understood")
    return found


def steps(text=None):
    """The steps of all jobs, in their order."""
    return [step for job in parse(text or FILE.read_text())["jobs"].values() for step in job["steps"]]


def commands():
    """The commands of the steps by the names of these."""
    return {step["name"]: step["run"] for step in steps() if "run" in step}
