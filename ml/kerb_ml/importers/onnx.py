# SPDX-License-Identifier: Apache-2.0
"""ONNX: perceptrons and convolutions as chains of operators (PyTorch, Keras, skl2onnx), linear models, ensembles of trees."""

from collections import defaultdict

import numpy as np
import onnx
from onnx import numpy_helper

from ..model import Affine, Layer, Model, Tree, Unsupported
from .treelite import up_to

# What exporters put around a model without changing what it decides.
_NEUTRAL = {"Cast", "Identity", "Flatten", "Reshape", "Dropout", "Unsqueeze", "Squeeze"}
_AFTERWARDS = _NEUTRAL | {"Sub", "Concat", "ArgMax", "ArrayFeatureExtractor", "ZipMap", "Normalizer", "Softmax"}
_ACTIVATIONS = {"Relu": "relu", "LeakyRelu": "leakyRelu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softmax": "softmax"}
_MODES = {"BRANCH_LEQ": "<=", "BRANCH_LT": "<", "BRANCH_GT": ">", "BRANCH_GTE": ">="}


def load(path):
    try:
        graph = onnx.load(path).graph
    except Exception as e:  # protobuf has its own errors, which change with its versions
        raise Unsupported(f"{path}: not an ONNX model: {e}") from e
    return _Import(graph).model()


class _Import:
    """Follows the one input through the graph to the model's output."""

    def __init__(self, graph):
        self.constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                self.constants[node.output[0]] = _attributes(node)["value"]
        self.users = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self.users[name].append(node)
        inputs = [i for i in graph.input if i.name not in self.constants]
        if len(inputs) != 1:
            raise Unsupported(f"{len(inputs)} inputs: export the model with one input, all features in a row")
        self.at, self.width = inputs[0].name, _width(inputs[0])
        self.scale, self.layers = None, []

    def model(self):
        while True:
            users = [u for u in self.users[self.at] if u.op_type != "Shape"]
            if not users or (self.layers and all(u.op_type in _AFTERWARDS - _ACTIVATIONS.keys() for u in users) and not self._goes_on(users)):
                return self._layered()
            if len(users) > 1:
                raise Unsupported(f"{users[0].op_type} and {users[1].op_type} read the same value: only chains of layers are known")
            found = self._take(users[0])
            if found:
                return found
            self.at = users[0].output[0]

    def _goes_on(self, users):
        """Flatten and the like between two layers."""
        return len(users) == 1 and users[0].op_type in _NEUTRAL and bool(self.users[users[0].output[0]])

    def _take(self, node):
        op, a = node.op_type, _attributes(node)
        if op in _NEUTRAL:
            return None
        if op in _ACTIVATIONS:
            self._activate(op, a)
        elif op in ("Gemm", "MatMul", "Conv"):
            self._layer(op, node, a)
        elif op in ("Add", "Sub", "Mul", "Div", "Scaler"):
            self._arithmetic(op, node, a)
        elif op == "LinearClassifier":
            return self._finish(_linear(a))
        elif op == "TreeEnsembleClassifier":
            return self._finish(_trees(a))
        else:
            raise Unsupported(f"operator {op}: not one of Gemm, MatMul, Add, Conv, {', '.join(_ACTIVATIONS)}, Scaler, LinearClassifier, TreeEnsembleClassifier")
        return None

    def _activate(self, op, a):
        if not self.layers or self.layers[-1].activation != "identity":
            raise Unsupported(f"{op} that does not follow a layer")
        self.layers[-1].activation = _ACTIVATIONS[op]
        self.layers[-1].slope = a.get("alpha", 0.01)

    def _constant(self, node, n):
        if n >= len(node.input) or node.input[n] not in self.constants:
            raise Unsupported(f"{node.op_type} with weights that are no constants: export the model with its weights, after training")
        return np.asarray(self.constants[node.input[n]], dtype=float)

    def _layer(self, op, node, a):
        weights = self._constant(node, 1)
        if op == "Conv":
            bias = self._constant(node, 2) if len(node.input) > 2 else np.zeros(len(weights))
            self.layers.append(_conv(weights, bias, a))
            return
        weights = weights if op == "Gemm" and a.get("transB") else weights.T
        bias = np.zeros(len(weights))
        if op == "Gemm":
            weights = weights * a.get("alpha", 1.0)
            if len(node.input) > 2:
                bias = bias + self._constant(node, 2).ravel() * a.get("beta", 1.0)
        self.layers.append(Layer(weights, bias, "identity"))

    def _arithmetic(self, op, node, a):
        if op == "Scaler":
            self._scale(np.array(a["offset"]), 1 / np.array(a["scale"]))
            return
        value = self._constant(node, 0 if node.input[0] in self.constants else 1).ravel()
        if op == "Add" and self.layers and self.layers[-1].activation == "identity":
            self.layers[-1].bias = self.layers[-1].bias + value
        elif not self.layers and node.input[0] not in self.constants:
            self._scale(value if op == "Sub" else -value if op == "Add" else 0 * value, value if op == "Div" else 1 / value if op == "Mul" else 0 * value + 1)
        else:
            raise Unsupported(f"{op} between layers: only the bias of a layer, and scaling before the first")

    def _scale(self, offset, factor):
        shape = np.broadcast_shapes(offset.shape, factor.shape, (self.width or 1,))
        self.scale = Affine(np.broadcast_to(offset, shape), np.broadcast_to(factor, shape)).after(self.scale)

    def _layered(self):
        if not self.layers:
            raise Unsupported("no layers in it")
        outputs = len(self.layers[-1].weights)
        kind = "conv1d" if any(layer.conv for layer in self.layers) else "mlp" if len(self.layers) > 1 else "logistic"
        if self.layers[-1].activation == "identity":  # PyTorch leaves softmax and sigmoid to its loss
            self.layers[-1].activation = "sigmoid" if outputs == 1 else "softmax"
        return self._finish(Model(kind, layers=self.layers, classes=_names(max(outputs, 2))))

    def _finish(self, model):
        model.scale = self.scale
        model.inputs = self.width or model.inputs or (0 if model.layers[0].conv else np.shape(model.layers[0].weights)[1])
        return model


