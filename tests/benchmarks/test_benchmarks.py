"""The benchmarks without their measurements: interleaved runs, records, tables, the choice of rows and commits."""

import dataclasses
import importlib
import json
import re
import subprocess
import sys

import pytest
from absl import app

from benchmarks import compare_commits, environments, host, interleaved, main, records, rows
from benchmarks.interleaved import Result
from tests import programs

# A worker without libraries, whose steps take as many seconds as its work says.
WORKER = """
import json, sys
sys.path.insert(1, {folder!r})
import worker

def steady(work):
    ballast = bytes(range(256)) * 400_000  # 100 MB
    return lambda: {{"seconds": work.arguments["seconds"], "note": "done", "first": ballast[0]}}

def dies(work):
    taken = []
    def step():
        taken.append(1)
        if len(taken) > 1:
            raise MemoryError("no more")
        return {{"seconds": 1.0}}
    return step

def vanishes(work):
    print("greeting of a library")
    sys.stderr.write("killed by a kernel\\n")
    sys.exit(3)

def refuses(work):
    raise ValueError("not this model")

worker.serve(dict(steady=steady, dies=dies, vanishes=vanishes, refuses=refuses), warm_up=0)
"""

# Of `Work` in worker.py.
FIELDS = {"task", "model", "batch", "precision", "image_size", "arguments", "without", "folder"}

# A worker that reports given results.
CLOCK = """
import sys, json
print('{"ready": true}', flush=True)
for line, seconds in zip(sys.stdin, json.loads(sys.argv[1])):
    print(json.dumps({"seconds": seconds}), flush=True)
"""


@pytest.mark.slow
def test_other_systems_are_measured_if_one_fails(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(WORKER.format(folder=str(interleaved.WORKERS)))

    def system(name, function, **arguments):
        return interleaved.worker(name, script, function=function, work={"arguments": arguments}, root=None)

    systems = [
        system("slow", "steady", seconds=3.0),
        system("dies", "dies"),
        system("vanishes", "vanishes"),
        system("refuses", "refuses"),
        system("fast", "steady", seconds=2.0),
    ]
    results = {result.system: result for result in interleaved.run(systems, 3)}
    assert list(results) == ["slow", "dies", "vanishes", "refuses", "fast"]
    assert (results["slow"].seconds, results["slow"].ratio, results["slow"].error) == (3.0, 1.0, None)
    assert results["fast"].ratio == pytest.approx(2 / 3)
    assert results["fast"].note == "done"
    # The memory of its own process, not of the one that started it. Pages that nothing touched do not count.
    assert 100e6 < results["fast"].peak_bytes - results["fast"].library_bytes < 200e6
    assert results["dies"].error == "MemoryError: no more"
    assert "code 3" in results["vanishes"].error and "killed by a kernel" in results["vanishes"].error
    assert results["refuses"].error == "ValueError: not this model"
    assert results["dies"].seconds is None


def test_ratios_are_computed_within_a_round():
    """A machine twice as slow in one round changes no ratio: 1.5 each, although the medians' quotient is 0.75."""
    first, second = [2.0, 4.0, 4.0], [3.0, 6.0, 3.0]
    systems = [
        interleaved.System(str(index), (sys.executable, "-c", CLOCK, json.dumps(times)))
        for index, times in enumerate((first, second))
    ]
    results = interleaved.run(systems, 3)
    assert results[1].seconds / results[0].seconds == 0.75
    assert results[1].ratio == 1.5


@pytest.mark.slow
def test_systems_over_the_time_limit_are_skipped_with_a_reason(monkeypatch):
    monkeypatch.setattr(interleaved, "LIMIT", 2.5)
    hangs = "import time; time.sleep(60)"
    systems = [
        interleaved.System(name, (sys.executable, "-c", code, json.dumps(times)))
        for name, code, times in (("fast", CLOCK, [1.0, 1.0]), ("slow", CLOCK, [1.5, 1.5]), ("hangs", hangs, []))
    ]
    fast, slow, hanging = interleaved.run(systems, 2)
    assert fast.error is None and fast.seconds == 1.0
    assert "a step takes 1.5 s" in slow.error and "no result after 2 s" in hanging.error
    assert slow.seconds is hanging.seconds is None


def test_every_row_names_functions_of_its_worker_and_known_environments():
    assert len(rows.ROWS) >= 18
    for row in rows.ROWS.values():
        source = (interleaved.WORKERS / row.worker).read_text()
        for system in row.systems(lambda environment: f"/{environment}/python"):
            assert re.search(rf"def {system.command[2]}\(|import .*\b{system.command[2]}\b", source), row.name
            assert set(json.loads(system.command[3])) <= FIELDS
            peers = {name for name in environments.ENVIRONMENTS | environments.SAME if not name.startswith("keras_vit")}
            assert bool(system.environment["PYTHONPATH"]) == (system.command[2] not in peers), row.name
        for peer in (*row.peers, row.home):
            assert environments.SAME.get(peer, peer) in environments.ENVIRONMENTS
    names = list(rows.ROWS["length-training"].variants)
    assert names[:2] == ["196 tokens", "196 tokens, timm"] and "9,216 tokens" in names


def test_a_profile_counts_each_operation_once(tmp_path, monkeypatch):
    """Events without a type contain other events; a program of XLA is one operation."""
    monkeypatch.syspath_prepend(interleaved.WORKERS)
    step_profile = importlib.import_module("step_profile")
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    line = plane.lines.add(name="tf_Compute")
    for index, (name, kind, seconds) in enumerate(
        [
            ("ExecutorState::Process", "", 9),
            ("a/MatMul:MatMul", "MatMul", 3),
            ("b/MatMul:MatMul", "MatMul", 1),
            ("c/Mul:Mul", "Mul", 2),
            ("ExecutorState::ProcessAsync::Start", "", 4),
            ("CpuExecutable::ExecuteAsyncOnStream", "", 3),
            ("multiply_fusion", "", 3),
        ]
    ):
        plane.event_metadata[index].name = name
        plane.event_metadata[index].display_name = kind
        line.events.add(metadata_id=index, duration_ps=seconds * 10**12)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "host.xplane.pb").write_bytes(space.SerializeToString())
    seconds = step_profile.seconds_by_operation(str(tmp_path))
    assert seconds == {"MatMul": 4, "Mul": 2, "XLA": 3}
    assert step_profile.summary(seconds) == "56% outside products: XLA 33.3%, Mul 22.2%"


