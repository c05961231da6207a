# SPDX-License-Identifier: Apache-2.0
"""The shipped forests, on networks and rates that they were not trained on."""

import json
from dataclasses import replace

import numpy as np
import pytest

from conftest import random_numbers
from kerb_ml import flows, model, simulate, windows
from kerb_ml.windows import Event

WINDOWS = (1, 5, 10)


def load(shipped, name):
    doc = json.loads((shipped / f"{name}.json").read_text())
    return doc, model.from_document(doc)


@pytest.mark.parametrize("seconds", WINDOWS)
def test_nobody_is_accused_in_peace(shipped, seconds):
    doc, found = load(shipped, f"rpl-floods-{seconds}s")
    rng, evaluations, accused = random_numbers(1234), 0, 0
    for _ in range(12):
        rows = windows.rows(simulate.events(rng, simulate.draw(rng, attackers=0), 200), seconds, rng.uniform(0, seconds))
        evaluations += len(rows)
        accused += (found.decide(windows.matrix(rows, doc["features"])) > 0).sum()
    assert accused <= evaluations * 2e-4, f"{accused} of {evaluations}"


@pytest.mark.parametrize("kind, rates", [("dis", (1, 2, 5, 30, 100, 1000)), ("dio", (20, 150, 1000)), ("dao", (5, 10, 40, 1000))])
@pytest.mark.parametrize("seconds", WINDOWS)
def test_floods_are_found_within_two_windows(shipped, seconds, kind, rates):
    doc, found = load(shipped, f"rpl-floods-{seconds}s")
    rng = random_numbers(99)
    quiet = simulate.draw(rng, attackers=0)
    for rate in rates:
        peace = simulate.events(rng, replace(quiet, nodes=10), 60)
        attacker = max(peace, key=lambda e: e.source).source
        for offset in np.linspace(0, seconds, 5, endpoint=False):
            start = 30 + rng.uniform(0, seconds)
            flood = [Event(start + n / rate, attacker, kind) for n in range(int(2 * seconds * rate) + 1)]
            rows = [r for r in windows.rows(peace + flood, seconds, offset) if r.source == attacker]
            first = int((start - offset) // seconds)
            against = found.decide(windows.matrix(rows, doc["features"])) > 0
            assert any(a for r, a in zip(rows, against) if r.window in (first, first + 1)), f"{rate}/s, windows at {offset}"


@pytest.mark.parametrize("seconds, rate", [(1, 15), (5, 6), (10, 5)])
def test_mixed_floods_are_found_within_two_windows(shipped, seconds, rate):
    """DIS, DIO and DAO by chance, at a rate in all at which each alone is hard to tell, by three attackers at the same time."""
    doc, found = load(shipped, f"rpl-floods-{seconds}s")
    rng = random_numbers(42)
    peace = simulate.events(rng, replace(simulate.draw(rng, attackers=0), nodes=10), 90)
    for offset in np.linspace(0, seconds, 5, endpoint=False):
        start = 40 + rng.uniform(0, seconds)
        attackers = sorted({e.source for e in peace})[:3]
        flood = [Event(start + n / rate, a, str(rng.choice(["dis", "dio", "dao"]))) for a in attackers for n in range(int(2 * seconds * rate) + 1)]
        rows = windows.rows(peace + flood, seconds, offset)
        first = int((start - offset) // seconds)
        against = found.decide(windows.matrix(rows, doc["features"])) > 0
        assert {r.source for r, a in zip(rows, against) if a and r.window in (first, first + 1)} == set(attackers), f"windows at {offset}"


@pytest.mark.parametrize("seconds", (5, 10))
@pytest.mark.parametrize("trickle_min", (2**-7, 1, 4))
def test_repairs_are_no_attack(shipped, seconds, trickle_min):
    """The root has the network start over twice a minute, nodes lose their parents and solicit every 5 s."""
    doc, found = load(shipped, f"rpl-floods-{seconds}s")
    rng = random_numbers(8)
    quiet = simulate.draw(rng, attackers=0)
    restless = replace(quiet, nodes=40, trickle_min=trickle_min, trickle_doublings=16, solicit=5, resets=1e-3, orphaned=1e-3, repaired=1 / 30)
    rows = windows.rows(simulate.events(rng, restless, 300), seconds, 0.3)
    accused = (found.decide(windows.matrix(rows, doc["features"])) > 0).sum()
    assert len(rows) > 900 and accused <= len(rows) * 1e-3, f"{accused} of {len(rows)}"


@pytest.mark.parametrize("seconds", WINDOWS)
def test_more_of_it_is_never_better(shipped, seconds):
    """Far beyond what was trained on too; a flood is no less of one for the source's other messages."""
    doc, found = load(shipped, f"rpl-floods-{seconds}s")
    rng = random_numbers(5)
    for feature in ("dis", "dio", "dao"):
        x = rng.integers(0, 4, (300, len(doc["features"])))
        for n in (70 if seconds > 1 else 25, 200, 5000, 2**31 - 1):
            x[:, doc["features"].index(feature)] = n
            assert (found.decide(x) > 0).all(), f"{n} {feature}"


def test_flows(shipped):
    _, found = load(shipped, "flow-floods")
    x, y = flows.windows(random_numbers(77), 400)
    assert (found.decide(x) == y).mean() > 0.97
    assert ((found.decide(x) > 0) & (y == 0)).sum() <= 2


def test_published_perceptrons_have_the_published_shape(shipped):
    for seconds in WINDOWS:
        doc, _ = load(shipped, f"rpl-hello-{seconds}s")
        assert [len(layer["weights"]) for layer in doc["layers"]] == [3, 2, 1]
        assert doc["features"] == list(windows.PUBLISHED) and doc["accuracy"] >= 0.99
        assert doc["rules"][0]["rule"] == "dis > 0"
