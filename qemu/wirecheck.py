#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Checks every RoCEv2 packet of a capture with decoders that share nothing with this project: tshark for the structure and the
UDP and IP checksums, Scapy's contrib.roce for the invariant CRC.

wirecheck.py FILE…    prints what is wrong with each capture; exit status 1 if anything is
"""
import subprocess
import sys

FIELDS = ("frame.number", "_ws.malformed", "ip.checksum.status", "udp.checksum.status", "infiniband.bth.opcode",
          "infiniband.bth.tver", "infiniband.bth.padcnt", "infiniband.bth.destqp", "infiniband.bth.m",
          "infiniband.invariant.crc", "ip.flags.df")
# Of a badly built packet tshark still shows something; these expert texts say that it did not believe it.
SUSPECT = ("Malformed", "malformed", "exceeds", "bad")


def structure(path):
    """What tshark finds wrong: malformed packets, wrong checksums, a version or pad that cannot be."""
    command = ["tshark", "-r", str(path), "-o", "udp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE", "-T", "fields",
               "-E", "separator=|"]
    for field in FIELDS:
        command += ["-e", field]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        return 0, [f"tshark cannot read the capture: {done.stderr.strip()[-300:]}"]
    found, count = [], 0
    for line in done.stdout.splitlines():
        count += 1
        number, malformed, ip_sum, udp_sum, opcode, version, pad, qp, _, icrc, _ = line.split("|")
        where = f"packet {number}"
        if malformed:
            found.append(f"{where}: malformed ({malformed})")
        elif not opcode or not icrc:
            found.append(f"{where}: tshark sees no RoCEv2 in it")
        else:
            # Status 0 is bad; 2 and 3 are unverified and absent: a UDP checksum of zero is allowed over IPv4.
            if "0" in ip_sum.split(",") or "0" in udp_sum.split(","):
                found.append(f"{where}: wrong checksum (IP {ip_sum}, UDP {udp_sum})")
            if int(version, 0) != 0 or int(pad, 0) > 3:
                found.append(f"{where}: version {version}, pad {pad}")
            if int(qp, 16) == 0:
                found.append(f"{where}: sent to queue pair 0")
    return count, found


def invariant_crcs(path):
    """Packets whose ICRC Scapy computes differently, and lengths that are no multiple of four."""
    from scapy.contrib.roce import BTH
    from scapy.layers.inet import UDP
    from scapy.utils import PcapReader
    found, count = [], 0
    with PcapReader(str(path)) as reader:
        for number, packet in enumerate(reader, 1):
            if UDP not in packet or packet[UDP].dport != 4791:
                continue
            count += 1
            payload = bytes(packet[UDP].payload)
            if len(payload) % 4 or packet[UDP].len != len(payload) + 8:
                found.append(f"packet {number}: {len(payload)} bytes after a UDP header that says {packet[UDP].len - 8}")
                continue
            bth = packet[BTH]
            sent = payload[-4:]
            computed = bth.compute_icrc(None)
            if sent != computed:
                found.append(f"packet {number}: ICRC {sent.hex()}, Scapy computes {computed.hex()}")
    return count, found


def check(path):
    """Everything wrong with a capture; an empty one is wrong too."""
    seen, found = structure(path)
    summed, wrong = invariant_crcs(path)
    found += wrong
    if not seen or not summed:
        found.append("the capture holds no RoCEv2 packet")
    elif seen != summed:
        found.append(f"tshark saw {seen} packets, Scapy {summed}")
    return found


def main():
    bad = 0
    for path in sys.argv[1:]:
        for line in check(path):
            print(f"{path}: {line}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
