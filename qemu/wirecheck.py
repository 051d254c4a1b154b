#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Checks all RoCEv2 packets of a capture with independent decoders: tshark checks the structure and the UDP and IP checksums, Scapy's
contrib.roce the invariant CRC.

wirecheck.py FILE…    prints what is wrong with the packets of each capture, a line each; exit status 1 if there is anything
"""
import subprocess
import sys

FIELDS = ("frame.number", "_ws.malformed", "ip.checksum.status", "udp.checksum.status", "infiniband.bth.opcode",
          "infiniband.bth.tver", "infiniband.bth.padcnt", "infiniband.bth.destqp", "infiniband.bth.m",
          "infiniband.invariant.crc", "ip.flags.df")


def structure(path):
    """The number of packets, and what tshark finds wrong: malformed packets, wrong checksums, invalid versions and pad counts."""
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
            found.append(f"{where}: tshark does not recognize it as RoCEv2")
        else:
            # Status 0 is a wrong checksum, 2 an unverified and 3 an absent one: over IPv4 a UDP checksum of zero is allowed.
            if "0" in ip_sum.split(",") or "0" in udp_sum.split(","):
                found.append(f"{where}: wrong checksum (IP {ip_sum}, UDP {udp_sum})")
            if int(version, 0) != 0 or int(pad, 0) > 3:
                found.append(f"{where}: version {version}, pad {pad}")
            if int(qp, 16) == 0:
                found.append(f"{where}: sent to queue pair 0")
    return count, found


def invariant_crcs(path):
    """The number of packets, and those with an ICRC that Scapy computes differently, or with a length that is not a multiple of four."""
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
                found.append(f"packet {number}: the UDP payload has {len(payload)} bytes, its header says {packet[UDP].len - 8}")
                continue
            bth = packet[BTH]
            sent = payload[-4:]
            computed = bth.compute_icrc(None)
            if sent != computed:
                found.append(f"packet {number}: ICRC {sent.hex()}, Scapy computes {computed.hex()}")
    return count, found


def check(path):
    """What is wrong with a capture, which must not be empty."""
    seen, found = structure(path)
    summed, wrong = invariant_crcs(path)
    found += wrong
    if not seen or not summed:
        found.append("the capture has no RoCEv2 packet")
    elif seen != summed:
        found.append(f"tshark found {seen} packets, Scapy {summed}")
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
