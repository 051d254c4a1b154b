# SPDX-License-Identifier: GPL-2.0
"""Tests of frames.py."""
import unittest

import frames

TEXT = """0000000000000010 <small>:
  10:	48 83 ec 18          	sub    $0x18,%rsp
0000000000000030 <large::f>:
  30:	48 81 ec 68 10 00 00 	sub    $0x1068,%rsp
  37:	48 83 ef 08          	sub    $0x8,%rdi
"""


class Frames(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual(list(frames.frames(TEXT.splitlines())), [(0x18, "small"), (0x1068, "large::f")])


if __name__ == "__main__":
    unittest.main()
