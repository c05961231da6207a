# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's estimators, alone or at the end of a pipeline of scalers."""

import numpy as np

from ..model import Affine, Layer, Model, Tree, Unsupported

_ACTIVATIONS = {"identity": "identity", "relu": "relu", "tanh": "tanh", "logistic": "sigmoid"}


def convert(estimator):
    """The estimator as a Model. Its classes keep their names."""
    scale = None
    if hasattr(estimator, "steps"):
        *before, (_, last) = estimator.steps
        for _, step in before:
            scale = _scaler(step).after(scale)
        estimator = last
    name = type(estimator).__name__
    if name not in _CONVERTERS:
        raise Unsupported(f"{name}: not one of {', '.join(_CONVERTERS)}")
    if not hasattr(estimator, "n_features_in_"):
        raise Unsupported(f"{name}: not trained; call fit first")
    model = _CONVERTERS[name](estimator)
    model.inputs = estimator.n_features_in_
    model.scale = scale
    return model


def _scaler(step):
    name = type(step).__name__
    if name == "StandardScaler":
        n = step.n_features_in_
        return Affine(np.zeros(n) if step.mean_ is None else step.mean_, np.ones(n) if step.scale_ is None else step.scale_)
    if name == "MinMaxScaler":
        low, high = step.feature_range
        if step.clip:
            raise Unsupported("MinMaxScaler(clip=True): clip the data instead")
        return Affine(step.data_min_ - low * step.data_range_ / (high - low), 1 / step.scale_)
    if name == "MaxAbsScaler":
        return Affine(np.zeros(step.n_features_in_), step.scale_)
    raise Unsupported(f"{name} before the model: only StandardScaler, MinMaxScaler and MaxAbsScaler are known")


def _names(estimator):
    if estimator.classes_.ndim != 1:
        raise Unsupported("several labels at once: train one model for each")
    return [str(c) for c in estimator.classes_]


def _perceptron(m):
    layers = [Layer(w.T, b, _ACTIVATIONS[m.activation]) for w, b in zip(m.coefs_, m.intercepts_)]
    layers[-1].activation = {"logistic": "sigmoid"}.get(m.out_activation_, m.out_activation_)
    if m.n_outputs_ > 1 and layers[-1].activation == "sigmoid":
        raise Unsupported("several labels at once: train one model for each")
    return Model("mlp", layers=layers, classes=_names(m))


def _logistic(m):
    if len(m.classes_) == 2:
        activation = "sigmoid"
    elif getattr(m, "multi_class", "multinomial") == "ovr":
        raise Unsupported("one-vs-rest logistic regression: train a multinomial one")
    else:
        activation = "softmax"
    return Model("logistic", layers=[Layer(m.coef_, m.intercept_, activation)], classes=_names(m))


def _linear(m):
    """Classifiers by the side of a line (SVM, ridge, perceptron): classes by the sign."""
    return Model("linear", layers=[Layer(np.atleast_2d(m.coef_), np.atleast_1d(m.intercept_), "identity" if len(m.classes_) == 2 else "argmax")],
                 classes=_names(m))


def _regression(m):
    """A line fitted to 0 and 1."""
    weights = np.atleast_2d(m.coef_)
    if len(weights) > 1:
        raise Unsupported("a regression with several outputs")
    return Model("linear", layers=[Layer(weights, np.atleast_1d(m.intercept_), "identity")], classes=["normal", "attack"], threshold=0.5)


def _sgd(m):
    if m.loss != "log_loss":
        return _linear(m)
    if len(m.classes_) > 2:
        raise Unsupported("SGDClassifier of several classes, one against the rest: use LogisticRegression")
    return _logistic(m)


def _tree(m, values):
    t = m.tree_
    return Tree(t.feature.tolist(), t.threshold.tolist(), t.children_left.tolist(), t.children_right.tolist(), values(t))


def _shares(t):
    """Of a class at each node. scikit-learn before 1.3 counted samples."""
    counts = t.value[:, 0, :]
    return counts / counts.sum(axis=1, keepdims=True)


def _decision_tree(m):
    return Model("tree", trees=[_tree(m, _shares)], classes=_names(m))


def _forest(m):
    return Model("forest", trees=[_tree(e, _shares) for e in m.estimators_], classes=_names(m))


def _boosting(m):
    """Trees in the order of rounds, each for one output."""
    outputs = m.estimators_.shape[1]
    trees = []
    for per_round in m.estimators_:
        for output, e in enumerate(per_round):
            place = np.eye(outputs)[output] * m.learning_rate
            trees.append(_tree(e, lambda t, place=place: t.value[:, 0, :] * place))
    start = m._raw_predict_init(np.zeros((1, m.n_features_in_), dtype=np.float32))[0]
    if m.init is not None and m.init != "zero":
        raise Unsupported("gradient boosting that starts from another model (init)")
    return Model("boosting", trees=trees, base=start, classes=_names(m))


def _hist_boosting(m):
    if m.is_categorical_ is not None and np.any(m.is_categorical_):
        raise Unsupported("splits by category: features must be numbers")
    outputs = m.n_trees_per_iteration_
    trees = []
    for per_round in m._predictors:
        for output, p in enumerate(per_round):
            trees.append(_hist_tree(p.nodes, np.eye(outputs)[output]))
    return Model("boosting", trees=trees, base=np.ravel(m._baseline_prediction), classes=_names(m))


def _hist_tree(nodes, place):
    leaf = nodes["is_leaf"].astype(bool)
    left, right = (np.where(leaf, -1, nodes[side].astype(np.int64)).tolist() for side in ("left", "right"))
    return Tree(nodes["feature_idx"].tolist(), nodes["num_threshold"].tolist(), left, right, nodes["value"][:, None] * place)


_CONVERTERS = {
    "MLPClassifier": _perceptron,
    "DecisionTreeClassifier": _decision_tree,
    "ExtraTreeClassifier": _decision_tree,
    "RandomForestClassifier": _forest,
    "ExtraTreesClassifier": _forest,
    "GradientBoostingClassifier": _boosting,
    "HistGradientBoostingClassifier": _hist_boosting,
    "LogisticRegression": _logistic,
    "LogisticRegressionCV": _logistic,
    "LinearSVC": _linear,
    "RidgeClassifier": _linear,
    "Perceptron": _linear,
    "SGDClassifier": _sgd,
    "LinearRegression": _regression,
    "Ridge": _regression,
}
