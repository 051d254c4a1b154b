#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Builds the documentation as a site: the pages that docs/site/SUMMARY.md names, at the same relative paths, so that links between them
work on the site as they do in the tree. A page that is in reStructuredText in the tree, the manual page rxe_rs(7), is converted.

site_pages.py [DIR]   builds it in DIR (default: out/site), in place of a site that is there, and prints the path of its first page

Runs inside the toolchain root, which has mdBook and docutils. Fails if a link leads nowhere.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import docutils.core

import kernel

CLONE = Path(__file__).resolve().parent.parent
SITE = CLONE / "docs/site"


def pages():
    """The pages of the summary, in its order, as paths from the root of the clone."""
    return re.findall(r"\]\(([^)]+\.md)\)", (SITE / "SUMMARY.md").read_text())


def source(page):
    """The file of a page of the summary: Markdown, or reStructuredText in place of it."""
    path = (SITE if page == "SUMMARY.md" else CLONE) / page
    return path if path.exists() else path.with_suffix(".rst")


def markdown(text):
    """A page in reStructuredText as Markdown: a heading and HTML. Raises docutils' SystemMessage for what is wrong in it."""
    settings = {"halt_level": 2, "report_level": 5, "initial_header_level": 2, "strip_comments": True, "warning_stream": False}
    parts = docutils.core.publish_parts(text, writer_name="html5", settings_overrides=settings)
    # mdBook gives the headings their identifiers, and its style is for these elements.
    body = re.sub(r"</?section\b[^>]*>\n?", "", parts["body"])
    body = re.sub(r'<span class="docutils literal">(.*?)</span>', r"<code>\1</code>", re.sub(r'<span class="pre">(.*?)</span>', r"\1", body), flags=re.S)
    body = re.sub(r'<pre class="literal-block">(.*?)</pre>', r"<pre><code>\1</code></pre>", body, flags=re.S)
    # HTML in Markdown ends at an empty line; a reference to a line feed is none.
    body = re.sub(r"\n(?:[ \t]*\n)+", lambda empty: "\n" + "&#10;" * (empty[0].count("\n") - 1), body.strip())
    return f"# {parts['title']}\n\n{body}\n"


class Anchors(HTMLParser):
    """The links, the images and the identifiers of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        target = attrs.get({"a": "href", "img": "src"}.get(tag))
        if target:
            self.links.append(target)
        self.ids |= {attrs[name] for name in ("id", "name") if attrs.get(name)}


def dead_links(folder):
    """The links and images of the pages below a folder that lead to no page of it or to no heading there: (page, link)."""
    found = []
    read = {path: Anchors(path.read_text()) for path in folder.rglob("*.html") if path.name not in ("print.html", "toc.html", "404.html")}
    for path, page in read.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            other = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not other.exists() or parts.fragment and other in read and unquote(parts.fragment) not in read[other].ids:
                found.append((str(path.relative_to(folder)), link))
    return found


def build(to):
    """Builds the site in the folder `to`, which it replaces."""
    with tempfile.TemporaryDirectory() as work:
        book = Path(work)
        shutil.copy(SITE / "book.toml", book)
        for page in ["SUMMARY.md", *pages()]:
            copy = book / "src" / page
            copy.parent.mkdir(parents=True, exist_ok=True)
            path = source(page)
            text = path.read_text()
            copy.write_text(markdown(text) if path.suffix == ".rst" else re.sub(r"(\]\([^)#]+)\.rst\b", r"\1.md", text))
            for image in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
                (copy.parent / image).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path.parent / image, copy.parent / image)
        shutil.rmtree(to, ignore_errors=True)
        done = subprocess.run(["mdbook", "build", "--dest-dir", to.resolve(), book], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode or "WARN" in done.stdout:
            sys.exit(f"error: mdBook could not build the site:\n{done.stdout}")
    dead = dead_links(to)
    if dead:
        sys.exit("error: links that lead nowhere:\n" + "\n".join(f"{page}: {link}" for page, link in dead))


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CLONE / "out/site"
    # A page of each site.
    kernel.check_results(folder.resolve(), "print.html", files=True)
    build(folder)
    print(folder / "index.html")
