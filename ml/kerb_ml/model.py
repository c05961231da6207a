# SPDX-License-Identifier: Apache-2.0
"""A model between the tool that trained it and the document kerb-model/1, and what it says in floating point."""

import json
from dataclasses import dataclass, field

import numpy as np

FORMAT = "kerb-model/1"
MAX_FEATURES = MAX_WIDTH = 64
MAX_LAYERS, MAX_CLASSES, MAX_TREES, MAX_DEPTH, MAX_WORDS = 8, 16, 320, 20, 32768
LINES = ("mlp", "conv1d", "logistic", "linear")  # kinds made of layers
TREES = ("tree", "forest", "boosting")


class Unsupported(ValueError):
    """Says what cannot be imported, and what to do instead."""


@dataclass
class Affine:
    """(x - offset) / factor, by feature."""

    offset: np.ndarray
    factor: np.ndarray

    def after(self, first):
        if first is None:
            return self
        return Affine(first.offset + self.offset * first.factor, first.factor * self.factor)

    def __call__(self, x):
        return (x - self.offset) / self.factor


@dataclass
class Layer:
    """Dense: weights by neuron, then by input. With conv (the document's) a one-dimensional convolution."""

    weights: np.ndarray
    bias: np.ndarray
    activation: str
    slope: float = 0.01  # of leakyRelu
    conv: dict | None = None

    def __call__(self, x):
        z = _convolve(self, x) if self.conv else x @ self.weights.T + self.bias
        return _ACTIVATIONS[self.activation](z, self.slope)


@dataclass
class Tree:
    """Nodes side by side; left is for values up to the threshold, -1 at leaves. value: by node, then by output."""

    feature: list
    threshold: list
    left: list
    right: list
    value: np.ndarray

    def __call__(self, x):
        at = np.zeros(len(x), dtype=np.int64)
        feature, threshold, left, right = (np.asarray(a) for a in (self.feature, self.threshold, self.left, self.right))
        while (inner := left[at] >= 0).any():
            goes_left = x[np.arange(len(x)), np.where(inner, feature[at], 0)] <= threshold[at]
            at = np.where(inner, np.where(goes_left, left[at], right[at]), at)
        return np.asarray(self.value)[at]

    def depth(self, at=0):
        return 0 if self.left[at] < 0 else 1 + max(self.depth(self.left[at]), self.depth(self.right[at]))


@dataclass
class Model:
    kind: str
    layers: list = field(default_factory=list)
    trees: list = field(default_factory=list)
    base: np.ndarray | None = None  # of boosting
    classes: list = field(default_factory=list)
    threshold: float | None = None
    inputs: int = 0
    scale: Affine | None = None

    def outputs(self, x):
        """One column for models of two classes (logits of boosting, what the last layer gives), else one per class."""
        x = np.asarray(x, dtype=float)
        x = self.scale(x) if self.scale else x
        if self.kind in LINES:
            for layer in self.layers:
                x = layer(x)
            return x
        total = sum(t(x) for t in self.trees)
        return total + self.base if self.kind == "boosting" else total / len(self.trees)

    def decide(self, x):
        """The index of the class, by row."""
        out = self.outputs(x)
        if out.shape[1] > 1 and (self.threshold is None or out.shape[1] > 2):
            return out.argmax(axis=1)
        last = out[:, -1]
        if self.kind == "boosting":
            last = _sigmoid(last)
        zero = 0.0 if self.kind == "linear" else 0.5
        return (last > (zero if self.threshold is None else self.threshold)).astype(int)

    def check(self):
        """Complains of what no model may have; the data plane's own limits are checked once more where it is loaded."""
        if not 1 <= self.inputs <= MAX_FEATURES:
            raise Unsupported(f"{self.inputs} features: a model may have {MAX_FEATURES}")
        if not 2 <= len(self.classes) <= MAX_CLASSES:
            raise Unsupported(f"{len(self.classes)} classes: a model needs 2 to {MAX_CLASSES}")
        if self.scale is not None:
            _finite(self.scale.offset, "the scaler's mean")
            _finite(self.scale.factor, "the scaler's deviation")
        self._check_layers() if self.kind in LINES else self._check_trees()

    def _check_layers(self):
        if not 1 <= len(self.layers) <= MAX_LAYERS:
            raise Unsupported(f"{len(self.layers)} layers: a model may have {MAX_LAYERS}; train a shallower one")
        for n, layer in enumerate(self.layers):
            _finite(layer.weights, f"layer {n}, weights")
            _finite(layer.bias, f"layer {n}, bias")
            if not layer.conv and max(np.shape(layer.weights)) > MAX_WIDTH:
                raise Unsupported(f"layer {n} is {np.shape(layer.weights)}: at most {MAX_WIDTH} wide; train a narrower one")

    def _check_trees(self):
        nodes = sum(len(t.left) for t in self.trees)
        if not 1 <= len(self.trees) <= MAX_TREES or nodes > MAX_WORDS:
            raise Unsupported(f"{len(self.trees)} trees, {nodes} nodes: at most {MAX_TREES} and {MAX_WORDS}; set n_estimators and max_depth lower")
        for n, tree in enumerate(self.trees):
            _finite(tree.value, f"tree {n}, values")
            _finite([t for t, left in zip(tree.threshold, tree.left) if left >= 0], f"tree {n}, thresholds")
            if tree.depth() > MAX_DEPTH:
                raise Unsupported(f"tree {n} is {tree.depth()} deep: at most {MAX_DEPTH}; set max_depth")

    def document(self, name, features, extractor, version=1, **more):
        """The document. more: description, window, trainedOn, accuracy, rules, arithmetic, ranges."""
        self.check()
        if len(features) != self.inputs:
            raise Unsupported(f"{len(features)} feature names for a model of {self.inputs} features")
        doc = {"format": FORMAT, "name": name, "version": version, "extractor": extractor, "features": list(features), "kind": self.kind}
        if self.scale is not None:
            doc["scale"] = {"mean": _plain(self.scale.offset), "std": _plain(self.scale.factor)}
        if self.layers:
            doc["layers"] = [_layer_document(layer) for layer in self.layers]
        if self.trees:
            doc["trees"] = [_nodes(t, self._outputs_of(n)) for n, t in enumerate(self.trees)]
        if self.base is not None:
            doc["base"] = _plain(self.base)
        doc["classes"] = list(self.classes)
        if self.threshold is not None:
            doc["threshold"] = float(self.threshold)
        return doc | {key: value for key, value in more.items() if value is not None}

    def _outputs_of(self, tree):
        """Trees of boosting have one value each and take turns; others have one for each class."""
        return slice(tree % len(self.base), tree % len(self.base) + 1) if self.kind == "boosting" else slice(None)