def test_versions_are_pinned():
    for name, environment in environments.ENVIRONMENTS.items():
        pinned = [package.split("==")[0] for package in environment.packages + environment.alone if "==" in package]
        assert {"keras", "torch"} & set(pinned), name
        assert name.startswith("keras_vit") or name.replace("_", "-") in pinned
    timm = environments.ENVIRONMENTS["timm"]
    assert environments.fingerprint(timm) == environments.fingerprint(dataclasses.replace(timm))
    assert environments.fingerprint(timm) != environments.fingerprint(dataclasses.replace(timm, alone=("x==1",)))


def test_environment_that_cannot_be_created_is_reported_with_the_reason(tmp_path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no ensurepip here >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(environments.sys, "executable", str(broken))
    with pytest.raises(RuntimeError, match="timm.*no ensurepip here"):
        environments.ensure("timm_compiled", tmp_path / "environments")


def test_rows_are_selected_by_the_prefix_of_their_names():
    assert [row.name for row in main.choose(["tflite", "build"])] == ["tflite-float32", "tflite-dynamic_int8", "build"]
    assert len(main.choose([])) == len(rows.ROWS)
    with pytest.raises(ValueError, match="build"):
        main.choose(["biuld"])


def documents(folder):
    """Makes a guide and notes with empty marks."""
    guide, notes = folder / "benchmarks.md", folder / "cpu.md"
    for path, names in ((guide, ("summary", "input")), (notes, ("rows", "history"))):
        path.write_text("".join(f"<!-- {name} -->\nold\n<!-- /{name} -->\nkept {name}\n" for name in names))
    return guide, notes


@pytest.mark.slow
def test_the_program_measures_records_and_writes_the_tables(tmp_path, monkeypatch):
    """Two systems: this package, and one whose environment cannot be created."""
    script = tmp_path / "script.py"
    script.write_text(WORKER.format(folder=str(interleaved.WORKERS)))
    work = {"batch": 6, "arguments": {"seconds": 2.0}}
    row = rows.Row("tiny", "Tiny row", work, peers=("timm",), worker=str(script), system="steady")
    guide, notes = documents(tmp_path)

    def ensure(name, directory):
        if name == "timm":
            raise RuntimeError("no package index")
        return sys.executable

    monkeypatch.setattr(environments, "ensure", ensure)
    for module in (rows, records):
        monkeypatch.setattr(module, "ROWS", {"tiny": row})
    monkeypatch.setattr(records.read, "__defaults__", (tmp_path / "records.jsonl",))
    monkeypatch.setattr(records.append, "__defaults__", (tmp_path / "records.jsonl",))
    monkeypatch.setattr(records.write_tables, "__defaults__", (guide, notes))
    with pytest.raises(SystemExit):
        programs.call("benchmarks.main", "--rounds=3")
    (record,) = records.read()
    assert [result["error"] for result in record["results"]] == [None, "no package index"]
    assert "| steady | 2 s ± 0% | 3 |" in notes.read_text()
    assert "| Tiny row | 2 s | timm failed |" in guide.read_text()


def a_record(row, code="abc", seconds=1.0, error=None):
    own = dict(system="keras_vit", seconds=seconds, ratio=1.0, spread=0.01, note=None, error=error)
    peer = dict(system="keras_hub", seconds=1.2 * seconds, ratio=1.2, spread=None, note=None, error=None)
    return {
        "row": row,
        "time": "2025-01-02 03:04",
        "commit": "1234567890",
        "code": code,
        "machine": host.describe(),
        "rounds": 3,
        "versions": {"keras": "3.15.1"},
        "results": [
            own | {"peak_bytes": 3_000_000_000, "library_bytes": 1_000_000_000},
            peer | {"peak_bytes": 5_000_000_000, "library_bytes": None},
        ],
    }


def test_other_programs_are_measured_as_a_share_of_the_machine(monkeypatch):
    """Four seconds of four processors, 10 s of them busy: 6 s with own processes, 4 s with other programs."""
    monkeypatch.setattr(host.os, "cpu_count", lambda: 4)
    readings = {"_busy_seconds": iter([100.0, 110.0]), "_own_seconds": iter([7.0, 13.0])}
    for name, values in readings.items():
        monkeypatch.setattr(host, name, values.__next__)
    monkeypatch.setattr(host.time, "monotonic", iter([50.0, 54.0]).__next__)
    with host.OtherPrograms() as others:
        pass
    assert others.share == 4 / 16


@pytest.mark.slow
def test_child_processes_are_not_other_programs():
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    before, own = host._busy_seconds(), host._own_seconds()
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert host._own_seconds() - own > 0.28  # the clock of os.times ticks every 10 ms
    assert before is None or host._busy_seconds() - before > 0.28


def test_measured_rows_are_not_measured_again(monkeypatch):
    row = rows.ROWS["inference-16-float32"]
    monkeypatch.setattr(records, "code", lambda: ("1234567890", "abc"))
    assert records.is_measured(row, [a_record(row.name)])
    assert not records.is_measured(row, [a_record(row.name, code="older")])
    assert not records.is_measured(row, [a_record("build")])
    assert not records.is_measured(row, [a_record(row.name, error="it failed")])
    assert not records.is_measured(row, [{**a_record(row.name), "machine": "another"}])
    monkeypatch.setattr(records, "code", lambda: ("1234567890+", "abc+"))  # uncommitted changes: not the same code
    assert not records.is_measured(row, [a_record(row.name, code="abc+")])


def test_tables_are_written_between_the_marks(tmp_path):
    guide, path = documents(tmp_path)
    entries = [
        a_record("inference-16-float32", seconds=4.0),
        a_record("inference-16-float32", seconds=2.0),
        a_record("training-float32", error="out of memory"),
        a_record("a row of old"),
    ]
    records.write_tables(entries, guide, path)
    summary = guide.read_text()
    assert "| ViT-B/16 inference, batch 16, float32 | 2 s | keras_hub 1.20 | 3.00 GB | 5.00 GB |" in summary
    assert "old" not in summary and "kept summary" in summary
    text = path.read_text()
    assert "old\n" not in text.replace("row of old", "") and text.count("kept ") == 2
    assert "| keras_vit | 2 s ± 1% | 8 |  | 3.00 GB (2.00 beyond libraries) |  |" in text  # of the newest record
    assert "| keras_hub | 2.4 s | 6.67 | 1.20 | 5.00 GB |  |" in text
    assert "failed: out of memory" in text
    history = text.split("<!-- history -->")[1]
    assert history.count("inference-16-float32") == 2 and history.index("| 2 s |") < history.index("| 4 s |")
    records.write_tables(entries, guide, path)
    assert path.read_text() == text and guide.read_text() == summary


EPYC, XEON = "AMD EPYC (avx2, avx512f, avx512_bf16)", "Intel(R) Xeon(R) Processor (avx2, avx512f, amx_bf16)"


def on(processor, entry, cores=2):
    return entry | {"machine": f"{cores} cores of {processor}, 24 GiB, Linux, Python 3.11.7"}


def test_each_processor_has_its_table(tmp_path):
    """A measurement on one processor replaces no line of another, and later ones on the same replace it."""
    guide, notes = documents(tmp_path)
    entries = [
        on(EPYC, a_record("inference-16-float32", seconds=4.0)),
        on(EPYC, a_record("training-float32", seconds=7.0)),
        on(XEON, a_record("inference-16-float32", seconds=3.0)),
        on(EPYC, a_record("inference-16-float32", seconds=2.0), cores=4),
    ]
    records.write_tables(entries, guide, notes)
    first, second = guide.read_text().split("\n### ")[1:]
    assert first.startswith("AMD EPYC, AVX512-BF16\n") and second.startswith("Intel(R) Xeon(R) Processor, AMX\n")
    assert "batch 16, float32 | 2 s |" in first and "batch 8, float32 | 7 s |" in first and "4 s" not in first
    assert "batch 16, float32 | 3 s |" in second and "training" not in second
    section = notes.read_text().split("<a id=")[1]
    assert section.index("| keras_vit | 2 s ") < section.index("4 cores of AMD") < section.index("| keras_vit | 3 s ")
    assert "| AMD EPYC, AVX512-BF16 | training-float32 | 7 s |" in notes.read_text()


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        ("2 cores of AMD EPYC (avx2), 24 GiB, Linux, Python 3.11.7", "AMD EPYC, AVX2"),
        ("8 cores of Intel Core i7 (avx2, avx512f), 8 GiB, Linux, Python 3.12.1", "Intel Core i7, AVX512"),
        ("10 cores of arm, 16 GiB, Darwin, Python 3.12.1", "arm"),
    ],
)
def test_processor_name_contains_the_vector_extension(machine, kind):
    assert host.kind(machine) == kind


