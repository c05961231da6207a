# SPDX-License-Identifier: Apache-2.0
"""kerb-ml: the answer on standard output or in the file of -o, all else on standard error."""

import argparse
import csv
import ipaddress
import json
import sys
from pathlib import Path

import numpy as np

from . import __version__, detection, flows, frames, importers, model, pcap, rules, simulate, train, windows


def main(arguments=None):
    args = _parser().parse_args(arguments)
    try:
        args.run(args)
    except (model.Unsupported, OSError, ValueError) as e:
        sys.exit(f"kerb-ml: {e}")


def _parser():
    p = argparse.ArgumentParser(prog="kerb-ml", description="Trains and imports models that Kerb's classifier runs on packets.")
    p.add_argument("--version", action="version", version=__version__)
    commands = p.add_subparsers(required=True, metavar="COMMAND")
    _import_parser(commands)
    _train_parser(commands)
    c = commands.add_parser("evaluate", help="accuracy of a model, and of one-line rules, on a table")
    c.add_argument("model")
    c.add_argument("--data", required=True, help="CSV: a column per feature, one with the class")
    c.add_argument("--label", default="label", help="column with the class")
    c.set_defaults(run=_evaluate)
    c = commands.add_parser("detect", help="what a model of RPL windows finds in captures, and whom it accuses wrongly")
    c.add_argument("model")
    c.add_argument("captures", nargs="+", help="pcap files; NAME.attack-intervals.txt alongside NAME-root.pcap tells when attacks were on")
    c.add_argument("--attacker", action="append", default=[], help="interface identifier of an attacker, 16 hexadecimal digits; may be given several times")
    c.set_defaults(run=_detect)
    c = commands.add_parser("generate", help="make traffic: a capture of an RPL network (.pcap), or windows of flows (.csv)")
    c.add_argument("what", choices=["rpl", "flow"])
    c.add_argument("-o", "--output", required=True)
    c.add_argument("--seconds", type=float, default=600, help="length of the capture")
    c.add_argument("--attackers", type=int, help="in the RPL network; 0 to 4 by chance by default")
    c.add_argument("--windows", type=int, default=1000, help="of flows")
    c.add_argument("--seed", type=int, default=1)
    c.set_defaults(run=_generate)
    return p


def _import_parser(commands):
    c = commands.add_parser("import", help="make a document of a model of scikit-learn, ONNX or treelite")
    c.add_argument("file", help="pickle or joblib (.pkl, .joblib), .onnx, or treelite's .json")
    c.add_argument("--features", required=True, help="names of its inputs, by the extractor's list, separated by commas")
    c.add_argument("--name", help="of the model; the file's by default")
    c.add_argument("--extractor", default="rpl", choices=["rpl", "flow"])
    c.add_argument("--classes", help="names of its classes, separated by commas; the first is what is normal")
    c.add_argument("--window", help="length of the windows that it was trained with, such as 10s")
    c.add_argument("--revision", type=int, default=1, help="version in the document, 1 or more")
    c.add_argument("--description")
    c.add_argument("--trust-pickle", action="store_true", help="read a pickle, which can run any program")
    c.add_argument("-o", "--output", help="file to write; standard output by default")
    c.set_defaults(run=_import)


def _train_parser(commands):
    c = commands.add_parser("train", help="train the examples that Kerb ships, or a model of your own table")
    c.add_argument("what", choices=["shipped", "hello", "rpl", "flow", "own"], help="hello: of published windows; own: of --data, any table")
    c.add_argument("--data", help="CSV, or with `shipped` the directory of the published windows")
    c.add_argument("--seconds", type=int, default=10, choices=[1, 5, 10], help="length of RPL windows")
    c.add_argument("--label", default="label", help="own: column with the class")
    c.add_argument("--normal", help="own: the class that is normal; the first in the file by default")
    c.add_argument("--kind", default="forest", choices=list(train.ESTIMATORS), help="own: kind of model")
    c.add_argument("--name", default="own")
    c.add_argument("--extractor", default="rpl", choices=["rpl", "flow"])
    c.add_argument("--window", help="own: length of the windows, such as 10s")
    c.add_argument("--networks", type=int, default=train.NETWORKS, help="rpl: how many to simulate")
    c.add_argument("--seed", type=int, default=1)
    c.add_argument("-o", "--output", help="file to write, or with `shipped` the directory; standard output by default")
    c.set_defaults(run=_train)


