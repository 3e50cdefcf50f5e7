"""What the benchmarks do beside measuring: races, verdicts, records, tables, the choice of rows and commits."""

import dataclasses
import json
import subprocess
import sys

import pytest
from absl import app

from benchmarks import compare_commits, environments, goals, main, report, rows
from keras_vit.benchmarking import contestants, machine, race

# A contestant without libraries: it takes as many seconds a step as its work says.
WORKER = """
import json, sys
sys.path.insert(1, {folder!r})
import contestants

def steady(work):
    ballast = bytes(range(256)) * 400_000  # 100 MB
    return lambda: {{"seconds": work["seconds"], "note": "done", "first": ballast[0]}}

def dies(work):
    taken = []
    def step():
        taken.append(1)
        if len(taken) > 1:
            raise MemoryError("no more")
        return {{"seconds": 1.0}}
    return step

def vanishes(work):
    print("a library's greeting")
    sys.stderr.write("killed by a kernel\\n")
    sys.exit(3)

def refuses(work):
    raise ValueError("not this model")

systems = dict(steady=steady, dies=dies, vanishes=vanishes, refuses=refuses)
contestants.serve(systems, sys.argv[1], json.loads(sys.argv[2]))
"""


# Another, which is given what it is to answer.
CLOCK = """
import sys, json
print('{"ready": true}', flush=True)
for line, seconds in zip(sys.stdin, json.loads(sys.argv[1])):
    print(json.dumps({"seconds": seconds}), flush=True)
"""


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(WORKER.format(folder=str(race.CONTESTANTS.parent)))
    return path


def test_a_race_goes_on_without_those_that_fail(worker):
    def entrant(name, system, **work):
        return race.entrant(name, script=worker, system=system, work=work, root=None)

    entrants = [
        entrant("slow", "steady", seconds=3.0),
        entrant("dies", "dies"),
        entrant("vanishes", "vanishes"),
        entrant("refuses", "refuses"),
        entrant("fast", "steady", seconds=2.0),
    ]
    results = {result.system: result for result in race.race(entrants, 3)}
    assert list(results) == ["slow", "dies", "vanishes", "refuses", "fast"]
    assert (results["slow"].seconds, results["slow"].ratio, results["slow"].error) == (3.0, 1.0, None)
    assert results["fast"].ratio == pytest.approx(2 / 3)
    assert results["fast"].note == "done"
    # Its own memory, not that of the process that started it.
    assert 5e6 < results["fast"].library_bytes < 50e6
    assert 100e6 < results["fast"].peak_bytes - results["fast"].library_bytes < 110e6
    assert results["dies"].error == "MemoryError: no more"
    assert results["vanishes"].error == "the process ended with code 3. killed by a kernel"
    assert results["refuses"].error == "ValueError: not this model"
    assert results["dies"].seconds is None
    table = race.table(list(results.values()), batch=6)
    assert "| fast | 3.00 | 0.67 x |" in table and "| dies | not run: MemoryError: no more | | |" in table


def test_ratios_are_of_the_same_round():
    """A machine twice as slow in one round changes no ratio: 1.5 in each, though the medians' quotient is 0.75."""
    first, second = [2.0, 4.0, 4.0], [3.0, 6.0, 3.0]
    entrants = [
        race.Entrant(str(i), (sys.executable, "-c", CLOCK, json.dumps(t))) for i, t in enumerate((first, second))
    ]
    results = race.race(entrants, 3)
    assert results[1].seconds / results[0].seconds == 0.75
    assert results[1].ratio == 1.5


def result(seconds=1.0, ratio=1.0, peak=None, libraries=None, note=None):
    return {"seconds": seconds, "ratio": ratio, "peak_bytes": peak, "library_bytes": libraries, "note": note}


def test_goals():
    results = {
        "keras_vit": result(peak=3_000, libraries=1_000),
        "slow": result(2.0, 2.0, 4_000, 2_500),
        "fast": result(1.04, 1.04, 6_000, 1_000),
        "broken": result(None, None),
        "variant": result(0.5, 0.5),
    }
    judge = goals.ahead(1.05, excluding=("variant",))
    assert judge(results) == goals.Verdict("1.04 × fast", "≥ 1.05", False)
    assert goals.ahead(1.04, excluding=("variant",))(results).met
    assert goals.ahead(1.0)({"keras_vit": result(), "broken": result(None, None)}) is None
    assert goals.memory("fast", 0.5)(results).met
    assert not goals.memory("slow", 0.7)(results).met
    verdict = goals.memory("slow", 1.0, own_only=True)(results)  # (3000 - 1000) / (4000 - 2500)
    assert (verdict.measured, verdict.met) == ("1.33 of slow's memory beyond libraries", False)
    assert goals.memory("broken", 1.0)(results) is None and goals.memory("absent", 1.0)(results) is None
    assert goals.more_seconds("fast", "slow", 0.2)(results).measured == "-0.96 s"
    assert not goals.more_seconds("slow", "fast", 0.2)(results).met
    assert goals.at_most_seconds("slow", 2.0)(results).met
    assert not goals.says("slow", "quiet")({"slow": result(note="loud")}).met


