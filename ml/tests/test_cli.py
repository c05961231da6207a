# SPDX-License-Identifier: Apache-2.0
import json
import pickle

import pytest
from sklearn.tree import DecisionTreeClassifier

from conftest import random_numbers
from kerb_ml import cli


def run(*arguments):
    cli.main([str(a) for a in arguments])


def test_import(counts, tmp_path):
    x, two, _ = counts
    (tmp_path / "guard.pkl").write_bytes(pickle.dumps(DecisionTreeClassifier(max_depth=3).fit(x, two)))
    out = tmp_path / "out.json"
    run("import", tmp_path / "guard.pkl", "--features", "dis,dio,dao,other", "--classes", "fine,flood", "--window", "5s", "--revision", 3, "--trust-pickle", "-o", out)
    doc = json.loads(out.read_text())
    assert (doc["format"], doc["name"], doc["version"], doc["classes"], doc["window"]) == ("kerb-model/1", "guard", 3, ["fine", "flood"], "5s")
    assert doc["features"] == ["dis", "dio", "dao", "other"]


def test_errors_say_what_to_do(counts, tmp_path, capsys):
    (tmp_path / "m.pkl").write_bytes(b"")
    with pytest.raises(SystemExit, match="--trust-pickle"):
        run("import", tmp_path / "m.pkl", "--features", "a")
    with pytest.raises(SystemExit, match="needs --data"):
        run("train", "own")


def test_own_table(tmp_path, capsys):
    rng = random_numbers(3)
    table = tmp_path / "t.csv"
    rows = [(a, b, "flood" if a > 20 else "fine") for a, b in rng.integers(0, 40, (400, 2))]
    table.write_text("dis,dio,label\n" + "\n".join(",".join(map(str, r)) for r in rows))
    run("train", "own", "--data", table, "--kind", "tree", "--normal", "fine", "-o", tmp_path / "m.json")
    doc = json.loads((tmp_path / "m.json").read_text())
    assert doc["classes"] == ["fine", "flood"] and doc["accuracy"] >= 0.9
    assert doc["rules"][0]["rule"].startswith("dis > ")
    run("evaluate", tmp_path / "m.json", "--data", table)
    assert "of 400 rows" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no row is 'benign'; the column 'label' has fine, flood"):
        run("train", "own", "--data", table, "--normal", "benign")


def test_hello_of_a_small_table(tmp_path):
    rng = random_numbers(3)
    lines = ["second;src;DioCount;DisCount;DaoCount;OtherMsg;label"]
    lines += [f"{n};fe80::{n % 5};{rng.integers(0, 60)};{rng.integers(90, 900) if n % 6 == 0 else 0};{rng.integers(0, 90)};0;{int(n % 6 == 0)}" for n in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    run("train", "hello", "--data", tmp_path / "t.csv", "-o", tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["accuracy"] >= 0.9


def test_columns_that_are_no_features(tmp_path):
    """Tables of `kerb model windows` begin with the time and the source."""
    rows = "".join(f"{10 * i},fe80::{i},{i},{i % 7},{'attack' if i > 50 else 'normal'}\n" for i in range(100))
    (tmp_path / "t.csv").write_text("time,source,dis,dio,label\n" + rows)
    run("train", "own", "--data", tmp_path / "t.csv", "--normal", "normal", "-o", tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["features"] == ["dis", "dio"]


def test_generate(tmp_path, shipped, capsys):
    run("generate", "rpl", "-o", tmp_path / "c-root.pcap", "--seconds", 60, "--attackers", 0)
    run("detect", shipped / "rpl-floods-10s.json", tmp_path / "c-root.pcap")
    assert "0 of 0 attacks" in capsys.readouterr().out
    assert (tmp_path / "c-root.labels").read_text() == ""
    run("generate", "rpl", "-o", tmp_path / "d.pcap", "--seconds", 300, "--attackers", 2, "--seed", 5)
    labels = [line.split() for line in (tmp_path / "d.labels").read_text().splitlines()]
    assert {source for _, source, _, _ in labels} == {"fe80::ff:fe00:2", "fe80::ff:fe00:3"}
    assert all(0 <= float(start) < float(end) <= 300.1 for _, _, start, end in labels)
    run("generate", "flow", "-o", tmp_path / "f.csv", "--windows", 40)
    assert (tmp_path / "f.csv").read_text().startswith("packetsForward,")
