"""Predictors in other processes: pickled, in shards, on Ray, Beam, Spark and Dask (`make test-engines`)."""

import json
import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import keras_vit
from keras_vit import inference
from keras_vit.cli import common_flags
from keras_vit.util import file_io
from tests import tiny
from tests.programs import call, load

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "how_to" / "many_images.md"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines") / "model.keras"
    tiny.model(pooling="gap").save(path)
    return path


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A working directory with a folder of images, of which the third cannot be read."""
    (tmp_path / "photos").mkdir()
    for number, content in enumerate(tiny.images(6).contents):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(content if number != 2 else b"no image")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


def test_predictor_is_pickled_as_its_path(model, photos, monkeypatch):
    monkeypatch.chdir(model.parent)
    predictor = keras_vit.open_predictor("model.keras", preprocess="value_range(0, 1)", class_names=tiny.CLASS_NAMES)
    content = pickle.dumps(predictor)
    assert len(content) < 1000 and str(model).encode() in content
    monkeypatch.chdir(photos)
    first, second = (pickle.loads(content) for _ in range(2))  # noqa: S301
    assert first is second and first is not predictor and first.class_names == tiny.CLASS_NAMES
    np.testing.assert_array_equal(first.predict("0.jpg"), predictor.predict("0.jpg"))
    predictor.card = tiny.card(model_sha256="1")
    with pytest.raises(ValueError, match=r"model\.keras.*other weights"):
        pickle.loads(pickle.dumps(predictor))  # noqa: S301
    with pytest.raises(TypeError, match="open_predictor"):
        pickle.dumps(inference.Predictor("", tiny.card()))


@pytest.mark.slow
def test_unpickled_predictor_opens_the_new_model_at_the_same_path(tmp_path):
    path = tmp_path / "model.keras"
    for seed in range(2):
        tiny.model(seed).save(path)
        predictor = keras_vit.open_predictor(path, preprocess="value_range(0, 1)")
        assert pickle.loads(pickle.dumps(predictor)).card.sha256 == predictor.card.sha256  # noqa: S301


@pytest.mark.parametrize("features", [False, True])
def test_ray_predictor_returns_the_columns_of_a_batch(features, model, photos):
    predict = inference.RayPredictor(str(model), features=features, top_k=1, preprocess="value_range(-1, 1)")
    contents = [path.read_bytes() for path in sorted(photos.iterdir())]
    found = predict({"__key__": np.array(list("abcdef")), "jpg": contents})
    assert [bool(error) for error in found["error"]] == [False, False, True, False, False, False]
    assert found["names" if features else "path"] == list("abcdef")
    if features:
        np.testing.assert_allclose(found["features"][3:], predict.predictor.features(contents[3:]), rtol=1e-4)
        assert np.isnan(found["features"][2]).all()
        unreadable = predict({"bytes": contents[2:3] * 2})["features"]
        assert unreadable.shape == (2, found["features"].shape[1]) and np.isnan(unreadable).all()
    else:
        assert found["label"][0] == str(predict.predictor.predict(contents[0]).argmax())
    with pytest.raises(ValueError, match="image, bytes.*Received: text"):
        predict({"text": []})


def test_shards_are_disjoint_and_complete():
    load("train.embed")
    paths = [f"photos/{number}.jpg" for number in range(1000)]
    shards = []
    for number in range(4):
        with flagsaver.flagsaver(shard=f"{number}/4"):
            shards.append(list(filter(common_flags.in_shard, paths)))
    assert sorted(sum(shards, [])) == sorted(paths)
    assert all(200 < len(shard) < 300 for shard in shards)
    for wrong in ("4/4", "1", "-1/4", "a/b"):
        with pytest.raises((ValueError, flags.Error), match="shard"):
            flags.FLAGS.shard = wrong
    flags.FLAGS["shard"].unparse()


def test_slurm_script_of_the_page_is_valid(tmp_path, monkeypatch):
    """The tasks have the shards of all images. A task at its time limit is queued again, and a finished one is not."""
    (script,) = re.findall(r"```shell\n(#!/bin/bash\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    first, last = map(int, re.search(r"--array=(\d+)-(\d+)", script).groups())
    shards = re.search(r'--shard="\$shard/(\d+)"', script)[1]
    assert first == 0 and last == int(shards) - 1 and len(script.splitlines()) <= 13
    features = "#!/bin/bash\nfor text; do case $text in --output=*) output=${text#*=} ;; esac; done\n"
    for name, text in {
        "srun": '#!/bin/bash\n"$@"\n',
        "scontrol": '#!/bin/bash\necho "$@" >> calls\n',
        "keras-vit": f'{features}echo "$@" >> calls; [ $STOP ] && kill $$; touch "$output"\n',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "features").mkdir()
    script = script.replace("/shared/venv/bin", str(tmp_path)).replace("/shared/features", str(tmp_path / "features"))
    (tmp_path / "embed.sbatch").write_text(script)
    codes = []
    for stop in ("1", "", ""):
        own = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_JOB_ID": "4711", "STOP": stop}
        codes.append(subprocess.run(["bash", "embed.sbatch"], env={**os.environ, **own}, cwd=tmp_path).returncode)
    assert codes == [143, 0, 0]
    first, requeued, second = (tmp_path / "calls").read_text().splitlines()
    assert first == second and requeued == "requeue 4711" and f"--shard=7/{shards} " in first
    shellcheck = shutil.which("shellcheck", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    assert (
        not shellcheck
        or not subprocess.run([shellcheck, "--severity=warning", "embed.sbatch"], cwd=tmp_path).returncode
    )


@pytest.mark.slow
def test_tables_of_all_shards_add_up_to_the_whole_table(model, photos):
    for shard in (None, "0/2", "1/2"):
        arguments = [f"--model={model}", "--preprocess=value_range(-1, 1)", f"--output={shard and shard[0]}.jsonl"]
        assert call("train.predict", *arguments, *([f"--shard={shard}"] if shard else []), "photos") in (0, 1)
    whole, *parts = (pathlib.Path(f"{name}.jsonl").read_text().splitlines() for name in (None, 0, 1))
    assert len(whole) == 6
    paths = [{json.loads(line)["path"] for line in lines} for lines in parts]
    assert paths[0].isdisjoint(paths[1]) and len(paths[0] | paths[1]) == 6 and all(paths)


def test_images_before_the_damage_of_parts_have_rows(model, photos, tmp_path, monkeypatch):
    """The images up to the damage come out, and a row has the error."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from keras_vit.inference import ray_engine

    columns = {"path": pyarrow.array([7, None]), "image": [(photos / "0.jpg").read_bytes(), None]}
    parquet.write_table(pyarrow.table(columns), "a.parquet")
    pathlib.Path("b.parquet").write_bytes(pathlib.Path("a.parquet").read_bytes()[:-20])
    pathlib.Path("c.tar").write_bytes(b"no tar file")
    with tarfile.open("d.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for name in "013":
            tar.add(f"photos/{name}.jpg", f"{name}.jpg")
    content = pathlib.Path("d.tar").read_bytes()
    pathlib.Path("d.tar").write_bytes(content[: content.index((photos / "3.jpg").read_bytes()) + 10])
    os.mkdir("out")
    writer = ray_engine.PartitionWriter(str(tmp_path / "out"), str(model), preprocess="value_range(-1, 1)")
    counts = [writer.write(f"{name[0]}.parquet", [str(tmp_path / name)]) for name in os.listdir() if "." in name]
    assert sorted(counts) == [(1, 1), (1, 1), (2, 1), (3, 1)]
    found = {row["path"].removeprefix(f"{tmp_path}/"): row["error"] or "" for row in rows(tmp_path / "out")}
    assert sorted(found) == ["7", "a.parquet/1", "b.parquet", "c.tar", "d.tar", "d.tar/0.jpg", "d.tar/1.jpg"]
    assert sorted(name for name, error in found.items() if not error) == ["7", "d.tar/0.jpg", "d.tar/1.jpg"]
    assert "complete tar file" in found["c.tar"] and "complete tar file" in found["d.tar"]

    def copy(*paths):
        raise OSError("no network")

    monkeypatch.setattr(file_io, "is_remote", lambda path: True)
    monkeypatch.setattr(file_io.import_pyarrow().fs, "copy_files", copy)
    for name in ("a.parquet", "d.tar"):  # an error of the network does not become a row of a finished file
        with pytest.raises(OSError, match="no network"):
            writer.write("e.parquet", [f"file://{tmp_path}/{name}"])
    assert not list((tmp_path / "out").glob("*e.parquet"))


def test_names_that_are_not_utf_8_are_refused(photos):
    from keras_vit.inference import ray_engine

    with pytest.raises(ValueError, match="UTF-8"):
        list(ray_engine.listed(["photos/0.jpg", "\udcff.jpg"]))


# --- make test-engines ------------------------------------------------------------------------------------------------


def rows(folder):
    """The rows of all files of a folder, by name."""
    table = pytest.importorskip("pyarrow.parquet").read_table(folder).to_pylist()
    return sorted(table, key=lambda row: row.get("path") or row["names"])


@pytest.fixture
def cluster(photos, monkeypatch):
    """Ray in the working directory of the test."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.engines
def test_ray_survives_a_killed_worker_and_a_restart(cluster, model, photos, monkeypatch):
    """No row is lost or duplicated. A restart computes only the missing files."""
    import ray.data  # noqa: F401

    from keras_vit.inference import ray_engine

    class Killed(ray_engine.PartitionWriter):
        """A worker that notes its process, and that kills it after the first row of a file in the middle."""

        def rows(self, images):
            (pathlib.Path(self.folder).parent / f"worker-{os.getpid()}").touch()
            for row in super().rows(images):
                yield row
                if (
                    row["names"].endswith("/300.jpg")
                    and not (mark := pathlib.Path(self.folder).parent / "mark").exists()
                ):
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

    good = (photos / "0.jpg").read_bytes()
    for number in range(6, 600):
        (photos / f"{number}.jpg").write_bytes(good)
    dataset = cluster.data.Dataset
    map_batches = dataset.map_batches
    monkeypatch.setattr(dataset, "map_batches", lambda self, _, **options: map_batches(self, Killed, **options))
    options = {"model": str(model), "preprocess": "value_range(-1, 1)", "features": True, "workers": 2, "part_size": 2}
    out = str(photos.parent / "out")
    assert ray_engine.run(ray_engine.listed(["photos"]), out, **options) == (600, 1)
    assert (photos.parent / "mark").exists() and len(list(photos.parent.glob("worker-*"))) == 3
    found = rows(out)
    assert [row["names"] for row in found] == sorted(str(path) for path in photos.iterdir())
    (bad,) = [row for row in found if row["error"]]
    assert bad["names"].endswith("/2.jpg") and bad["features"] is None
    expected = keras_vit.open_predictor(model, preprocess="value_range(-1, 1)").features(good)[0]
    np.testing.assert_allclose(found[-1]["features"], expected, rtol=1e-4)

    files = sorted(photos.parent.glob("out/part-*"))
    times = [file.stat().st_mtime_ns for file in files]
    files[7].unlink()
    files[8].write_bytes(files[9].read_bytes())  # of other images
    assert ray_engine.run(ray_engine.listed(["photos"]), out, **options) == (600, 1)
    again = [file.stat().st_mtime_ns for file in files]
    assert [number for number in range(300) if times[number] != again[number]] == [7, 8]
    assert rows(out) == found
    with pytest.raises(ValueError, match=r"part-000299\.parquet"):
        ray_engine.run(list(ray_engine.listed(["photos"]))[:-2], out, **options)


@pytest.mark.engines
def test_programs_on_ray_read_tar_and_parquet_files_manifests_and_urls(cluster, model, photos, monkeypatch):
    import pyarrow.parquet

    monkeypatch.setattr(file_io, "is_remote", lambda path: "://" in path)  # also file://

    with tarfile.open("a.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        tar.add("photos/0.jpg", "0.jpg")
        tar.add("photos/2.jpg", "2.jpg")
    content = pathlib.Path("a.tar").read_bytes()
    pathlib.Path("cut.tar").write_bytes(content[: content.index(b"no image")])
    image = [{"bytes": (photos / "1.jpg").read_bytes(), "path": "one.jpg"}]
    pyarrow.parquet.write_table(pyarrow.table({"image": image}), "b.parquet")
    pathlib.Path("list.txt").write_text("photos/3.jpg\nphotos/missing.jpg\n")
    flags_ = [f"--model={model}", "--preprocess=value_range(-1, 1)", "--engine=ray", "--top_k=1", "--output=table"]
    given = ["cut.tar", "a.tar", "b.parquet", "list.txt", f"file://{photos}/4.jpg"]
    assert call("train.predict", *flags_, *given) == 1
    found = {row["path"]: row for row in rows("table")}
    here = f"{photos.parent}/"
    names = [f"{here}a.tar/0.jpg", f"{here}a.tar/2.jpg", "one.jpg", f"{here}photos/3.jpg", f"{here}photos/missing.jpg"]
    cut = [f"{here}cut.tar", f"{here}cut.tar/0.jpg"]
    assert sorted(found) == sorted([*names, f"file://{photos}/4.jpg", *cut])
    assert [bool(found[name]["error"]) for name in cut] == [True, False]
    assert "not a readable image" in found[names[1]]["error"] and "No such file" in found[names[4]]["error"]
    expected = keras_vit.open_predictor(model, preprocess="value_range(-1, 1)").predict("photos/3.jpg")
    assert found[names[3]]["label"] == str(expected.argmax())
    with pytest.raises(ValueError, match="--json"):
        call("train.predict", *flags_, "--json", "photos")


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["Ray Data", "Beam", "Spark", "Dask"])
def test_snippets_of_the_page_run(engine, request, model, photos, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    if engine == "Ray Data":
        request.getfixturevalue("cluster")
    section = PAGE.read_text(encoding="utf-8").partition(f"## {engine}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(code.splitlines()) <= 15
    os.symlink(model, "model.keras")
    exec(compile(code, engine, "exec"), {"__name__": engine})  # noqa: S102
    if engine == "Beam":
        lines = [line for file in pathlib.Path().glob("predictions_beam*") for line in file.read_text().splitlines()]
        found = sorted(map(json.loads, lines), key=lambda row: row["path"])
    else:
        found = rows(f"predictions_{engine.split()[0].lower()}")
    assert [row["path"].rpartition("/")[2] for row in found] == [f"{number}.jpg" for number in range(6)]
    assert [bool(row["error"]) for row in found] == [False, False, True, False, False, False]
    expected = keras_vit.open_predictor(model).predict("photos/0.jpg")
    assert found[0]["label"] == str(expected.argmax())