def test_rows_are_whole():
    """Every row names functions that its worker has, and peers that there are environments for."""
    assert len(rows.ROWS) >= 18
    for row in rows.ROWS.values():
        assert row.worker.is_file(), row.name
        source = row.worker.read_text()
        for entrant in row.entrants(lambda peer: f"/{peer}/python"):
            assert f"def {entrant.command[2]}(" in source, (row.name, entrant.command[2])
            contestants.Work(**json.loads(entrant.command[3]))  # no unknown field
            own = entrant.name not in row.peers
            assert bool(entrant.environment["PYTHONPATH"]) == own, row.name
        for peer in (*row.peers, row.home):
            assert environments.SAME.get(peer, peer) in environments.PEERS
    tokens = [name for name in rows.ROWS["length-training"].variants if "chunks" not in name]
    assert (tokens[0], tokens[-1]) == ("196 tokens", "4096 tokens")


def test_versions_are_pinned():
    for name, peer in environments.PEERS.items():
        pinned = [package for package in peer.packages + peer.alone if "==" in package]
        if not name.startswith("keras_vit"):
            assert any(package.startswith(name.replace("_", "-")) for package in pinned), name
        assert any(package.split("==")[0] in ("keras", "torch") for package in pinned), name
    timm = environments.PEERS["timm"]
    assert environments.fingerprint(timm) == environments.fingerprint(dataclasses.replace(timm))
    assert environments.fingerprint(timm) != environments.fingerprint(dataclasses.replace(timm, alone=("x==1",)))


def test_a_broken_environment_says_why(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no ensurepip here >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(environments.sys, "executable", str(broken))
    with pytest.raises(RuntimeError, match="environment of timm could not be made.*no ensurepip here"):
        environments.ensure("timm_compiled", tmp_path / "environments")


def test_choosing_rows():
    assert [row.name for row in main.choose(["tflite", "build"])] == ["tflite-float32", "tflite-dynamic_int8", "build"]
    assert len(main.choose([])) == len(rows.ROWS)
    with pytest.raises(ValueError, match="build"):
        main.choose(["biuld"])


def a_record(row, code="abc", seconds=1.0, error=None):
    own = {"system": "keras_vit", "spread": 0.01, "error": error, **result(seconds, 1.0, 3_000_000_000, 1_000_000_000)}
    peer = {"system": "keras_hub", "spread": None, "error": None, **result(1.2 * seconds, 1.2, 5_000_000_000)}
    return {
        "row": row,
        "time": "2025-01-02 03:04",
        "commit": "1234567890",
        "code": code,
        "machine": machine.describe(),
        "rounds": 3,
        "versions": {"keras": "3.15.1"},
        "results": [own, peer],
    }


def test_other_programs_are_noticed(monkeypatch):
    """Four seconds of four processors, 10 of them busy: 6 with what we started, 4 with other programs."""
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)
    readings = {"_busy_seconds": iter([100.0, 110.0]), "_own_seconds": iter([7.0, 13.0])}
    for name, values in readings.items():
        monkeypatch.setattr(machine, name, values.__next__)
    monkeypatch.setattr(machine.time, "monotonic", iter([50.0, 54.0]).__next__)
    with machine.Watch() as watch:
        pass
    assert watch.others == 4 / 16


def test_work_of_children_is_our_own():
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    before, own = machine._busy_seconds(), machine._own_seconds()
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert machine._own_seconds() - own > 0.28  # the clock of os.times ticks every 10 ms
    assert before is None or machine._busy_seconds() - before > 0.28