def test_processor_of_this_machine_is_recognized():
    assert " cores of " not in host.kind(host.describe())


def test_input_pipelines_are_compared_by_images_per_second_and_core(tmp_path):
    """1024 images in 2 s on 4 cores."""
    guide, notes = documents(tmp_path)
    row = rows.ROWS["input-500"]
    records.write_tables([on(XEON, a_record(row.name, seconds=2.0), cores=4)], guide, notes)
    text = guide.read_text()
    assert f"| {row.title} | Intel(R) Xeon(R) Processor, AMX | keras_vit | 128 | – |" in text
    assert "| keras_hub | 107 | 1.20 |" in text and "###" not in text


def test_input_files_of_a_row_are_created_only_once(tmp_path):
    row = dataclasses.replace(rows.ROWS["input-500"], files=(32, 3))
    folder = tmp_path / "jpeg_32"
    assert row.with_files(tmp_path).work["folder"] == str(folder)
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.*"))}
    assert list(contents) == ["a/0.jpg", "a/2.jpg", "b/1.jpg"] and len(set(contents.values())) == 3
    (folder / "b/1.jpg").unlink()
    (folder / "a/0.jpg").write_bytes(b"kept")
    row.with_files(tmp_path)
    assert (folder / "b/1.jpg").read_bytes() == contents["b/1.jpg"]
    assert (folder / "a/0.jpg").read_bytes() == b"kept"
    assert rows.ROWS["build"].with_files(tmp_path) is rows.ROWS["build"]


