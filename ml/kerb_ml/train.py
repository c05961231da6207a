# SPDX-License-Identifier: Apache-2.0
"""The examples that Kerb ships, and models of one's own data: recipes from data to document."""

import csv

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from . import flows, rules, simulate, windows
from .importers import sklearn as importer
from .model import Unsupported
from .progress import Progress

# A forest sees the window and the one before it, so that one evaluation is enough.
RPL_FEATURES = ("dis", "dio", "dao", "disBefore", "dioBefore", "daoBefore")
RPL_CLASSES = ("normal", "disFlood", "dioFlood", "daoFlood")
NETWORKS, SECONDS = 100, 400

# Messages of an attack, in a window and the one before, from which it must be found, by length of the window in seconds. With
# much fewer it must not: nodes that join or routers that repair send as many.
_TOLD = {1: {"dis": 2, "dio": 18, "dao": 6}, 5: {"dis": 5, "dio": 40, "dao": 18}, 10: {"dis": 8, "dio": 60, "dao": 26}}


def hello(table, seconds, seed=1):
    """The published perceptron 4-3-2-1, of the published windows: 80 % to train, 20 % to test, stratified."""
    x, y = windows.published(table)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    return _finish(
        _Luckiest(seed), (train_x, train_y), (test_x, test_y), name=f"rpl-hello-{seconds}s", features=windows.PUBLISHED, extractor="rpl", window=f"{seconds}s",
        classes=["normal", "helloFlood"], extra=[("dis > 0", lambda rows: rows[:, 0] > 0)],
        description="The published perceptron against DIS floods. Counts are of frames, repetitions included, as those that it was trained on.",
        trainedOn=f"{len(train_x)} of {len(x)} published windows of {seconds} s, tested on the others",
    )


class _Luckiest:
    """Neurons as few as these die now and then: the start with the least loss on what is trained with, of eight."""

    def __init__(self, seed):
        self.starts = range(seed, seed + 8)

    def fit(self, x, y):
        tries = [make_pipeline(StandardScaler(), MLPClassifier((3, 2), learning_rate_init=0.01, max_iter=3000, random_state=s)).fit(x, y) for s in self.starts]
        self.best = min(tries, key=lambda t: t[-1].loss_)


