# SPDX-License-Identifier: Apache-2.0
"""Models of other tools as kerb-model/1."""

from pathlib import Path

from ..model import Unsupported

PICKLES = (".pkl", ".pickle", ".joblib", ".sav")


def load(path, trust_pickle=False):
    """The model in a file, by the file's name and content."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        return _pickled(path, trust_pickle)
    if suffix == ".onnx":
        from . import onnx

        return onnx.load(path)
    if suffix == ".json":
        from . import treelite

        return treelite.load(path)
    raise Unsupported(f"{path}: the name must end in .pkl, .pickle or .joblib (scikit-learn), .onnx, or .json (treelite)")


def _pickled(path, trusted):
    if not trusted:
        raise Unsupported(
            f"{path}: a pickle can run any program when it is read. If you made it yourself or trust who did, add --trust-pickle; else ask for ONNX"
        )
    import joblib

    from . import sklearn

    return sklearn.convert(joblib.load(path))
