# SPDX-License-Identifier: Apache-2.0
"""The shipped forests, on networks and rates that they were not trained on."""

import json
from dataclasses import replace

import numpy as np
import pytest

from kerb_ml import flows, model, simulate, windows
from kerb_ml.windows import Event

WINDOWS = (1, 5, 10)


def load(shipped, name):
    doc = json.loads((shipped / f"{name}.json").read_text())
    return doc, model.from_document(doc)


@pytest.mark.parametrize("seconds", WINDOWS)
def test_nobody_is_accused_in_peace(shipped, seconds):
    doc, found = load(shipped, f"rpl-floods-{seconds}s")
    rng, evaluations, accused = np.random.default_rng(1234), 0, 0
    for _ in range(12):
        rows = windows.rows(simulate.events(rng, simulate.draw(rng, attackers=0), 200), seconds, rng.uniform(0, seconds))
        evaluations += len(rows)
        accused += (found.decide(windows.matrix(rows, doc["features"])) > 0).sum()
    assert accused <= evaluations * 2e-4, f"{accused} of {evaluations}"


@pytest.mark.parametrize("kind, rates", [("dis", (1, 2, 5, 30, 100, 1000)), ("dio", (20, 150, 1000)), ("dao", (5, 10, 40, 1000))])
@pytest.mark.parametrize("seconds", WINDOWS)
def test_floods_are_found_within_two_windows(shipped, seconds, kind, rates):
    doc, found = load(shipped, f"rpl-floods-{seconds}s")
    rng = np.random.default_rng(99)
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


@pytest.mark.parametrize("seconds", WINDOWS)
def test_more_of_it_is_never_better(shipped, seconds):
    """Far beyond what was trained on too; a flood is no less of one for the source's other messages."""
    doc, found = load(shipped, f"rpl-floods-{seconds}s")
    rng = np.random.default_rng(5)
    for feature in ("dis", "dio", "dao"):
        x = rng.integers(0, 4, (300, len(doc["features"])))
        for n in (70 if seconds > 1 else 25, 200, 5000, 2**31 - 1):
            x[:, doc["features"].index(feature)] = n
            assert (found.decide(x) > 0).all(), f"{n} {feature}"


def test_flows(shipped):
    _, found = load(shipped, "flow-floods")
    x, y = flows.windows(np.random.default_rng(77), 400)
    assert (found.decide(x) == y).mean() > 0.97
    assert ((found.decide(x) > 0) & (y == 0)).sum() <= 2


def test_published_perceptrons_have_the_published_shape(shipped):
    for seconds in WINDOWS:
        doc, _ = load(shipped, f"rpl-hello-{seconds}s")
        assert [len(layer["weights"]) for layer in doc["layers"]] == [3, 2, 1]
        assert doc["features"] == list(windows.PUBLISHED) and doc["accuracy"] >= 0.99
        assert doc["rules"][0]["rule"] == "dis > 0"