def from_document(doc):
    """The model in a document, to compare with."""
    if doc.get("format") != FORMAT:
        raise Unsupported(f"format {doc.get('format')!r}: not {FORMAT}")
    scale = doc.get("scale")
    if scale:
        low, high = (np.array(scale[k]) for k in (("mean", "std") if "mean" in scale else ("min", "max")))
        scale = Affine(low, high if "mean" in scale else high - low)
    base = np.array(doc["base"]) if "base" in doc else None
    layers = [Layer(np.array(layer["weights"]), np.array(layer["bias"]), layer["activation"], layer.get("slope", 0.01), layer.get("conv"))
              for layer in doc.get("layers", [])]
    trees = [_tree(nodes, 0 if base is None else n % len(base), 0 if base is None else len(base)) for n, nodes in enumerate(doc.get("trees", []))]
    return Model(doc["kind"], layers, trees, base, doc["classes"], doc.get("threshold"), len(doc["features"]), scale or None)


def write(doc, path):
    """One line per layer's neuron or tree, so that versions can be compared."""
    text = json.dumps(doc, allow_nan=False, separators=(",", ":"))
    for mark in ('"layers":[', '"trees":[', '{"weights":[', ',[{"', '"classes":', '"bias":'):
        text = text.replace(mark, "\n" + mark)
    with open(path, "w") as f:
        f.write(text + "\n")


def _layer_document(layer):
    doc = {"weights": _plain(layer.weights), "bias": _plain(layer.bias), "activation": layer.activation}
    if layer.activation == "leakyRelu":
        doc["slope"] = layer.slope
    return doc | ({"conv": layer.conv} if layer.conv else {})


def _nodes(tree, outputs):
    nodes = []
    for n, left in enumerate(tree.left):
        if left < 0:
            nodes.append({"value": _plain(np.asarray(tree.value)[n][outputs])})
        else:
            nodes.append({"feature": int(tree.feature[n]), "threshold": float(tree.threshold[n]), "left": int(left), "right": int(tree.right[n])})
    return nodes


def _tree(nodes, place, outputs):
    width = outputs or max(len(n.get("value", ())) for n in nodes)
    value = np.zeros((len(nodes), width))
    for n, node in enumerate(nodes):
        if "value" in node:
            value[n, slice(place, place + 1) if outputs else slice(None)] = node["value"]
    split = [n.get("left", -1) if "value" not in n else -1 for n in nodes]
    return Tree([n.get("feature", 0) for n in nodes], [n.get("threshold", 0.0) for n in nodes], split, [n.get("right", -1) for n in nodes], value)


def _plain(values):
    return np.asarray(values, dtype=float).round(15).tolist()


def _finite(values, what):
    values = np.asarray(values, dtype=float)
    if not np.isfinite(values).all():
        bad = [int(i) for i in np.argwhere(~np.isfinite(np.atleast_1d(values)))[0]]
        raise Unsupported(f"{what}{bad}: not a number or infinite; train again with a lower learning rate or without such rows")


def _sigmoid(z):
    return 1 / (1 + np.exp(-np.clip(z, -700, 700)))


def _softmax(z, _):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


_ACTIVATIONS = {
    "identity": lambda z, _: z,
    "argmax": lambda z, _: z,
    "relu": lambda z, _: np.maximum(z, 0),
    "leakyRelu": lambda z, slope: np.where(z < 0, slope * z, z),
    "sigmoid": lambda z, _: _sigmoid(z),
    "tanh": lambda z, _: np.tanh(z),
    "softmax": _softmax,
}


def _convolve(layer, x):
    """Values are channel by channel, before and behind the layer."""
    channels, kernel = layer.conv["channels"], layer.conv["kernel"]
    stride, padding = layer.conv.get("stride", 1), layer.conv.get("padding", 0)
    signal = np.pad(x.reshape(len(x), channels, -1), ((0, 0), (0, 0), (padding, padding)))
    steps = (signal.shape[2] - kernel) // stride + 1
    parts = np.stack([signal[:, :, s * stride : s * stride + kernel].reshape(len(x), -1) for s in range(steps)], axis=1)
    z = parts @ np.asarray(layer.weights).T + layer.bias  # rows, steps, filters
    if layer.conv.get("pool") == "average":
        return z.mean(axis=1)
    return z.transpose(0, 2, 1).reshape(len(x), -1)

