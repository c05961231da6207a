# SPDX-License-Identifier: Apache-2.0
"""Makes windows of IP traffic by remote address, with the features of the `flow` extractor (source: peer).

Each window is a list of packets as one kind of user or attack makes them; the features are computed from the packets, with the
extractor's integers."""

import math
from dataclasses import dataclass

import numpy as np

from .simulate import _log

FEATURES = ("packetsForward", "packetsBackward", "lengthMean", "lengthDeviation", "gapMean", "gapDeviation", "fin", "syn", "rst", "ack", "payloads", "backwardShare")
CLASSES = ("normal", "scan", "flood")
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
MOST = 20_000  # packets that are made of a window; what has more is scaled up


@dataclass
class Packets:
    """Of one window: seconds, whether backward, IP length, TCP flags, whether there is a payload."""

    time: np.ndarray
    backward: np.ndarray
    length: np.ndarray
    flags: np.ndarray
    payload: np.ndarray


def features(p, factor=1.0):
    """A row of FEATURES; factor: of packets for each one in p."""
    order = np.argsort(p.time, kind="stable")
    gaps = np.diff(p.time[order]) * 1e6 / factor
    n = len(p.time)
    backward = int(p.backward.sum() * factor)
    whole = int(n * factor)
    flag = lambda bit: int(((p.flags & bit) > 0).sum() * factor)
    return [
        whole - backward, backward, int(p.length.mean()), math.isqrt(int(p.length.var())),
        int(gaps.mean()) if n > 1 else 0, math.isqrt(int(gaps.var())) if n > 1 else 0,
        flag(FIN), flag(SYN), flag(RST), flag(ACK), int(p.payload.sum() * factor), backward * 1000 // max(whole, 1),
    ]


def _packets(time, backward, length, flags, payload):
    n = len(time)
    fill = lambda v: np.broadcast_to(np.asarray(v), (n,)).copy()
    return Packets(np.asarray(time, dtype=float), fill(backward).astype(bool), fill(length).astype(int), fill(flags).astype(int), fill(payload).astype(bool))


def _join(parts):
    return Packets(*(np.concatenate([getattr(p, f) for p in parts]) for f in Packets.__dataclass_fields__))


def _connections(rng, seconds, rate, exchanges, size):
    """TCP connections: handshake, exchanges of a request and an answer of so many bytes, and an end."""
    parts = []
    for start in rng.uniform(0, seconds, max(1, rng.poisson(rate * seconds))):
        trip = _log(rng, 1e-4, 0.2)
        steps = [(0, SYN, 60, 0), (1, SYN | ACK, 60, 0), (0, ACK, 52, 0)]
        for _ in range(1 + rng.poisson(exchanges)):
            steps.append((0, PSH | ACK, 52 + int(_log(rng, 20, 1200)), 1))
            steps += [(1, ACK | PSH, 1500, 1)] * int(rng.exponential(size) / 1448) + [(1, PSH | ACK, 52 + int(_log(rng, 10, 1448)), 1), (0, ACK, 52, 0)]
        steps += [(0, FIN | ACK, 52, 0), (1, FIN | ACK, 52, 0), (0, ACK, 52, 0)]
        steps = steps[: MOST // 10]
        times = start + np.cumsum(rng.exponential(trip / 4, len(steps)))
        kept = times < seconds
        parts.append(_packets(times[kept], *(np.array(c)[kept] for c in zip(*[(b, n, f, p) for b, f, n, p in steps]))))
    return _join(parts)


def _stream(rng, seconds, rate, length, both, flags=0):
    """Packets at a steady rate, in one direction or both."""
    n = int(min(rate * seconds, MOST)) + 1
    time = np.sort(rng.uniform(0, seconds, n)) if rng.random() < 0.5 else np.linspace(0, seconds, n) + rng.normal(0, 0.1 / max(rate, 1), n)
    return _packets(time, rng.random(n) < both, np.clip(rng.normal(length, length * rng.choice([0, 0.2]), n), 28, 1500), flags, 1)


def _web(rng, seconds):
    return _connections(rng, seconds, _log(rng, 0.1, 10), _log(rng, 0.5, 10), _log(rng, 200, 100_000)), 1


def _service(rng, seconds):
    """Many short connections, each served: a load generator or a busy proxy."""
    return _connections(rng, seconds, _log(rng, 10, 60), 1, _log(rng, 100, 5000)), _log(rng, 1, 50)


def _bulk(rng, seconds):
    down = rng.random() < 0.5
    p = _stream(rng, seconds, _log(rng, 50, 80_000), 1500, 0.67 if down else 0.33, ACK)
    acks = p.backward != down
    p.length[acks], p.payload[acks] = 52, False
    return p, 1


def _interactive(rng, seconds):
    return _stream(rng, seconds, _log(rng, 0.3, 30), _log(rng, 60, 200), 0.5, ACK | PSH), 1


def _media(rng, seconds):
    """Calls go both ways, camera streams one way."""
    return _stream(rng, seconds, _log(rng, 20, 1500), _log(rng, 100, 1400), rng.choice([0, 0.02, 0.5]), 0), 1


def _telemetry(rng, seconds):
    return _stream(rng, seconds, _log(rng, 0.2, 20), _log(rng, 40, 300), rng.choice([0, 0.5]), rng.choice([0, ACK | PSH])), 1


def _scan(rng, seconds):
    """Connection requests to many ports, that are refused, dropped or now and then answered and reset."""
    rate = _log(rng, 5, 20_000)
    n = int(min(rate * seconds, MOST // 2)) + 3
    time = np.sort(rng.uniform(0, seconds, n))
    answered = rng.random(n) < rng.choice([0, 0.1, 1])
    opened = answered & (rng.random(n) < 0.02)
    requests = _packets(time, False, rng.choice([40, 44, 60]), SYN, False)
    refusals = _packets(time[answered] + 1e-3, True, 40, np.where(opened[answered], SYN | ACK, RST | ACK), False)
    resets = _packets(time[opened] + 2e-3, False, 40, RST, False)
    return _join([requests, refusals, resets]), max(1, rate * seconds / n)


def _flood(rng, seconds):
    """UDP, ICMP or SYN in masses, hardly answered."""
    rate = _log(rng, 4000, 1_000_000)
    kind = rng.choice(["udp", "syn", "ack"])
    length = {"udp": _log(rng, 28, 1500), "syn": 40, "ack": 40}[kind]
    p = _stream(rng, seconds, rate, length, rng.choice([0, 0.05]), {"udp": 0, "syn": SYN, "ack": ACK}[kind])
    p.payload[:] = kind == "udp" and length > 28
    return p, max(1, rate * seconds / len(p.time))


_MAKERS = {"normal": (_web, _service, _bulk, _interactive, _media, _telemetry), "scan": (_scan,), "flood": (_flood,)}


def windows(rng, n, seconds=5.0, progress=lambda done: None):
    """About n windows: (features, classes). Some are cut short, as those are in which a peer comes or goes; empty ones are none."""
    x, y = [], []
    for i in range(n):
        name = CLASSES[rng.choice(3, p=[0.6, 0.2, 0.2])]
        maker = _MAKERS[name][rng.integers(len(_MAKERS[name]))]
        length = seconds if rng.random() < 0.7 else rng.uniform(0.2, 1) * seconds
        packets, factor = maker(rng, length)
        if len(packets.time):
            x.append(features(packets, factor))
            y.append(CLASSES.index(name))
        progress(i + 1)
    return np.array(x, dtype=np.int64), np.array(y)