def _attributes(node):
    return {a.name: _decoded(onnx.helper.get_attribute_value(a)) for a in node.attribute}


def _decoded(value):
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return [v.decode() for v in value]
    return value


def _width(value):
    """Features of a row; the first dimension is of rows. None if the file leaves it open."""
    sizes = [d.dim_value for d in value.type.tensor_type.shape.dim][1:]
    return int(np.prod(sizes)) if sizes and all(sizes) else None


def _names(n):
    return ["normal", "attack"] if n == 2 else ["normal", *(f"class{i}" for i in range(1, n))]


def _labels(a, n):
    labels = a.get("classlabels_strings") or a.get("classlabels_int64s") or a.get("classlabels_ints") or _names(n)
    return [str(label) for label in labels]


def _conv(weights, bias, a):
    if weights.ndim != 3 or a.get("group", 1) != 1 or set(a.get("dilations", [1])) != {1} or a.get("auto_pad", "NOTSET") != "NOTSET":
        raise Unsupported("a convolution other than 1-D without groups, dilation and automatic padding")
    before, after = a.get("pads", [0, 0])
    if before != after:
        raise Unsupported("a convolution with unequal padding")
    conv = {"channels": weights.shape[1], "kernel": weights.shape[2], "stride": a.get("strides", [1])[0], "padding": before}
    return Layer(weights.reshape(len(weights), -1), bias, "identity", conv=conv)


def _linear(a):
    bias = np.array(a["intercepts"])
    weights = np.array(a["coefficients"]).reshape(len(bias), -1)
    if len(bias) == 2 and np.allclose(weights[0], -weights[1]) and np.allclose(bias[0], -bias[1]):  # skl2onnx writes both sides
        weights, bias = weights[1:], bias[1:]
    activation = {"LOGISTIC": "sigmoid", "SOFTMAX": "softmax", "NONE": "argmax"}[a.get("post_transform", "NONE")]
    if len(bias) == 1:
        activation = "identity" if activation == "argmax" else "sigmoid"
    elif activation == "sigmoid":
        raise Unsupported("one-vs-rest logistic regression: train a multinomial one")
    kind = "logistic" if activation in ("sigmoid", "softmax") else "linear"
    return Model(kind, layers=[Layer(weights, bias, activation)], classes=_labels(a, max(2, len(bias))), inputs=weights.shape[1])


def _trees(a):
    outputs = max(a["class_ids"]) + 1  # one for two classes: what speaks for the second
    labels = _labels(a, max(2, outputs))
    boosting = a.get("post_transform", "NONE") in ("LOGISTIC", "SOFTMAX")
    if boosting and outputs == 2:
        raise Unsupported("a boosting with an output for each of two classes")
    at = defaultdict(dict)
    for i, (tree, node) in enumerate(zip(a["nodes_treeids"], a["nodes_nodeids"])):
        at[tree][node] = i
    leaves = defaultdict(lambda: np.zeros(outputs))
    for tree, node, to, weight in zip(a["class_treeids"], a["class_nodeids"], a["class_ids"], a["class_weights"]):
        leaves[tree, node][to] += weight
    inputs = max(f for f, m in zip(a["nodes_featureids"], a["nodes_modes"]) if m != "LEAF") + 1
    if boosting:
        trees = [_tree(a, at[t], lambda n, t=t: leaves[t, n]) for t in _turns(leaves, at, outputs)]
        return Model("boosting", trees=trees, base=np.array(a.get("base_values", [0.0] * outputs)), classes=labels, inputs=inputs)
    shares = (lambda v: np.array([1 - v[0], v[0]])) if outputs == 1 else (lambda v: v)
    trees = [_tree(a, at[t], lambda n, t=t: shares(leaves[t, n] * len(at))) for t in sorted(at)]
    return Model("forest" if len(trees) > 1 else "tree", trees=trees, classes=labels, inputs=inputs)


def _turns(leaves, at, width):
    """Trees ordered so that tree t adds to class t mod width."""
    if width == 1:
        return sorted(at)
    of = defaultdict(list)
    for t in sorted(at):
        sums = np.abs([leaves[t, n] for n in at[t] if (t, n) in leaves]).sum(axis=0)
        if (sums > 0).sum() > 1:
            raise Unsupported("trees of a boosting that add to several classes at once")
        of[int(sums.argmax())].append(t)
    if len({len(v) for v in of.values()}) != 1 or len(of) != width:
        raise Unsupported("a boosting with more trees for one class than for another")
    return [t for turn in zip(*(of[c] for c in range(width))) for t in turn]


def _tree(a, nodes, value):
    place = {node: i for i, node in enumerate(nodes)}
    out = Tree([], [], [], [], [])
    for node, i in nodes.items():
        mode = a["nodes_modes"][i]
        if mode == "LEAF":
            split = 0.0, -1, -1
        else:
            split = up_to(_MODES.get(mode, mode), a["nodes_values"][i], place[a["nodes_truenodeids"][i]], place[a["nodes_falsenodeids"][i]])
        for column, v in zip((out.feature, out.threshold, out.left, out.right, out.value), (a["nodes_featureids"][i], *split, value(node))):
            column.append(v)
    out.value = np.array(out.value)
    return out
