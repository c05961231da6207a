# SPDX-License-Identifier: Apache-2.0
"""Makes RPL traffic of many networks as a root hears it: other sizes, timers, losses and attacks than any capture has.

Nodes send what RFC 6550 and its implementations have them send: DIS until a network is found, DIO by Trickle timers (RFC 6206)
that start over when routes change or somebody solicits, unicast DIO as probes, DAO at joining, refreshing and for nodes behind
them, and readings. Now and then a node loses its parent and solicits again, or the root has the whole network repaired. Attackers
are such nodes that also flood, in turns, evenly, by chance or in bursts, with one kind of message or several."""

import math
from dataclasses import dataclass, field

from . import frames
from .windows import Event

FLOODS = {"dis": (0.4, 300), "dio": (5, 300), "dao": (3, 300)}  # messages per second, least and most


@dataclass
class Network:
    """How the nodes of one network behave. Times in seconds."""

    nodes: int
    formation: float  # all have joined by then
    solicit: float  # between two DIS of a node that has found nobody
    trickle_min: float
    trickle_doublings: int
    resets: float  # of Trickle timers, per second
    orphaned: float  # how often a node loses its parent, per second
    repaired: float  # how often all timers of all nodes start over, per second
    probe: float  # between unicast DIO
    refresh: float  # between DAO
    storing: bool  # a node reports those behind it in DAO of its own
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
        orphaned=_log(rng, 1e-4, 0.02),
        repaired=_log(rng, 1e-4, 0.02),
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
    repairs = list(_poisson(rng, network.repaired, seconds))
    for n in range(network.nodes):
        source = frames.interface_id((n + 2).to_bytes(2, "big"))
        for e in _node(rng, network, source, seconds, repairs, attacks=n < network.attackers):
            if e.time < seconds and rng.random() >= network.loss:
                heard.append(e)
    return sorted(heard, key=lambda e: e.time)


def _node(rng, network, source, seconds, repairs, attacks):
    joined = rng.uniform(0, network.formation)
    repairs = [t + rng.uniform(0, 2) for t in repairs if t > joined]
    orphaned = [joined + t for t in _poisson(rng, network.orphaned, seconds - joined)] + [t for t in repairs if rng.random() < 0.3]
    for time in (*_joining(rng, network, joined), *_searches(rng, network, orphaned)):
        yield Event(time, source, "dis")
    for time, kind in (*_dio(rng, network, joined, repairs, seconds), *_dao(rng, network, joined, repairs, seconds), *_readings(rng, network, joined, seconds)):
        yield Event(time, source, kind)
    if attacks:
        yield from (Event(time, source, kind, attack=True) for time, kind in _attack(rng, seconds))


def _joining(rng, network, joined):
    time = rng.uniform(0, network.solicit)
    while time < joined:
        yield time
        time += network.solicit * rng.uniform(0.9, 1.1)


def _searches(rng, network, orphaned):
    """A node that has lost its parent solicits a few times; again, if it loses the next one meanwhile."""
    for time in orphaned:
        for _ in range(int(rng.integers(1, 4))):
            yield time
            time += network.solicit * rng.uniform(0.9, 1.1)


def _dio(rng, network, start, repairs, seconds):
    resets = sorted([start + t for t in _poisson(rng, network.resets, seconds - start)] + repairs)
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


def _dao(rng, network, joined, repairs, seconds):
    behind = int(rng.integers(0, max(1, network.nodes // 4))) if network.storing else 0
    for n in range(1 + behind):
        first = joined + (rng.uniform(0, network.formation) if network.storing else rng.uniform(0, 5))
        for t in _regular(rng, network.refresh, first, seconds):
            yield t, "dao"
            for again in range(int(rng.integers(0, 3)) if rng.random() < 0.2 else 0):  # not acknowledged
                yield t + 3 * (again + 1) * rng.uniform(0.8, 1.2), "dao"
        yield from ((t + rng.uniform(0, network.formation if n else 5), "dao") for t in repairs)


def _readings(rng, network, start, seconds):
    for t in _regular(rng, network.period, start, seconds):
        yield t, "other"
    if rng.random() < network.transfer and start < seconds:
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
    """On for a while, off for a while, as in the captures; each time with another rate, sometimes with several kinds at once."""
    time = rng.uniform(0, seconds / 3)
    kinds = list(FLOODS)
    while time < seconds:
        length = rng.uniform(10, 60)
        for kind in rng.choice(kinds, size=rng.choice([1, 2, 3], p=[0.6, 0.2, 0.2]), replace=False):
            pace = (_paced, _poisson, _bursts)[rng.integers(0, 3)]
            yield from ((time + t, str(kind)) for t in pace(rng, _log(rng, *FLOODS[kind]), min(length, seconds - time)))
        time += length + rng.uniform(10, 50)


def _paced(rng, rate, seconds):
    time, jitter = 0.0, rng.choice([0.02, 0.5])
    while time < seconds:
        yield time
        time += rng.uniform(1 - jitter, 1 + jitter) / rate


def _bursts(rng, rate, seconds):
    most = max(2, int(rate))  # of about a second
    for time in _paced(rng, rate / most, seconds):
        yield from (time + n * 0.005 for n in range(most))


def to_frames(found):
    """The events as frames, for pcap.write."""
    sequences = {}
    for e in found:
        sequence = sequences[e.source] = sequences.get(e.source, -1) + 1
        yield e.time, frames.build(e.kind, frames.link_address(e.source), sequence)
