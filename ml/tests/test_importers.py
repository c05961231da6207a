# SPDX-License-Identifier: Apache-2.0
"""What is imported decides as the original does, on data that it was not trained on."""

import json
import pickle
import warnings

import joblib
import numpy as np
import onnx
import pytest
import treelite
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from skl2onnx import to_onnx
from sklearn import ensemble, linear_model, neural_network, svm, tree
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, PolynomialFeatures, StandardScaler

from kerb_ml import importers, model
from kerb_ml.importers import sklearn as importer

warnings.filterwarnings("ignore")

ESTIMATORS = {
    "mlp": neural_network.MLPClassifier((8, 4), max_iter=40, random_state=0),
    "mlp-tanh": neural_network.MLPClassifier((5,), activation="tanh", max_iter=40, random_state=0),
    "mlp-logistic": neural_network.MLPClassifier((5,), activation="logistic", max_iter=40, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), MinMaxScaler((-1, 1)), MaxAbsScaler(), neural_network.MLPClassifier((6,), max_iter=40, random_state=0)),
    "scaled-forest": make_pipeline(StandardScaler(), ensemble.RandomForestClassifier(4, max_depth=4, random_state=0)),
    "tree": tree.DecisionTreeClassifier(max_depth=6, random_state=0),
    "forest": ensemble.RandomForestClassifier(7, max_depth=5, random_state=0),
    "extra": ensemble.ExtraTreesClassifier(5, max_depth=4, random_state=0),
    "boosting": ensemble.GradientBoostingClassifier(n_estimators=6, random_state=0),
    "hist": ensemble.HistGradientBoostingClassifier(max_iter=5, random_state=0),
    "logistic": linear_model.LogisticRegression(),
    "svm": svm.LinearSVC(random_state=0),
    "ridge": linear_model.RidgeClassifier(),
    "perceptron": linear_model.Perceptron(random_state=0),
}
NOT_IN_ONNX = {"hist", "perceptron"}  # skl2onnx cannot
IN_TREELITE = {"forest", "extra", "boosting", "hist"}


def through_document(found):
    """The model as somebody reads it who has only the text."""
    found.inputs = found.inputs or 4
    return model.from_document(json.loads(json.dumps(found.document("m", list("abcd"), "rpl"), allow_nan=False)))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_decides_as_scikit_learn(name, classes, counts, rng, tmp_path):
    x, *labels = counts
    estimator = ESTIMATORS[name].fit(x, labels[classes - 2])
    unseen = rng.integers(0, 90, (4000, 4))
    want = np.searchsorted(estimator.classes_, estimator.predict(unseen))
    ways = {"pickle": through_document(importer.convert(estimator))}
    if name not in NOT_IN_ONNX:
        path = tmp_path / "m.onnx"
        path.write_bytes(to_onnx(estimator, x[:1].astype(np.float32)).SerializeToString())
        ways["onnx"] = through_document(importers.load(path))
    if name in IN_TREELITE:
        path = tmp_path / "m.json"
        path.write_text(treelite.sklearn.import_model(estimator).dump_as_json())
        ways["treelite"] = through_document(importers.load(path))
    for way, found in ways.items():
        assert (found.decide(unseen) == want).mean() >= 0.9995, way  # ONNX has single precision


@pytest.mark.parametrize("name", ["mlp", "forest", "logistic"])
def test_probabilities_are_scikit_learns(name, counts):
    x, _, three = counts
    estimator = ESTIMATORS[name].fit(x, three)
    np.testing.assert_allclose(through_document(importer.convert(estimator)).outputs(x), estimator.predict_proba(x), atol=1e-9)


