# SPDX-License-Identifier: Apache-2.0
"""One-line rules: what a model has to be better than."""

import numpy as np


def best(x, attack, features, most=3):
    """The rules `feature > number` that are right most often, one per feature, as (text, function of rows)."""
    found = []
    for column, feature in enumerate(features):
        share, threshold = _threshold(x[:, column], attack)
        found.append((share, f"{feature} > {threshold}", lambda rows, c=column, t=threshold: rows[:, c] > t))
    found.sort(key=lambda f: -f[0])
    return [(text, rule) for _, text, rule in found[:most]]


def _threshold(values, attack):
    """The number that `value > number` is right for most often, and the share."""
    levels, place = np.unique(values, return_inverse=True)
    attacks = np.bincount(place, weights=attack)
    normal = np.bincount(place, weights=~attack)
    right = normal.cumsum() + attacks.sum() - attacks.cumsum()
    at = int(right.argmax())
    return right[at] / len(values), int(levels[at])


def judged(rules, x, attack):
    """The rules as the document has them."""
    return [{"rule": text, "accuracy": round(float((rule(x) == attack).mean()), 4)} for text, rule in rules]
