# SPDX-License-Identifier: Apache-2.0
"""What a model finds in a capture of an RPL network, and whom it accuses wrongly."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from . import windows


@dataclass
class Result:
    """evaluations: of benign sources; accused: of those, by source; late: attacks not found by the end of the second window."""

    evaluations: int = 0
    accused: dict = field(default_factory=dict)
    attacks: int = 0
    late: int = 0


def intervals(capture):
    """Attacks told by the file alongside a capture, if there is one."""
    path = Path(str(capture).replace("-root.pcap", ".attack-intervals.txt"))
    return windows.attacks(path) if path != Path(capture) and path.exists() else []


def judge(model, features, capture, seconds, attackers=frozenset(), alignments=10):
    """Runs over the capture with windows that begin at several times. The second window of an attack is the one after that in
    which it begins; attacks that end before are not counted."""
    heard, result = list(windows.capture(capture)), Result()
    for offset in np.linspace(0, seconds, alignments, endpoint=False):
        found = windows.rows(heard, seconds, offset)
        against = model.decide(windows.matrix(found, features)) > 0
        hits = {r.window for r, a in zip(found, against) if a and r.source in attackers}
        for row, accused in zip(found, against):
            if row.source not in attackers:
                result.evaluations += 1
                if accused:
                    result.accused[row.source] = result.accused.get(row.source, 0) + 1
        for start, end in intervals(capture):
            first = int((start - offset) // seconds)
            if min(end, heard[-1].time) >= offset + (first + 2) * seconds:
                result.attacks += 1
                result.late += not hits & {first, first + 1}
    return result
