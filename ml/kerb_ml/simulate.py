# SPDX-License-Identifier: Apache-2.0
"""Makes RPL traffic of many networks as a root hears it: other sizes, timers, losses and attacks than any capture has.

Nodes send what RFC 6550 and its implementations have them send: DIS until a network is found, DIO by Trickle timers (RFC 6206)
that start over when routes change or somebody solicits, unicast DIO as probes, DAO at joining, refreshing and for nodes behind
them, and readings. Attackers are such nodes that also flood, in turns."""

import math
from dataclasses import dataclass, field

from . import frames
from .windows import Event

FLOODS = {"dis": (0.8, 300), "dio": (5, 300), "dao": (3, 300)}  # messages per second, least and most


@dataclass
class Network:
    """How the nodes of one network behave. Times in seconds."""

    nodes: int
    formation: float  # all have joined by then
    solicit: float  # between two DIS of a node that has found nobody
    trickle_min: float
    trickle_doublings: int
    resets: float  # of Trickle timers, per second
    probe: float  # between unicast DIO
    refresh: float  # between DAO
    storing: bool  # a node tells of those behind it in DAO of its own
    period: float  # between readings
    transfer: float  # probability that a node sends a large block now and then
    loss: float
    attackers: int = 0
    floods: list = field(default_factory=list)


def draw(rng, attackers=None):
    """A network out of all that are thinkable; rng is numpy's."""
    nodes = int(_log(rng, 3, 60))
    return Network(
        nodes=nodes,
        formation=_log(rng, 10, 120),
        solicit=_log(rng, 5, 60),
        trickle_min=2.0 ** rng.integers(-7, 4),  # RFC 6550 and RIOT have 8 ms, Contiki 4 s
        trickle_doublings=int(rng.integers(8, 20)),
        resets=_log(rng, 1e-4, 0.05),
        probe=_log(rng, 20, 300),
        refresh=_log(rng, 30, 1800),
        storing=bool(rng.random() < 0.5),
        period=_log(rng, 0.5, 120),
        transfer=rng.choice([0, 0.1]),
        loss=rng.choice([0, 0.02, 0.1, 0.3]),
        attackers=int(rng.integers(0, min(4, nodes - 1) + 1)) if attackers is None else attackers,
    )


def _log(rng, least, most):
    return math.exp(rng.uniform(math.log(least), math.log(most)))


def events(rng, network, seconds):
    """What the root hears in so many seconds, by time."""
    heard = []
    for n in range(network.nodes):
        source = frames.interface_id((n + 2).to_bytes(2, "big"))
        for e in _node(rng, network, source, seconds, attacks=n < network.attackers):
            if e.time < seconds and rng.random() >= network.loss:
                heard.append(e)
    return sorted(heard, key=lambda e: e.time)


def _node(rng, network, source, seconds, attacks):
    joined = rng.uniform(0, network.formation)
    for time in _joining(rng, network, joined):
        yield Event(time, source, "dis")
    for make in (_dio, _dao, _readings):
        yield from (Event(time, source, kind) for time, kind in make(rng, network, joined, seconds))
    if attacks:
        yield from (Event(time, source, kind, attack=True) for time, kind in _attack(rng, seconds))


def _joining(rng, network, joined):
    time = rng.uniform(0, network.solicit)
    while time < joined:
        yield time
        time += network.solicit * rng.uniform(0.9, 1.1)


def _dio(rng, network, start, seconds):
    resets = sorted(start + t for t in _poisson(rng, network.resets, seconds - start))
    for begin, end in zip([start, *resets], [*resets, seconds]):
        yield from ((t, "dio") for t in _trickle(rng, network, begin, end))
    for t in _regular(rng, network.probe, start, seconds):
        yield t, "dio"


def _trickle(rng, network, time, end):
    for doubling in range(64):
        interval = network.trickle_min * 2 ** min(doubling, network.trickle_doublings)
        at = time + interval * rng.uniform(0.5, 1)
        if at > end:
            return
        yield at
        time += interval


def _dao(rng, network, joined, seconds):
    behind = int(rng.integers(0, max(1, network.nodes // 4))) if network.storing else 0
    for _ in range(1 + behind):
        first = joined + (rng.uniform(0, network.formation) if network.storing else rng.uniform(0, 5))
        for t in _regular(rng, network.refresh, first, seconds):
            yield t, "dao"
            for again in range(int(rng.integers(0, 3)) if rng.random() < 0.2 else 0):  # not acknowledged
                yield t + 3 * (again + 1) * rng.uniform(0.8, 1.2), "dao"


def _readings(rng, network, start, seconds):
    for t in _regular(rng, network.period, start, seconds):
        yield t, "other"
    if rng.random() < network.transfer:
        begin, rate = rng.uniform(start, seconds), _log(rng, 2, 60)
        yield from ((begin + t, "other") for t in _poisson(rng, rate, min(30, max(0, seconds - begin))))


def _regular(rng, period, start, seconds):
    time = start
    while time < seconds:
        yield time
        time += period * rng.uniform(0.9, 1.1)


def _poisson(rng, rate, seconds):
    time = rng.exponential(1 / rate)
    while time < seconds:
        yield time
        time += rng.exponential(1 / rate)


def _attack(rng, seconds):
    """On for a while, off for a while, as in the captures; each time with another rate, sometimes with two kinds at once."""
    time = rng.uniform(0, seconds / 3)
    kinds = list(FLOODS)
    while time < seconds:
        length = rng.uniform(10, 60)
        for kind in rng.choice(kinds, size=1 + (rng.random() < 0.2), replace=False):
            rate = _log(rng, *FLOODS[kind])
            jitter = rng.choice([0.02, 0.5])
            yield from ((time + t, str(kind)) for t in _paced(rng, rate, min(length, seconds - time), jitter))
        time += length + rng.uniform(10, 50)


def _paced(rng, rate, seconds, jitter):
    time = 0.0
    while time < seconds:
        yield time
        time += rng.uniform(1 - jitter, 1 + jitter) / rate


def to_frames(found):
    """The events as frames, for pcap.write."""
    sequences = {}
    for e in found:
        sequence = sequences[e.source] = sequences.get(e.source, -1) + 1
        yield e.time, frames.build(e.kind, frames.link_address(e.source), sequence)
