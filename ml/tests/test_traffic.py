# SPDX-License-Identifier: Apache-2.0
"""Frames, captures, windows and what is simulated."""

from dataclasses import replace

import numpy as np
import pytest
from scapy.config import conf
from scapy.layers.dot15d4 import Dot15d4FCS
from scapy.layers.inet6 import ICMPv6Unknown, IPv6
from scapy.layers.sixlowpan import LoWPAN_IPHC, LoWPANFragmentationFirst

from kerb_ml import flows, frames, pcap, simulate, windows

conf.dot15d4_protocol = "sixlowpan"
EUI, SHORT = bytes.fromhex("00124b00060d9b00"), b"\x12\x34"

# Of the captures of Contiki-NG, which says in its log what it sent; the last byte of the identifier is the node's number.
CONTIKI = {
    "61dc92cdab010001000100010005000500050005007a333a9b01002900f0ffff08f00000fd00000000000000": "dio",
    "41d826cdabffff0500000000000cc1416000000000063a40fe80000000000000c30c000000000005ff02000000000000000000000000001a9b00a40f0000": "dis",
}


@pytest.mark.parametrize("text, kind", CONTIKI.items())
def test_frames_of_contiki(text, kind):
    message = frames.parse(bytes.fromhex(text))
    assert (message.kind, message.node[-1]) == (kind, 5)


@pytest.mark.parametrize("kind", frames.KINDS)
@pytest.mark.parametrize("source", [SHORT, EUI])
@pytest.mark.parametrize("destination", [frames.BROADCAST, SHORT, EUI])
def test_made_frames(kind, source, destination):
    frame = frames.build(kind, source, 7, destination)
    assert len(frame) <= 125
    assert frames.parse(frame) == frames.Message(frames.interface_id(source), source, 7, kind)
    assert frames.link_address(frames.interface_id(source)) == source


@pytest.mark.parametrize("kind", ["dis", "dio", "dao"])
def test_scapy_reads_made_frames(kind):
    frame = frames.build(kind, EUI, 3)
    packet = Dot15d4FCS(frame + frames_fcs(frame))
    assert packet[LoWPAN_IPHC] and packet[IPv6].src == "fe80::212:4b00:60d:9b00"
    assert bytes(packet[IPv6].payload)[0] == frames.RPL


def frames_fcs(frame):
    return pcap.fcs(frame).to_bytes(2, "little")


def test_later_fragments_are_no_messages():
    mac = frames.build("other", EUI, 1)[:21 - 6]
    assert frames.parse(mac + b"\xe0\x50\x00\x01\x0a" + bytes(20)) is None
    first = LoWPANFragmentationFirst(datagramSize=200, datagramTag=1)
    assert frames.parse(mac + bytes(first)[:4] + frames.build("dao", EUI, 1)[15:]).kind == "dao"


def test_truncated_frames_are_told(rng):
    for kind in frames.KINDS:
        frame = frames.build(kind, EUI, 1, SHORT)
        for n in range(len(frame)):
            try:
                assert frames.parse(frame[:n]) is None or n > 15
            except frames.Malformed:
                pass
    for _ in range(2000):
        try:
            frames.parse(rng.integers(0, 256, rng.integers(0, 127), dtype=np.uint8).tobytes())
        except frames.Malformed:
            pass


def test_repeated_frames_are_one_message(tmp_path):
    dis = frames.build("dis", EUI, 9)
    sent = [(0.1 * n, dis) for n in range(30)] + [(4.0, frames.build("dis", EUI, 10))]
    pcap.write(tmp_path / "c.pcap", sent)
    assert len(list(windows.capture(tmp_path / "c.pcap"))) == 2


def test_capture_is_what_was_simulated(rng, tmp_path):
    heard = simulate.events(rng, simulate.draw(rng, attackers=2), 120)
    pcap.write(tmp_path / "c.pcap", simulate.to_frames(heard))
    back = list(windows.capture(tmp_path / "c.pcap"))
    assert [(e.source, e.kind) for e in back] == [(e.source, e.kind) for e in heard]


def test_windows_count_and_remember():
    node = frames.interface_id(SHORT)
    events = [windows.Event(t, node, "dis") for t in (0.5, 1.5, 1.6, 3.5)]
    found = windows.rows(events, 1)
    assert windows.matrix(found, ("dis", "disBefore")).tolist() == [[1, 0], [2, 1], [1, 0]]  # nothing in window 2


def test_bad_captures(tmp_path):
    (tmp_path / "a.pcap").write_bytes(b"text")
    (tmp_path / "b.pcap").write_bytes(b"\xd4\xc3\xb2\xa1" + bytes(16) + b"\x01\0\0\0")
    for name, complaint in {"a.pcap": "not a pcap", "b.pcap": "link type 1"}.items():
        with pytest.raises(ValueError, match=complaint):
            list(pcap.read(tmp_path / name))


def test_flow_features():
    p = flows._packets([0.0, 0.001, 0.003], [0, 1, 0], [40, 60, 50], [flows.SYN, flows.SYN | flows.ACK, flows.ACK], [0, 0, 1])
    row = dict(zip(flows.FEATURES, flows.features(p)))
    assert row == {"packetsForward": 2, "packetsBackward": 1, "lengthMean": 50, "lengthDeviation": 8, "gapMean": 1500, "gapDeviation": 500,
                   "fin": 0, "syn": 2, "rst": 0, "ack": 2, "payloads": 1, "backwardShare": 333}


def test_a_network_that_has_not_formed_in_the_time(rng):
    late = replace(simulate.draw(rng, attackers=1), nodes=20, formation=100, transfer=1)
    heard = simulate.events(rng, late, 5)
    assert heard and all(0 <= e.time < 5 for e in heard)
