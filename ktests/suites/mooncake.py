# SPDX-License-Identifier: GPL-2.0
"""Moves data between two processes by the transfer engine of Mooncake, and compares it.

mooncake.py target DEVICE ADDRESS FOLDER        has memory, and says in FOLDER where it is
mooncake.py initiator DEVICE ADDRESS FOLDER     writes 1 GiB to it in parts and reads them back
"""
import ctypes
import hashlib
import json
import mmap
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, "/share/wheels")
from mooncake.engine import TransferEngine

PART, PARTS = 128 << 20, 8


def area():
    memory = mmap.mmap(-1, PART)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def started(device, address, folder, start):
    """An engine that may use this device only, without a metadata server, and with registered memory."""
    if not Path("/sys/devices/system/node").exists():
        # A kernel without NUMA, such as User Mode Linux: the engine would find no device, and use TCP.
        topology = folder / f"topology.{device}"
        topology.write_text(json.dumps({"cpu:0": [[device], []]}))
        os.environ["MC_CUSTOM_TOPO_JSON"] = str(topology)
    engine = TransferEngine()
    assert engine.initialize(address, "P2PHANDSHAKE", "rdma", device) == 0, "the engine does not start"
    assert engine.register_memory(start, PART) == 0, "the memory cannot be registered"
    return engine


def wait_for(path):
    while not path.exists():
        time.sleep(0.05)
    return path.read_text()


def put(path, text):
    """Other processes see the file with its whole text or not at all."""
    path.with_suffix(".new").write_text(str(text))
    path.with_suffix(".new").rename(path)


def target(device, address, folder):
    memory, start = area()
    engine = started(device, address, folder, start)
    put(folder / "target", f"{address}:{engine.get_rpc_port()} {start}")
    for part in range(PARTS):
        wait_for(folder / f"written{part}")
        put(folder / f"hash{part}", hashlib.sha256(memory).hexdigest())
    wait_for(folder / "end")


def initiator(device, address, folder):
    memory, start = area()
    engine = started(device, address, folder, start)
    session, remote = wait_for(folder / "target").split()
    began = time.monotonic()
    for part in range(PARTS):
        block = os.urandom(1 << 20)
        for at in range(0, PART, len(block)):
            memory[at:at + len(block)] = hashlib.sha256(bytes([part, at >> 20])).digest() + block[32:]
        own = hashlib.sha256(memory).hexdigest()
        assert engine.transfer_sync_write(session, start, int(remote), PART) == 0, f"writing part {part} failed"
        put(folder / f"written{part}", "")
        assert wait_for(folder / f"hash{part}") == own, f"part {part} has arrived damaged"
        memory[:] = bytes(PART)
        assert engine.transfer_sync_read(session, start, int(remote), PART) == 0, f"reading part {part} failed"
        assert hashlib.sha256(memory).hexdigest() == own, f"part {part} is read damaged"
    put(folder / "end", "")
    print(f"{PARTS * PART >> 20} MiB written and read in {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    {"target": target, "initiator": initiator}[sys.argv[1]](sys.argv[2], sys.argv[3], Path(sys.argv[4]))
    # The engine's threads are not joined when the interpreter ends.
    sys.stdout.flush()
    os._exit(0)