def _import(args):
    found = importers.load(args.file, args.trust_pickle)
    features = args.features.split(",")
    found.inputs = found.inputs or len(features)
    if args.classes:
        names = args.classes.split(",")
        if len(names) != len(found.classes):
            raise model.Unsupported(f"--classes names {len(names)}, the model has {len(found.classes)}: {', '.join(found.classes)}")
        found.classes = names
    doc = found.document(args.name or Path(args.file).stem, features, args.extractor, args.revision, window=args.window, description=args.description)
    _write(doc, args.output)


def _train(args):
    if args.what in ("hello", "own", "shipped") and not args.data:
        raise model.Unsupported(f"train {args.what} needs --data")
    if args.what == "shipped":
        for doc in train.shipped(args.data):
            _write(doc, Path(args.output or ".") / f"{doc['name']}.json")
        return
    doc = {
        "hello": lambda: train.hello(args.data, args.seconds, args.seed),
        "rpl": lambda: train.rpl(args.seconds, args.networks, args.seed),
        "flow": lambda: train.flow(seed=args.seed),
        "own": lambda: train.own(args.data, args.label, args.kind, args.name, args.extractor, args.window, args.normal, args.seed),
    }[args.what]()
    _write(doc, args.output)


def _write(doc, path):
    model.write(doc, path or "/dev/stdout")
    if "accuracy" in doc:
        alongside = "; ".join(f"{r['rule']}: {r['accuracy']}" for r in doc["rules"])
        print(f"{doc['name']}: accuracy {doc['accuracy']}; rules alongside it: {alongside}", file=sys.stderr)


def _evaluate(args):
    doc = json.loads(Path(args.model).read_text())
    found = model.from_document(doc)
    x, y, columns, classes = train.read_table(args.data, args.label, doc["classes"][0])
    missing = [f for f in doc["features"] if f not in columns]
    if missing or not set(classes) <= set(doc["classes"]):
        raise model.Unsupported(f"{args.data}: needs the columns {', '.join(doc['features'])} and classes out of {', '.join(doc['classes'])}")
    x = x[:, [columns.index(f) for f in doc["features"]]]
    want = np.array([doc["classes"].index(classes[i]) for i in y])
    print(f"{doc['name']}: {(found.decide(x) == want).mean():.4f} of {len(x)} rows")
    for rule in rules.judged(rules.best(x, want > 0, doc["features"]), x, want > 0):
        print(f"{rule['rule']}: {rule['accuracy']:.4f}, normal or not")


def _detect(args):
    doc = json.loads(Path(args.model).read_text())
    found, seconds = model.from_document(doc), float(doc["window"].removesuffix("s"))
    attackers = {bytes.fromhex(a) for a in args.attacker}
    for capture in args.captures:
        r = detection.judge(found, doc["features"], capture, seconds, attackers)
        print(f"{capture}: {r.attacks - r.late} of {r.attacks} attacks found within two windows; "
              f"{sum(r.accused.values())} of {r.evaluations} evaluations against others" + "".join(f" {s.hex()}" for s in r.accused))


def _generate(args):
    rng = np.random.default_rng(args.seed)
    if args.what == "rpl":
        network = simulate.draw(rng, args.attackers)
        heard = simulate.events(rng, network, args.seconds)
        pcap.write(args.output, simulate.to_frames(heard))
        labels = Path(args.output).with_suffix(".labels")
        labels.write_text("".join(f"attack {ipaddress.IPv6Address(frames.LINK_LOCAL + node)} {begin:.6f} {end:.6f}\n" for node, begin, end in windows.floods(heard)))
        print(f"{len(heard)} frames of {network}", file=sys.stderr)
        return
    x, y = flows.windows(rng, args.windows)
    with open(args.output, "w", newline="") as f:
        table = csv.writer(f)
        table.writerow([*flows.FEATURES, "label"])
        table.writerows([*row, flows.CLASSES[c]] for row, c in zip(x.tolist(), y))


if __name__ == "__main__":
    main()
