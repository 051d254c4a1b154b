# SPDX-License-Identifier: GPL-2.0
"""Tables of documents that are made from stored results."""


def place(lines, head):
    """Where the table with this first line is: its first line, and the first one behind it."""
    start = lines.index(head)
    return start, next(n for n in range(start, len(lines)) if not lines[n].startswith("|"))


def write(path, head, rows):
    """Puts a table in the place of the one with this first line."""
    lines = path.read_text().split("\n")
    start, end = place(lines, head)
    lines[start:end] = rows
    path.write_text("\n".join(lines))
