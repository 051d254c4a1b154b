#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""One WRITE over each of COUNT connections with a given traffic class and flow label.

paths.py DEVICE-A GID-INDEX-A DEVICE-B GID-INDEX-B TRAFFIC-CLASS FLOW-LABEL COUNT

The RDMA core chooses the hop limit, from the route.
"""
import sys

import pyverbs.enums as e

from lib.ends import End, connect

names, (traffic_class, flow_label, count) = sys.argv[1:5], (int(word, 0) for word in sys.argv[5:])
for _ in range(count):
    a, b = (End(names[n], int(names[n + 1])) for n in (0, 2))
    connect(a, b, traffic_class, flow_label)
    connect(b, a, traffic_class, flow_label)
    a.post(e.IBV_WR_RDMA_WRITE, a.sge(1000), remote=(b.mr.buf, b.mr.rkey))
    a.complete()