@pytest.mark.slow
def test_documents_contain_the_tables_of_the_records(tmp_path):
    pages = (records.GUIDE, records.NOTES)
    copies = [tmp_path / page.name for page in pages]
    for page, copy in zip(pages, copies, strict=True):
        copy.write_text(page.read_text())
    records.write_tables(records.read(), *copies)
    for page, copy in zip(pages, copies, strict=True):
        assert copy.read_text() == page.read_text(), "run python -m benchmarks.main --tables_only"


def test_records_round_trip(tmp_path):
    path = tmp_path / "records.jsonl"
    assert records.read(path) == []
    results = [Result("keras_vit", 1.23456789, 1.0, versions={"keras": "3"}), Result("timm", error="no")]
    entry = records.make(rows.ROWS["build"], results, rounds=5, others=0.01234)
    records.append(entry, path)
    records.append(entry, path)
    assert records.read(path) == [entry, entry]
    assert entry["results"][0]["seconds"] == 1.235 and entry["versions"] == {"keras": "3"} and entry["others"] == 0.012


def test_rows_state_their_share_of_the_machine(tmp_path):
    """35.1 GFLOP per image (17.6 multiply-adds): 16 images in 2 s are 281 GFLOP/s, 70% of 400."""
    rates = {
        "float32, 1 threads": 1e11,
        "bfloat16, 1 threads": 9e11,
        "float32, 2 threads": 4e11,
        "memory, 2 threads": 2e10,
    }
    guide, path = documents(tmp_path)
    records.write_tables([a_record("inference-16-float32", seconds=2.0) | {"rates": rates}], guide, path)
    text = path.read_text()
    assert "| 281 GFLOP/s, 70% of the machine's products |" in text
    assert "float32, 2 threads 400 GFLOP/s; memory, 2 threads 20 GB/s." in text
    training = rows.ROWS["training-bfloat16"]
    assert (
        training.operations("keras_vit")
        == training.operations("keras_vit remat")
        == pytest.approx(8 * 105.4e9, rel=0.01)
    )
    assert rows.ROWS["tflite-dynamic_int8"].operations("keras_vit") is not None
    assert "machine's" not in records.share_of_machine(rows.ROWS["tflite-dynamic_int8"], "keras_vit", 1.0, rates)
    for name, system in (("build", "build"), ("digits", "keras_vit"), ("pretraining-float32", "MAE")):
        assert rows.ROWS[name].operations(system) is None and rows.ROWS[name].machine(str) is None


