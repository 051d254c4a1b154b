# SPDX-License-Identifier: GPL-2.0
"""Tests of site_pages.py: which pages the site has, dead links, and that it can be built."""
import tempfile
import unittest
from pathlib import Path

import docutils.utils

import site_pages as site

CLONE = Path(__file__).resolve().parent.parent


class Site(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_each_page_of_docs(self):
        """The summary names each page of docs/ once, and only files that exist."""
        named = site.pages()
        self.assertEqual(len(named), len(set(named)))
        paths = [path for pattern in ("*.md", "*.rst") for path in (CLONE / "docs").glob(pattern)]
        self.assertLessEqual({str(path.relative_to(CLONE).with_suffix(".md")) for path in paths}, set(named))
        for page in named:
            self.assertTrue(site.source(page).is_file(), page)

    def test_converted(self):
        text = site.markdown("Title\n=====\n\n.. a comment\n\nSection\n-------\n\nSee ``a/-b``, `Section`_::\n\n  a < b\n\n  c *d*\n\nTwo\n---\n\nText.\n")
        self.assertTrue(text.startswith("# Title\n\n<"), text)
        for part in ("<h2>Section</h2>", '<code>a/-b</code>, <a ', 'href="#section"', "<pre><code>a &lt; b\n&#10;c *d*</code></pre>", "<h2>Two</h2>"):
            self.assertIn(part, text)
        self.assertNotIn("\n\n", text.split("\n\n", 1)[1])
        self.assertNotIn("comment", text)
        with self.assertRaises(docutils.utils.SystemMessage):
            site.markdown("Title\n=====\n\nSee `Nowhere`_.\n")

    def test_dead_links(self):
        (self.folder / "sub").mkdir()
        (self.folder / "one.html").write_text('<h1 id="top">x</h1><a href="sub/two.html#here">y</a><a href="https://example.org/">z</a><a href="#top">t</a>')
        (self.folder / "sub/two.html").write_text('<h1 id="here">x</h1><a href="../one.html">y</a>')
        self.assertEqual(site.dead_links(self.folder), [])
        (self.folder / "sub/two.html").write_text('<a href="../three.html">y</a><a href="../one.html#nowhere">z</a><img src="plot.svg">')
        self.assertEqual(sorted(site.dead_links(self.folder)), [
            ("one.html", "sub/two.html#here"), ("sub/two.html", "../one.html#nowhere"), ("sub/two.html", "../three.html"),
            ("sub/two.html", "plot.svg"),
        ])

    def test_built(self):
        """Each page of the summary is a page of the site, and its links lead somewhere."""
        site.build(self.folder / "site")
        for page in site.pages():
            self.assertTrue((self.folder / "site" / page).with_suffix(".html").is_file(), page)
        self.assertTrue((self.folder / "site/index.html").is_file())
        self.assertTrue((self.folder / "site/docs/write-bandwidth.svg").is_file())
        text = (self.folder / "site/docs/two-hosts.html").read_text()
        self.assertIn("rdma link add rxe0 type rxe_rs netdev eth0", text)
        text = (self.folder / "site/docs/rxe_rs.html").read_text()
        for part in ("rdma link add rxe0 type rxe_rs netdev eth0", '<h2 id="module-parameters">', "<dt><code>egress_guard</code>"):
            self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
