# SPDX-License-Identifier: Apache-2.0
"""Reads and writes pcap files of IEEE 802.15.4 frames."""

import struct
from pathlib import Path

IEEE802_15_4_WITHFCS = 195  # link types, https://www.tcpdump.org/linktypes.html
IEEE802_15_4_NOFCS = 230

_MAGICS = {b"\xd4\xc3\xb2\xa1": ("<", 1e-6), b"\xa1\xb2\xc3\xd4": (">", 1e-6), b"\x4d\x3c\xb2\xa1": ("<", 1e-9), b"\xa1\xb2\x3c\x4d": (">", 1e-9)}
_FCS = 2


def read(path):
    """Yields (seconds, frame without FCS)."""
    data = Path(path).read_bytes()
    if data[:4] not in _MAGICS:
        raise ValueError(f"{path}: not a pcap file")
    order, unit = _MAGICS[data[:4]]
    (link,) = struct.unpack_from(order + "I", data, 20)
    if link not in (IEEE802_15_4_WITHFCS, IEEE802_15_4_NOFCS):
        raise ValueError(f"{path}: link type {link}, not IEEE 802.15.4 (195 or 230)")
    tail = _FCS if link == IEEE802_15_4_WITHFCS else 0
    at = 24
    while at + 16 <= len(data):
        seconds, part, captured, _ = struct.unpack_from(order + "4I", data, at)
        yield seconds + part * unit, data[at + 16 : at + 16 + captured - tail]
        at += 16 + captured


def write(path, frames):
    """Writes (seconds, frame without FCS) in the order given, with FCS."""
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, IEEE802_15_4_WITHFCS))
        for seconds, frame in frames:
            whole = frame + struct.pack("<H", fcs(frame))
            micros = round(seconds * 1e6)
            f.write(struct.pack("<4I", micros // 1_000_000, micros % 1_000_000, len(whole), len(whole)) + whole)


def fcs(frame):
    """ITU-T CRC-16 of IEEE 802.15.4, 7.2.10: least significant bit first."""
    crc = 0
    for byte in frame:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x8408 if crc & 1 else 0)
    return crc