def test_what_is_done_is_not_measured_again(monkeypatch):
    row = rows.ROWS["inference-16-float32"]
    monkeypatch.setattr(report, "code", lambda: ("1234567890", "abc"))
    assert report.is_done(row, [a_record(row.name)])
    assert not report.is_done(row, [a_record(row.name, code="older")])
    assert not report.is_done(row, [a_record("build")])
    assert not report.is_done(row, [a_record(row.name, error="it failed")])
    assert not report.is_done(row, [{**a_record(row.name), "machine": "another"}])
    monkeypatch.setattr(report, "code", lambda: ("1234567890+", "abc+"))  # not committed: not the same code
    assert not report.is_done(row, [a_record(row.name, code="abc+")])


def test_tables_are_written_between_the_markers(tmp_path):
    path = tmp_path / "benchmarks.md"
    markers = "".join(
        f"<!-- {name} -->\nold\n<!-- /{name} -->\nkept {name}\n" for name in ("summary", "rows", "history")
    )
    path.write_text(markers)
    records = [a_record("inference-16-float32", seconds=4.0), a_record("inference-16-float32", seconds=2.0)]
    report.write([*records, a_record("training-float32", error="out of memory"), a_record("a row of old")], path)
    text = path.read_text()
    assert "old\n" not in text.replace("row of old", "") and text.count("kept ") == 3
    assert "| 1.20 × keras_hub | ≥ 1.05 | yes |" in text  # of the newest record
    assert "| keras_vit | 2 s ± 1 % | 8 |  | 3.00 GB (2.00 beyond libraries) |  |" in text
    assert "| keras_hub | 2.4 s | 6.67 | 1.20 | 5.00 GB |  |" in text
    assert "failed: out of memory" in text and "**no**" not in text
    history = text.split("<!-- history -->")[1]
    assert history.count("inference-16-float32") == 2 and history.index("| 2 s |") < history.index("| 4 s |")
    again = path.read_text()
    report.write([*records, a_record("training-float32", error="out of memory"), a_record("a row of old")], path)
    assert path.read_text() == again


def test_records_come_back(tmp_path):
    path = tmp_path / "records.jsonl"
    assert report.read(path) == []
    outcome = [race.Result("keras_vit", 1.23456789, 1.0, versions={"keras": "3"}), race.Result("timm", error="no")]
    entry = report.record(rows.ROWS["build"], outcome)
    report.append(entry, path)
    report.append(entry, path)
    first, second = report.read(path)
    assert first == second == entry
    assert first["results"][0]["seconds"] == 1.235 and first["versions"] == {"keras": "3"}
    assert len(json.dumps(entry)) < 1_000  # small enough to be kept for good


def test_commits_are_written_out(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    (repository / "keras_vit").mkdir(parents=True)
    monkeypatch.setattr(report, "ROOT", repository)

    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@e", *arguments], cwd=repository, check=True)

    git("init", "-q")
    (repository / "keras_vit" / "version.py").write_text("1")
    git("add", "-A")
    git("commit", "-q", "-m", "one")
    (repository / "keras_vit" / "version.py").write_text("2")
    git("commit", "-q", "-a", "-m", "two")
    name = compare_commits.write_out("HEAD~1", tmp_path / "a")
    compare_commits.write_out("HEAD", tmp_path / "b")
    assert [(tmp_path / side / "keras_vit" / "version.py").read_text() for side in "ab"] == ["1", "2"]
    assert len(name) == 10
    with pytest.raises(ValueError, match="'nothing' is no commit"):
        compare_commits.write_out("nothing", tmp_path / "c")
    row = rows.ROWS["training-float32"]
    pairs = compare_commits.entrants_of(row, {"a": tmp_path / "a", "b": tmp_path / "b"}, str)
    assert [entrant.name for entrant in pairs] == [
        *("keras_vit at a", "keras_vit remat at a"),
        *("keras_vit at b", "keras_vit remat at b"),
    ]
    assert pairs[0].environment["PYTHONPATH"] == str(tmp_path / "a")


def test_regressions_are_found():
    before = race.Result("a", 1.0, 1.0, peak_bytes=1_000)
    assert compare_commits.judge(before, race.Result("b", 1.0, peak_bytes=1_040), 1.04, 0.05) == ""
    after = race.Result("b", 1.2, peak_bytes=1_500)
    assert compare_commits.judge(before, after, 1.2, 0.05) == "20 % more time, 50 % more memory"
    broken = race.Result("b", error="it failed")
    assert compare_commits.judge(before, broken, None, 0.05) == "fails: it failed"
    assert compare_commits.judge(broken, broken, None, 0.05) == ""


def test_two_commits_are_asked_for():
    with pytest.raises(app.UsageError, match="Two commits"):
        compare_commits.main(["compare_commits", "HEAD"])
