#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A 9P server over RDMA for the kernel's client (net/9p/trans_rdma.c): each message is one SEND on an RC connection that the connection
manager establishes. There are no private data and no READs.

ninep_rdma.py DEVICE ADDRESS PORT FOLDER CLIENTS    serves the directory to CLIENTS clients in turn, then ends

The client posts a receive with each request that it sends, and has at most `rq` requests (mount option, default 32) outstanding. If that
exceeds the buffers here, it gets RNR NAKs and retries: the connection allows any number of RNR retries.
"""
from collections import Counter, deque
import os
import resource
import select
import sys

from pyverbs.cmid import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR
import pyverbs.cm_enums as ce
import pyverbs.enums as e

from lib.ninep import FIDS, Malformed, Session

DEPTH, SIZE = 32, 256 << 10
ANY_NUMBER, RETRIES = 7, 7


def opened(what, make, *args):
    """Returns the result of `make` and its file descriptor, which pyverbs does not expose."""
    def there():
        found = set()
        for number in os.listdir("/proc/self/fd"):
            # Skips the descriptor of the listing itself, which is closed.
            if os.path.islink(path := f"/proc/self/fd/{number}") and os.readlink(path) == what:
                found.add(int(number))
        return found

    before = there()
    made = make(*args)
    descriptor, = there() - before
    return made, descriptor


class Listener:
    """The listening rdma_cm_id and its event channel."""

    def __init__(self, address, port):
        self.channel, self.descriptor = opened("/dev/infiniband/rdma_cm", CMEventChannel)
        self.id = CMID(creator=self.channel, port_space=ce.RDMA_PS_TCP)
        self.id.bind_addr(AddrInfo(src=address, src_service=port, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE))
        self.id.listen()

    def request(self):
        """Waits for a connection request; returns its rdma_cm_id."""
        while True:
            event = CMEvent(self.channel)
            cm_id = CMID(creator=event, listen_id=self.id) if event.event_type == ce.RDMA_CM_EVENT_CONNECT_REQUEST else None
            event.ack_cm_event()
            if cm_id:
                return cm_id

    def connected(self):
        """Handles an event; returns whether the connection persists. Rejects requests of other clients."""
        event = CMEvent(self.channel)
        kind = event.event_type
        other = CMID(creator=event, listen_id=self.id) if kind == ce.RDMA_CM_EVENT_CONNECT_REQUEST else None
        event.ack_cm_event()
        if other:
            other.reject(b"busy")
            other.close()
        return kind in (ce.RDMA_CM_EVENT_CONNECT_REQUEST, ce.RDMA_CM_EVENT_ESTABLISHED)


class Connection:
    """The connection of a client. Buffers 0 to DEPTH - 1 of the region are for its requests, DEPTH more for replies."""

    def __init__(self, context, cm_id):
        self.id = cm_id
        # Not the context of the rdma_cm_id, whose objects pyverbs shares among connections.
        self.pd = PD(context)
        self.channel, self.descriptor = opened("anon_inode:[infinibandevent]", CompChannel, context)
        self.cq = CQ(context, 2 * DEPTH, None, self.channel, 0)
        self.cq.req_notify()
        cap = QPCap(max_send_wr=DEPTH, max_recv_wr=DEPTH, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        self.mr = MR(self.pd, 2 * DEPTH * SIZE, e.IBV_ACCESS_LOCAL_WRITE)
        self.waiting, self.free = deque(), deque(range(DEPTH, 2 * DEPTH))
        self.modify_qp(e.IBV_QPS_INIT)
        for slot in range(DEPTH):
            self.receive(slot)
        self.modify_qp(e.IBV_QPS_RTR)
        self.id.accept(ConnParam(resources=0, depth=0, rnr_retry=ANY_NUMBER, qp_num=self.qp.qp_num))
        self.modify_qp(e.IBV_QPS_RTS)

    def modify_qp(self, state):
        attr, mask = self.id.init_qp_attr(state)
        if state == e.IBV_QPS_RTS:
            # The client's REQ says 0 retries, for both sides.
            attr.retry_cnt = RETRIES
        self.qp.modify(attr, mask)

    def sge(self, slot, length):
        return [SGE(self.mr.buf + slot * SIZE, length, self.mr.lkey)]

    def receive(self, slot):
        self.qp.post_recv(RecvWR(wr_id=slot, num_sge=1, sg=self.sge(slot, SIZE)))

    def completions(self):
        """Handles a completion event: polls all completions. Later ones cause another event."""
        self.channel.get_cq_event(self.cq)
        self.cq.ack_events(1)
        self.cq.req_notify()
        while True:
            count, done = self.cq.poll(2 * DEPTH)
            if not count:
                return
            for wc in done:
                if wc.status != e.IBV_WC_SUCCESS:
                    raise Malformed(f"completion status {wc.status} of slot {wc.wr_id}")
                if wc.wr_id < DEPTH:
                    self.waiting.append((wc.wr_id, wc.byte_len))
                else:
                    self.free.append(wc.wr_id)

    def reply(self, session, kinds):
        """Answers pending requests while there are free reply buffers."""
        while self.waiting and self.free:
            slot, length = self.waiting.popleft()
            request = self.mr.read(length, slot * SIZE)
            self.receive(slot)
            reply = session.reply(request)
            kinds[request[4]] += 1
            slot = self.free.popleft()
            self.mr.write(reply, len(reply), slot * SIZE)
            self.qp.post_send(SendWR(wr_id=slot, num_sge=1, sg=self.sge(slot, len(reply)), opcode=e.IBV_WR_SEND,
                                     send_flags=e.IBV_SEND_SIGNALED))

    def close(self):
        for part in (self.qp, self.mr, self.cq, self.channel, self.pd, self.id):
            part.close()


def serve(context, listener, folder):
    """Serves one client until it disconnects. A client that sends a malformed message is disconnected."""
    connection = Connection(context, listener.request())
    session, kinds, outcome = Session(folder, SIZE), Counter(), "has disconnected"
    ready = select.poll()
    for descriptor in (listener.descriptor, connection.descriptor):
        ready.register(descriptor, select.POLLIN)
    try:
        while True:
            found = [descriptor for descriptor, _ in ready.poll()]
            if connection.descriptor in found:
                connection.completions()
                connection.reply(session, kinds)
            if listener.descriptor in found and not listener.connected():
                break
    except Malformed as error:
        outcome = f"is disconnected: {error}"
    connection.id.disconnect()
    connection.close()
    print(f"the client {outcome}; {len(session.fids)} fids left; messages:", *(f"{k}:{n}" for k, n in sorted(kinds.items())), flush=True)
    session.close()


def main(device, address, port, folder, clients):
    # The client chooses the modes of new files.
    os.umask(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * FIDS + 100, 2 * FIDS + 100))
    context, listener = Context(name=device), Listener(address, port)
    for _ in range(int(clients)):
        serve(context, listener, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