def exported(nodes, weights, width, shape):
    """A graph as PyTorch and Keras write it."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, width])],
        [numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_onnx_of_other_tools(rng, tmp_path):
    weights = {"w1": rng.normal(size=(6, 4)), "b1": rng.normal(size=6), "w2": rng.normal(size=(6, 3)), "b2": rng.normal(size=3), "m": np.full(4, 20.0), "s": np.full(4, 9.0)}
    graph = exported([
        helper.make_node("Sub", ["x", "m"], ["c"]), helper.make_node("Div", ["c", "s"], ["n"]),
        helper.make_node("Gemm", ["n", "w1", "b1"], ["h"], transB=1), helper.make_node("LeakyRelu", ["h"], ["r"], alpha=0.1),
        helper.make_node("MatMul", ["r", "w2"], ["o"]), helper.make_node("Add", ["o", "b2"], ["y"])], weights, 3, [None, 4])
    check_onnx(graph, rng.integers(0, 40, (500, 4)), tmp_path)


def test_onnx_convolution(rng, tmp_path):
    weights = {"k": rng.normal(size=(3, 1, 3)), "kb": rng.normal(size=3), "w": rng.normal(size=(2, 12)), "b": rng.normal(size=2), "shape": None}
    del weights["shape"]
    graph = exported([
        helper.make_node("Conv", ["x", "k", "kb"], ["c"], kernel_shape=[3], pads=[1, 1], strides=[2]), helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]), helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1)], weights, 2, [None, 1, 8])
    check_onnx(graph, rng.integers(0, 40, (500, 8)), tmp_path, (500, 1, 8))


def check_onnx(graph, x, tmp_path, shape=None):
    path = tmp_path / "m.onnx"
    path.write_bytes(graph.SerializeToString())
    (want,) = ReferenceEvaluator(graph).run(None, {"x": x.reshape(shape or x.shape).astype(np.float32)})
    found = importers.load(path)
    assert found.inputs == x.shape[1]
    assert (found.decide(x) == want.argmax(axis=1)).mean() >= 0.998


def test_strict_comparisons_become_up_to(tmp_path):
    """XGBoost goes left for values below the threshold, not up to it."""
    dump = {"num_feature": 1, "num_class": [1], "average_tree_output": False, "postprocessor": "sigmoid", "sigmoid_alpha": 1.0, "base_scores": [0.0], "class_id": [0],
            "trees": [{"nodes": [{"node_id": 0, "split_feature_id": 0, "comparison_op": "<", "threshold": 5.0, "left_child": 1, "right_child": 2},
                                 {"node_id": 1, "leaf_value": -1.0}, {"node_id": 2, "leaf_value": 1.0}]}]}
    (tmp_path / "m.json").write_text(json.dumps(dump))
    assert importers.load(tmp_path / "m.json").decide(np.array([[4], [5], [6]])).tolist() == [0, 1, 1]


class Harmful:
    def __reduce__(self):
        return (open, ("/nonexistent/kerb-ml-ran-a-pickle", "w"))


def test_pickles_need_trust(counts, tmp_path):
    path = tmp_path / "m.pkl"
    path.write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(model.Unsupported, match="--trust-pickle"):
        importers.load(path)
    x, two, _ = counts
    joblib.dump(ESTIMATORS["tree"].fit(x, two), tmp_path / "m.joblib")
    assert importers.load(tmp_path / "m.joblib", trust_pickle=True).kind == "tree"


@pytest.mark.parametrize("estimator, complaint", [
    (neural_network.MLPRegressor((3,)), "not one of"),
    (tree.DecisionTreeClassifier(), "call fit"),
    (make_pipeline(PolynomialFeatures(), tree.DecisionTreeClassifier()), "StandardScaler"),
])
def test_unknown_is_refused(estimator, complaint):
    with pytest.raises(model.Unsupported, match=complaint):
        importer.convert(estimator)


def test_weights_must_be_finite_and_fit(counts):
    x, two, _ = counts
    found = importer.convert(neural_network.MLPClassifier((3,), max_iter=5).fit(x, two))
    found.layers[0].weights = found.layers[0].weights.copy()
    found.layers[0].weights[1, 2] = np.nan
    with pytest.raises(model.Unsupported, match=r"layer 0, weights\[1, 2\]"):
        found.document("m", list("abcd"), "rpl")
    wide = importer.convert(neural_network.MLPClassifier((65,), max_iter=2).fit(x, two))
    with pytest.raises(model.Unsupported, match="at most 64 wide"):
        wide.document("m", list("abcd"), "rpl")
    with pytest.raises(model.Unsupported, match="3 feature names"):
        importer.convert(ESTIMATORS["tree"].fit(x, two)).document("m", list("abc"), "rpl")


def test_broken_files(tmp_path):
    for name, content in {"a.onnx": b"\x00garbage", "b.json": b"{", "c.json": b"{}", "d.txt": b""}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(model.Unsupported):
            importers.load(tmp_path / name)
    with pytest.raises(model.Unsupported):
        onnx.save(onnx.ModelProto(), tmp_path / "empty.onnx")
        importers.load(tmp_path / "empty.onnx")
