# SPDX-License-Identifier: GPL-2.0
"""Tests of site_pages.py: which pages the site has, dead links, and that it can be built."""
import tempfile
import unittest
from pathlib import Path

import site_pages as site

CLONE = Path(__file__).resolve().parent.parent


class Site(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_each_page_of_docs(self):
        """The summary names each page of docs/ once, and only files that exist."""
        named = site.pages()
        self.assertEqual(len(named), len(set(named)))
        self.assertLessEqual({str(path.relative_to(CLONE)) for path in (CLONE / "docs").glob("*.md")}, set(named))
        for page in named:
            self.assertTrue((CLONE / page).is_file(), page)

    def test_dead_links(self):
        (self.folder / "sub").mkdir()
        (self.folder / "one.html").write_text('<h1 id="top">x</h1><a href="sub/two.html#here">y</a><a href="https://example.org/">z</a><a href="#top">t</a>')
        (self.folder / "sub/two.html").write_text('<h1 id="here">x</h1><a href="../one.html">y</a>')
        self.assertEqual(site.dead_links(self.folder), [])
        (self.folder / "sub/two.html").write_text('<a href="../three.html">y</a><a href="../one.html#nowhere">z</a>')
        self.assertEqual(sorted(site.dead_links(self.folder)), [
            ("one.html", "sub/two.html#here"), ("sub/two.html", "../one.html#nowhere"), ("sub/two.html", "../three.html"),
        ])

    def test_built(self):
        """Each page of the summary is a page of the site, and its links lead somewhere."""
        site.build(self.folder / "site")
        for page in site.pages():
            self.assertTrue((self.folder / "site" / page).with_suffix(".html").is_file(), page)
        self.assertTrue((self.folder / "site/index.html").is_file())
        text = (self.folder / "site/docs/two-hosts.html").read_text()
        self.assertIn("rdma link add rxe0 type rxe_rs netdev eth0", text)


if __name__ == "__main__":
    unittest.main()
