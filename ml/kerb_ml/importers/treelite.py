# SPDX-License-Identifier: Apache-2.0
"""Trees of XGBoost, LightGBM and scikit-learn by way of treelite: what Model.dump_as_json() writes (treelite 4)."""

import json

import numpy as np

from ..model import Model, Tree, Unsupported


def load(path):
    with open(path) as f:
        try:
            return convert(json.load(f))
        except json.JSONDecodeError as e:
            raise Unsupported(f"{path}: not JSON: {e}") from e


def convert(dump):
    missing = {"num_feature", "num_class", "average_tree_output", "postprocessor", "base_scores", "trees"} - set(dump)
    if missing:
        raise Unsupported(f"not a JSON dump of treelite 4: it has no {', '.join(sorted(missing))}")
    if dump.get("num_target", 1) != 1:
        raise Unsupported("several targets: train one model for each")
    (classes,) = dump["num_class"]
    names = ["normal", "attack"] if classes <= 2 else ["normal", *(f"class{n}" for n in range(1, classes))]
    if dump["average_tree_output"]:
        if classes < 2:
            raise Unsupported("a forest without classes (a regression): train a classifier")
        trees = [_tree(t, lambda leaf: leaf) for t in dump["trees"]]
        return Model("forest", trees=trees, classes=names, inputs=dump["num_feature"])
    if dump["postprocessor"] not in ("sigmoid", "softmax", "identity_multiclass"):
        raise Unsupported(f"postprocessor {dump['postprocessor']!r}: train a classifier (binary:logistic, multi:softprob)")
    if dump["postprocessor"] == "sigmoid" and dump["sigmoid_alpha"] != 1:
        raise Unsupported(f"sigmoid_alpha {dump['sigmoid_alpha']}: only 1 is known")
    return _boosting(dump, max(classes, 1), names)


def _boosting(dump, outputs, names):
    if dump["class_id"] != [n % outputs for n in range(len(dump["trees"]))]:
        raise Unsupported("trees of a boosting that do not take turns by class, or have a vector in each leaf")
    trees = [_tree(t, lambda leaf, to=np.eye(outputs)[n % outputs]: leaf * to) for n, t in enumerate(dump["trees"])]
    return Model("boosting", trees=trees, base=np.array(dump["base_scores"], dtype=float), classes=names, inputs=dump["num_feature"])


def _tree(dump, value):
    if dump.get("has_categorical_split"):
        raise Unsupported("splits by category: features must be numbers")
    place = {n["node_id"]: i for i, n in enumerate(dump["nodes"])}
    tree = Tree([], [], [], [], [])
    leaves = [np.atleast_1d(n["leaf_value"]) for n in dump["nodes"] if "leaf_value" in n]
    for node in dump["nodes"]:
        if "leaf_value" in node:
            split, leaf = (0, 0.0, -1, -1), node["leaf_value"]
        else:
            split, leaf = _split(node, place), np.zeros_like(leaves[0])
        for column, v in zip((tree.feature, tree.threshold, tree.left, tree.right), split):
            column.append(v)
        tree.value.append(value(np.asarray(leaf, dtype=float)))
    tree.value = np.array(tree.value)
    return tree


def _split(node, place):
    children = place[node["left_child"]], place[node["right_child"]]
    return (node["split_feature_id"], *up_to(node["comparison_op"], node["threshold"], *children))


def up_to(operator, threshold, yes, no):
    """(threshold, left, right) of the same split with <=."""
    if operator in ("<", ">="):
        threshold = float(np.nextafter(threshold, -np.inf))
    if operator in ("<=", "<"):
        return threshold, yes, no
    if operator in (">", ">="):
        return threshold, no, yes
    raise Unsupported(f"a split by {operator!r}: only <, <=, > and >= are known")