def rpl(seconds, networks=NETWORKS, seed=1):
    """A forest against floods of DIS, DIO and DAO, of simulated networks; it never saw a capture."""
    train, test = (_rpl_rows(s, seconds, n) for s, n in ((seed, networks), (seed + 1, max(2, networks // 3))))
    train = _busier(np.random.default_rng(seed), *train)
    estimator = RandomForestClassifier(10, max_depth=8, min_samples_leaf=5, max_features=None, class_weight={0: 3, 1: 1, 2: 1, 3: 1}, random_state=seed)
    return _finish(
        estimator, train, test, name=f"rpl-floods-{seconds}s", features=RPL_FEATURES, extractor="rpl", window=f"{seconds}s", classes=RPL_CLASSES,
        extra=[("dis > 0", lambda rows: rows[:, 0] > 0)],
        description="Floods of DIS, DIO and DAO, by messages in a window and the one before.",
        trainedOn=f"{len(train[0])} windows of {networks} simulated networks, tested on {len(test[0])} of others",
    )


def _rpl_rows(seed, seconds, networks):
    rng, xs, ys = np.random.default_rng(seed), [], []
    progress = Progress(f"simulating networks, windows of {seconds} s", networks)
    for n in range(networks):
        heard = simulate.events(rng, simulate.draw(rng), SECONDS)
        found = windows.rows(heard, seconds, rng.uniform(0, seconds))
        y = np.array([rpl_class(r, seconds) for r in found])
        xs.append(windows.matrix(found, RPL_FEATURES)[y >= 0])
        ys.append(y[y >= 0])
        progress(n + 1)
    return np.concatenate(xs), np.concatenate(ys)


def _busier(rng, x, y):
    """With every row of an attack twice more: a flood is no less of one for what else its sender does."""
    attack, normal = x[y > 0], x[y == 0]
    others = normal[rng.integers(0, len(normal), len(attack))]
    few = rng.integers(0, 5, attack.shape)
    return np.concatenate([x, attack + others, attack + few]), np.concatenate([y, y[y > 0], y[y > 0]])


def rpl_class(row, seconds):
    """The index of the row's class; -1 if it could be either, or the attack is over. Of several floods it is the first: trees that
    had to tell which is the largest would share their votes, and what is normal have more than each."""
    total = row.attacks + (row.before.attacks if row.before else type(row.attacks)())
    shares = {kind: total[kind] / told for kind, told in _TOLD[seconds].items()}
    if max(shares.values()) < 1:
        return 0 if max(shares.values()) < 0.7 else -1
    kind = next(kind for kind, share in shares.items() if share >= 1)
    return RPL_CLASSES.index(kind + "Flood") if +row.attacks else -1


def flow(number=6000, seed=1):
    """A forest against scans and floods, by remote address."""
    progress = Progress("making windows of flows", number + number // 3)
    train = flows.windows(np.random.default_rng(seed), number, progress=progress)
    test = flows.windows(np.random.default_rng(seed + 1), number // 3, progress=lambda done: progress(number + done))
    estimator = RandomForestClassifier(10, max_depth=8, min_samples_leaf=3, random_state=seed)
    return _finish(
        estimator, train, test, name="flow-floods", features=flows.FEATURES, extractor="flow", window="5s", classes=flows.CLASSES,
        description="Port scans and packet floods among ordinary traffic, by remote address (flow: {source: peer}).",
        trainedOn=f"{number} made windows of 5 s, tested on {number // 3} others",
    )


ESTIMATORS = {
    "mlp": lambda seed: make_pipeline(StandardScaler(), MLPClassifier((16, 32, 16), max_iter=500, random_state=seed)),
    "forest": lambda seed: RandomForestClassifier(10, max_depth=10, random_state=seed),
    "tree": lambda seed: DecisionTreeClassifier(max_depth=10, random_state=seed),
    "boosting": lambda seed: GradientBoostingClassifier(n_estimators=50, max_depth=3, random_state=seed),
    "logistic": lambda seed: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
}


def own(table, label, kind, name, extractor, window=None, normal=None, seed=1):
    """A model of somebody's table: a column per feature, one with the class. The class `normal`, or the first one met, comes first."""
    x, y, features, classes = read_table(table, label, normal)
    train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=0.2, stratify=y, random_state=seed)
    return _finish(
        ESTIMATORS[kind](seed), (train_x, train_y), (test_x, test_y), name=name, features=features, extractor=extractor, window=window, classes=classes,
        trainedOn=f"{len(train_x)} of {len(x)} rows of {table}, tested on the others",
    )


def read_table(path, label, normal=None):
    """(rows, indices of classes, features, classes) of a CSV file with a heading."""
    with open(path, newline="") as f:
        delimiter = ";" if ";" in f.readline() else ","
        f.seek(0)
        table = list(csv.DictReader(f, delimiter=delimiter))
    if not table:
        raise Unsupported(f"{path}: empty")
    if label not in table[0]:
        raise Unsupported(f"{path}: no column {label!r}; it has {', '.join(table[0])}")
    features = [c for c in table[0] if c not in (label, "time", "source")]  # those are of `kerb model windows` and record
    try:
        x = np.array([[float(row[c]) for c in features] for row in table])
    except (TypeError, ValueError) as e:
        raise Unsupported(f"{path}: {e}; all columns but {label!r} must be numbers") from e
    names = [row[label] for row in table]
    if normal and normal not in names:
        raise Unsupported(f"{path}: no row is {normal!r}; the column {label!r} has {', '.join(sorted(set(names)))}")
    classes = sorted(set(names), key=lambda c: (c != (normal or names[0]), c))
    if len(classes) < 2:
        raise Unsupported(f"{path}: only one class, {classes[0]}")
    return x, np.array([classes.index(n) for n in names]), features, classes


def _finish(estimator, train, test, *, classes, features, extra=(), **about):
    """Trains, tests, and writes what came out into the document, with the rules that do the same in one line."""
    estimator.fit(*train)
    x, y = test
    model = importer.convert(getattr(estimator, "best", estimator))
    model.classes = list(classes)
    accuracy = accuracy_score(y, model.decide(x))
    compared = [*extra, *(r for r in rules.best(train[0], train[1] > 0, features) if r[0] not in dict(extra))]
    about["rules"] = rules.judged(compared, x, y > 0)
    return model.document(features=features, accuracy=round(float(accuracy), 4), **about)


def shipped(data):
    """Every model that Kerb ships; data is the directory of the published windows."""
    for seconds in (1, 5, 10):
        yield hello(f"{data}/helloFlood{seconds}sFrame.csv", seconds)
        yield rpl(seconds)
    yield flow()
