# SPDX-License-Identifier: Apache-2.0
"""Messages counted by source and window: what the `rpl` extractor hands to a model."""

import csv
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from . import frames, pcap

REMEMBERED = 8  # sequence numbers per source: ContikiMAC repeats a frame up to 39 times, never behind another of its own


@dataclass(frozen=True)
class Event:
    """One message, with what is known of its purpose when it was made rather than captured."""

    time: float
    source: bytes
    kind: str
    attack: bool = False


def capture(path):
    """The messages in a pcap file, each once however often its frame was repeated."""
    seen = defaultdict(lambda: deque(maxlen=REMEMBERED))
    for time, frame in pcap.read(path):
        try:
            message = frames.parse(frame)
        except frames.Malformed:
            continue
        if message is None or message.sequence in seen[message.link]:
            continue
        if message.sequence is not None:
            seen[message.link].append(message.sequence)
        yield Event(time, message.node, message.kind)


def attacks(path):
    """The (start, end) of the attack that a file `*.attack-intervals.txt` tells, in seconds; the last may have no end."""
    times = [(int(line.split()[0]) * 1e-6, line.rstrip().endswith("ON")) for line in open(path)]
    ends = [t for t, on in times if not on] + [float("inf")]
    return list(zip([t for t, on in times if on], ends))


def floods(events, pause=2.0):
    """(source, start, end) of each flood: messages of an attack with pauses of at most so many seconds between them."""
    found = {}
    for e in (e for e in events if e.attack):
        of_source = found.setdefault(e.source, [])
        if of_source and e.time - of_source[-1][1] <= pause:
            of_source[-1][1] = e.time
        else:
            of_source.append([e.time, e.time])
    return [(source, begin, end + 1e-6) for source, all in found.items() for begin, end in all]


@dataclass
class Row:
    """A source in a window; before is the window before it."""

    window: int
    source: bytes
    counts: Counter = field(default_factory=Counter)
    attacks: Counter = field(default_factory=Counter)  # messages of an attack among them, by kind
    before: "Row | None" = None


def rows(events, seconds, offset=0.0):
    """One row for each window in which a source sent anything, by time."""
    found = {}
    for e in events:
        key = int((e.time - offset) // seconds), e.source
        row = found.setdefault(key, Row(*key))
        row.counts[e.kind] += 1
        row.attacks[e.kind] += e.attack
    for (window, source), row in found.items():
        row.before = found.get((window - 1, source))
    return sorted(found.values(), key=lambda r: (r.window, r.source))


def matrix(found, features):
    """Rows as numbers, a column per feature: kinds of messages, and those of the window before."""
    return np.array([[_value(r, f) for f in features] for r in found], dtype=np.int64).reshape(len(found), len(features))


def _value(row, feature):
    if feature.endswith("Before"):
        return row.before.counts[feature.removesuffix("Before")] if row.before else 0
    return row.counts[feature]


PUBLISHED = ("dis", "dio", "dao", "other")
_COLUMNS = ("DisCount", "DioCount", "DaoCount", "OtherMsg")


def published(path):
    """The published study's windows: (counts in the order of PUBLISHED, labels). They count frames, repetitions included."""
    with open(path, newline="") as f:
        table = list(csv.DictReader(f, delimiter=";"))
    if not table or not set(_COLUMNS) < set(table[0]):
        raise ValueError(f"{path}: not a table with the columns second;src;{';'.join(_COLUMNS)};label")
    counts = np.array([[int(row[c]) for c in _COLUMNS] for row in table], dtype=np.int64)
    return counts, np.array([int(row["label"]) for row in table])
