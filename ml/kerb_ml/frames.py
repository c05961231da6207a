# SPDX-License-Identifier: Apache-2.0
"""IEEE 802.15.4 frames with 6LoWPAN and RPL: what a frame is for the classifier's extractor, and frames made from scratch."""

import struct
from dataclasses import dataclass

KINDS = ("dis", "dio", "dao", "daoAck", "other")
DATA_FRAME, ICMPV6, UDP = 1, 58, 17
HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION = 0, 43, 44, 60
RPL = 155  # ICMPv6 type, RFC 6550, 6
BROADCAST = b"\xff\xff"
LINK_LOCAL = b"\xfe\x80" + bytes(6)
_RPL_KINDS = {0: "dis", 1: "dio", 2: "dao", 3: "daoAck"}


class Malformed(ValueError):
    """The frame is cut short or against its standard."""


@dataclass(frozen=True)
class Message:
    """What the extractor sees of a frame. node is the interface identifier of its IPv6 source: routers pass messages on."""

    node: bytes
    link: bytes  # source of the MAC header, most significant byte first
    sequence: int | None
    kind: str


class _Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        if self.at + n > len(self.data):
            raise Malformed(f"{len(self.data)} bytes, {self.at + n} needed")
        self.at += n
        return self.data[self.at - n : self.at]

    def byte(self):
        return self.take(1)[0]


def parse(frame):
    """The message in a frame; None for frames that are no data, have no source or are later fragments."""
    c = _Cursor(frame)
    (control,) = struct.unpack("<H", c.take(2))
    if control & 7 != DATA_FRAME:
        return None
    version, to, source = control >> 12 & 3, control >> 10 & 3, control >> 14
    sequence = None if version == 2 and control & 1 << 8 else c.byte()
    pans = _pans(version, to, source, control >> 6 & 1)
    c.take(2 * pans[0])
    _address(c, to)
    c.take(2 * pans[1])
    link = _address(c, source)
    if not link:
        return None
    if control & 1 << 3 or control & 1 << 9:  # encrypted, or information elements, which nobody sends 6LoWPAN behind
        return Message(interface_id(link), link, sequence, "other")
    read = _payload(c, interface_id(link))
    return read and Message(read[0], link, sequence, read[1])


def _pans(version, to, source, compressed):
    """Which PAN identifiers are there: IEEE 802.15.4-2006, 7.2.1.1.5, and table 7-2 of the 2015 edition."""
    if version < 2:
        return bool(to), bool(source) and not (compressed and to)
    if to == source == 3:
        return not compressed, False
    if to and source:
        return True, not compressed
    if not to and not source:
        return bool(compressed), False
    return bool(to) and not compressed, bool(source) and not compressed


def _address(c, mode):
    if mode == 1:
        raise Malformed("reserved addressing mode")
    return c.take({0: 0, 2: 2, 3: 8}[mode])[::-1]


def _payload(c, link):
    """(node, kind) of what 6LoWPAN carries; None for later fragments."""
    dispatch = c.byte()
    if dispatch >> 3 == 0b11100:  # FRAGN, RFC 4944, 5.3
        return None
    if dispatch >> 3 == 0b11000:  # FRAG1
        c.take(3)
        dispatch = c.byte()
    if dispatch == 0x41:  # IPv6 as it is
        header = c.take(40)
        return header[16:24], _kind(c, header[6])
    if dispatch >> 5 == 0b011:
        return _compressed(c, dispatch, link)
    return link, "other"


def _compressed(c, first, link):
    """RFC 6282, 3.1."""
    second = c.byte()
    c.take(second >> 7)  # context identifiers
    c.take({0: 4, 1: 3, 2: 1, 3: 0}[first >> 3 & 3])
    following = None if first & 4 else c.byte()
    c.take(0 if first & 3 else 1)
    inline = c.take(_source_length(second))
    node = interface_id(inline) if len(inline) == 2 else inline[-8:] or link
    c.take(_destination_length(second))
    while following is None:  # RFC 6282, 4.2: compressed extension headers
        nhc = c.byte()
        if nhc >> 4 != 0b1110:
            return node, "other"  # UDP
        following = None if nhc & 1 else c.byte()
        c.take(c.byte())
    return node, _kind(c, following)


def _source_length(second):
    context, mode = second >> 6 & 1, second >> 4 & 3
    return 0 if context and not mode else (16, 8, 2, 0)[mode]


def _destination_length(second):
    multicast, context, mode = second >> 3 & 1, second >> 2 & 1, second & 3
    if multicast:
        return 6 if context else (16, 6, 4, 1)[mode]
    return (16, 8, 2, 0)[mode]


def _kind(c, following):
    """By the IPv6 header that follows."""
    while following in (HOP_BY_HOP, ROUTING, DESTINATION):
        following = c.byte()
        c.take(6 + 8 * c.byte())
    if following != ICMPV6:
        return "other"
    icmp, code = c.take(2)
    return _RPL_KINDS.get(code, "other") if icmp == RPL else "other"


_BODIES = {
    "dis": bytes(2),
    # instance 0, version 240, rank 256, grounded non-storing, DODAG fd00::1, DODAG configuration option
    "dio": bytes.fromhex("00f0010008f00000fd000000000000000000000000000001040e00080c00040000800001001e003c"),
    "dao": bytes.fromhex("004000f1" "0512ff80fd000000000000000000000000000009" "0604001e001e"),
    "daoAck": bytes.fromhex("0000f100"),
}


def build(kind, source, sequence, destination=BROADCAST, pan=0xABCD):
    """A frame of the kind from a source of 2 or 8 bytes, as Contiki-NG sends it."""
    modes = {2: 2, 8: 3}
    control = DATA_FRAME | 1 << 6 | modes[len(destination)] << 10 | 1 << 12 | modes[len(source)] << 14
    mac = struct.pack("<HBH", control, sequence & 0xFF, pan) + destination[::-1] + source[::-1]
    to_all = b"\x1a" if destination == BROADCAST else b""  # ff02::1a, all RPL nodes
    hops, second = (3, 0x3B) if to_all else (2, 0x33)
    if kind == "other":  # UDP 61616 to 61617 without compressed checksum
        return mac + bytes([0x7C | hops, second]) + to_all + b"\xf3\x01\x12\x34" + b"reading 21.5"
    body = _BODIES[kind]
    code = {name: code for code, name in _RPL_KINDS.items()}[kind]
    icmp = bytes([RPL, code, 0, 0]) + body
    checked = icmp[:2] + struct.pack("!H", checksum(source, destination, icmp)) + body
    return mac + bytes([0x78 | hops, second, ICMPV6]) + to_all + checked


def interface_id(address):
    """RFC 4944, 6, with the universal bit of RFC 6282, 3.2.2."""
    if len(address) == 2:
        return b"\0\0\0\xff\xfe\0" + address
    return bytes([address[0] ^ 2]) + address[1:]


def link_address(node):
    """The address that interface_id makes this of."""
    return node[6:] if node.startswith(b"\0\0\0\xff\xfe\0") else bytes([node[0] ^ 2]) + node[1:]


def checksum(source, destination, icmp):
    """Of ICMPv6 between link-local addresses, RFC 4443, 2.3."""
    to = b"\xff\x02" + bytes(13) + b"\x1a" if destination == BROADCAST else LINK_LOCAL + interface_id(destination)
    data = LINK_LOCAL + interface_id(source) + to + struct.pack("!II", len(icmp), ICMPV6) + icmp
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
