# SPDX-License-Identifier: Apache-2.0
"""The shipped forests on networks and attackers that the simulator does not make: kept apart from it on purpose."""

import json

import numpy as np
import pytest

from conftest import random_numbers
from kerb_ml import frames, model, windows
from kerb_ml.windows import Event

SECONDS, ATTACK = 150, (100, 140)


def node(n):
    return frames.interface_id(bytes.fromhex("00124b0006") + n.to_bytes(3, "big"))


def peace(rng, nodes=12, trickle=4.0, solicit=30.0, formation=30.0, refresh=600.0, repairs=()):
    """Nodes solicit until they join, send DIO by Trickle timers, which repairs of the network start again, DAO and readings."""
    for source in map(node, range(2, nodes + 2)):
        joined = rng.uniform(0, formation)
        for time in np.arange(rng.uniform(0, solicit), joined, solicit):
            yield Event(time, source, "dis")
        begins = [joined, *(t + rng.uniform(0, 2) for t in repairs if t > joined)]
        for begin, end in zip(begins, [*begins[1:], SECONDS]):
            yield Event(begin + rng.uniform(1, 4), source, "dao")
            interval = trickle
            while begin + interval < end:
                yield Event(begin + interval * rng.uniform(0.5, 1), source, "dio")
                begin, interval = begin + interval, min(2 * interval, 1024)
        for time in np.arange(joined + rng.uniform(0, refresh), SECONDS, refresh):
            yield Event(time, source, "dao")
        for time in np.arange(joined + rng.uniform(0, 10), SECONDS, 10):
            yield Event(time, source, "other")


def flood(rng, source, kinds, rate, style):
    """Evenly, by chance, or ten at once."""
    begin, end = ATTACK[0] + rng.uniform(0, 10), ATTACK[1]
    gaps = {"even": np.full(9999, 1 / rate), "chance": rng.exponential(1 / rate, 9999), "bursts": np.tile([*[0.005] * 9, 10 / rate], 1000)}[style]
    times = begin + np.cumsum(gaps) - gaps[0]
    return begin, [Event(t, source, kinds[n % len(kinds)]) for n, t in enumerate(times[times < end])]


def judged(shipped, seconds, heard):
    """For windows that begin at several times: {source: windows in which it is accused}, and how many rows there were."""
    doc = json.loads((shipped / f"rpl-floods-{seconds}s.json").read_text())
    forest = model.from_document(doc)
    for offset in np.linspace(0, seconds, 5, endpoint=False):
        rows = windows.rows(heard, seconds, offset)
        against, accused = forest.decide(windows.matrix(rows, doc["features"])) > 0, {}
        for row in (r for r, a in zip(rows, against) if a):
            accused.setdefault(row.source, set()).add(row.window)
        yield offset, accused, len(rows)


@pytest.mark.parametrize("kinds, style, least", [
    (["dis"], "even", {1: 1, 5: 1, 10: 1}), (["dis"], "chance", {1: 5, 5: 2, 10: 1}), (["dis"], "bursts", {1: 5, 5: 5, 10: 2}),
    (["dio"], "even", {1: 20, 5: 10, 10: 5}), (["dio"], "chance", {1: 30, 5: 10, 10: 5}),
    (["dao"], "even", {1: 5, 5: 3, 10: 2}), (["dao"], "chance", {1: 10, 5: 4, 10: 3}),
    (["dio", "dao", "dis"], "even", {1: 5, 5: 3, 10: 2}), (["dio", "dao"], "even", {1: 20, 5: 10, 10: 5}),
])
@pytest.mark.parametrize("seconds", (1, 5, 10))
def test_floods(shipped, seconds, kinds, style, least):
    """From these rates on, all of two attackers are found within two windows, and no other node is accused."""
    for rate in (least[seconds], 50):
        rng = random_numbers(31)
        heard, begins = list(peace(rng)), {}
        for source in (node(2), node(9)):
            begins[source], events = flood(rng, source, kinds, rate, style)
            heard += events
        for offset, accused, _ in judged(shipped, seconds, heard):
            assert accused.keys() == begins.keys(), f"{rate}/s"
            for source, begin in begins.items():
                first = int((begin - offset) // seconds)
                assert accused[source] & {first, first + 1}, f"{rate}/s, windows at {offset}"


@pytest.mark.parametrize("seconds", (5, 10))
@pytest.mark.parametrize("network", [
    {"nodes": 5}, {"nodes": 60}, {"nodes": 60, "trickle": 2**-7}, {"nodes": 60, "formation": 3, "trickle": 1}, {"solicit": 5, "formation": 100},
    {"refresh": 2}, {"nodes": 30, "repairs": (60, 80, 120)}, {"nodes": 30, "trickle": 2**-7, "repairs": (60, 80, 120)},
])
def test_peace(shipped, seconds, network):
    """Start-up with bursts of Trickle timers, networks of 5 to 60 nodes, repairs."""
    heard = list(peace(random_numbers(32), **network))
    for _, accused, rows in judged(shipped, seconds, heard):
        assert rows > 50 and not accused