def test_rates_are_medians_over_the_rounds():
    answers = [{"seconds": 1.0, "rates": {"a": rate}} for rate in (1.0, 5.0, 2.0)]
    code = (
        "import sys, json\nprint('{\"ready\": true}', flush=True)\n"
        "for line, result in zip(sys.stdin, json.loads(sys.argv[1])): print(json.dumps(result), flush=True)"
    )
    (result,) = interleaved.run([interleaved.System("m", (sys.executable, "-c", code, json.dumps(answers)))], 3)
    assert result.rates == {"a": 2.0}


@pytest.mark.interop
def test_rates_of_this_machine_are_measured():
    pytest.importorskip("torch")
    system = rows.ROWS["inference-1-float32"].machine(lambda name: sys.executable)
    (result,) = interleaved.run([system], 1)
    assert result.error is None
    assert all(rate > 1e8 for rate in result.rates.values())
    assert {name.split(",")[0] for name in result.rates} == {"float32", "bfloat16", "memory"}


def test_compared_commits_are_checked_out_into_separate_folders(tmp_path, monkeypatch):
    repository = tmp_path / "repository"
    (repository / "keras_vit").mkdir(parents=True)
    monkeypatch.setattr(compare_commits, "ROOT", repository)

    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@e", *arguments], cwd=repository, check=True)

    git("init", "-q")
    for number in ("1", "2"):
        (repository / "keras_vit" / "version.py").write_text(number)
        git("add", "-A")
        git("commit", "-q", "-m", number)
    name = compare_commits.extract("HEAD~1", tmp_path / "a")
    compare_commits.extract("HEAD", tmp_path / "b")
    assert [(tmp_path / side / "keras_vit" / "version.py").read_text() for side in "ab"] == ["1", "2"]
    assert len(name) == 10
    with pytest.raises(ValueError, match="'nothing'"):
        compare_commits.extract("nothing", tmp_path / "c")
    pairs = compare_commits.pairs(rows.ROWS["training-float32"], {"a": tmp_path / "a", "b": tmp_path / "b"}, str)
    assert [[system.name for system in pair] for pair in pairs] == [
        ["keras_vit at a", "keras_vit at b"],
        ["keras_vit remat at a", "keras_vit remat at b"],
    ]
    assert pairs[0][0].environment["PYTHONPATH"] == str(tmp_path / "a")


def test_regressions_of_time_and_memory_are_reported():
    before = Result("a", 1.0, 1.0, peak_bytes=1_000)
    assert compare_commits.regression(before, Result("b", 1.0, 1.04, peak_bytes=1_040), 0.05) == ""
    after = Result("b", 1.2, 1.2, peak_bytes=1_500)
    assert compare_commits.regression(before, after, 0.05) == "20% more time, 50% more memory"
    broken = Result("b", error="it failed")
    assert compare_commits.regression(before, broken, 0.05) == "fails: it failed"
    assert compare_commits.regression(broken, broken, 0.05) == ""


def test_comparison_with_one_commit_is_refused():
    with pytest.raises(app.UsageError):
        compare_commits.main(["compare_commits", "HEAD"])
