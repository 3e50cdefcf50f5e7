"""A missing or wrong argument of a command line is named in one line."""

import pathlib
import re

import pytest
from absl import flags

from keras_vit import inference
from keras_vit.cli import commands, common_flags
from keras_vit.training import train
from tests import golden_data
from tests.programs import call, load, run
from train import experiments
from train.experiments import Row, Table

RUN = pathlib.Path(__file__).parents[1] / "runs" / "data" / "run"
IMAGE = golden_data.path("images/gray.png")
TAKE_DATA = {  # the programs with --data, and what else they require
    "train.main": ["--workdir=run"],
    "train.launch": ["--target=slurm"],
    "train.plan": [],
    "train.sweep": ["--workdir=sweep", "--grid=seed=0,1", "--list"],
    "train.evaluate": [f"--model={RUN}"],
    "train.check_data": [],
    "train.make_tfrecords": ["--output=records"],
}


@pytest.mark.parametrize("program", TAKE_DATA)
@pytest.mark.parametrize("form", ["{}", "--data={}"])
def test_the_data_set_is_the_first_argument_or_a_flag(program, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Exception, match="nowhere/images"):
        call(program, form.format("folder:nowhere/images"), *TAKE_DATA[program])
    assert not list(tmp_path.rglob("*.json"))


def test_all_programs_with_a_data_set_are_tested():
    for program in commands.PROGRAMS.values():
        load(program)
        assert ("data" in flags.FLAGS) == (program in TAKE_DATA), program


def test_flags_after_two_dashes_are_not_data_sets_of_a_sweep(tmp_path, capsys):
    """They are passed to `keras-vit train`."""
    arguments = ("digits", "--config=digits", f"--workdir={tmp_path}", "--grid=seed=0,1", "--list")
    assert call("train.sweep", *arguments, "--", "--distribute=one_device") == 0
    assert capsys.readouterr().out.count("seed=") == 2


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        ([], {}),
        (["--distribute=mirrored", "--virtual_devices=3"], {"distribute": "mirrored", "virtual_devices": 3}),
        (["--tpu=mine", "--multi_host"], {"tpu": "mine", "multi_host": True}),
        (["--change_recipe"], {"change_recipe": True}),
        (["--profile", "--track=wandb", "--track=mlflow"], {"profile": True, "track": ["wandb", "mlflow"]}),
    ],
)
def test_flags_are_passed_on_to_the_training(arguments, changed, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(
        train, "train", lambda recipe, workdir, **options: given.append((recipe.seed, workdir, options))
    )
    workdir = str(tmp_path / "run")
    assert call("train.main", "--config=digits", "--override=seed=3", f"--workdir={workdir}", *arguments) is None
    options = {"distribute": "auto", "tpu": "local", "virtual_devices": 0, "multi_host": False}
    options |= {"change_recipe": False, "profile": False, "track": ["tensorboard"]}
    assert given == [(3, workdir, options | changed)]


OPEN_MODELS = {  # programs with the flags of a model, and what else they require
    **dict.fromkeys(("train.predict", "train.visualize"), [str(IMAGE), "--output=x.csv"]),
    "train.embed": [str(IMAGE), "--output=x.npz"],
    **dict.fromkeys(("train.evaluate", "export.serve"), []),
    "export.main": ["--output=x"],
    "export.verify": ["--artifact=x"],
}


@pytest.mark.parametrize("program", OPEN_MODELS)
def test_flags_are_passed_on_to_the_opening_of_the_model(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"preprocess": "value_range(0, 1)", "checkpoint": "best", "image_size": 16}
    if program != "train.embed":  # features have no class names
        given["class_names"] = "names.txt"
    opened = []

    def stop(path, **options):
        opened.append((path, options))
        raise InterruptedError

    monkeypatch.setattr(inference, "open_predictor", stop)
    flags_of_the_model = [f"--{name}={value}" for name, value in given.items()]
    with pytest.raises(InterruptedError):
        call(program, *OPEN_MODELS[program], f"--model={RUN}", *flags_of_the_model)
    assert opened == [(str(RUN), given)]


@pytest.mark.parametrize("outcome", ["failed: exit code 1", "pruned", "diverged: exit code 70"])
def test_flags_are_passed_on_to_the_sweep(outcome, tmp_path, monkeypatch, capsys):
    """The exit code is 1 only if a run failed. The best run is the first of the first row."""
    given = []
    rows = [Row({}, {"b": "finished", "c": "finished"}, [{"eval_accuracy": 0.5}]), Row({}, {"a": outcome})]
    monkeypatch.setattr(
        experiments, "sweep", lambda *places, **options: given.append((places, options)) or Table(rows, [])
    )
    arguments = ["--config=digits", "--override=seed=5", f"--workdir={tmp_path}", "--grid=optim.ema_momentum=0,0.9"]
    arguments += ["--seeds=2", "--metric=eval_loss", "--noprune", "--parallel=3", "--", "--distribute=one_device"]
    assert call("train.sweep", *arguments) == (1 if outcome.startswith("failed") else 0)
    (((recipe, space, workdir), options),) = given
    assert (recipe.seed, space, workdir) == (5, {"optim.ema_momentum": [0.0, 0.9], "seed": [5, 6]}, str(tmp_path))
    assert options.pop("command")[-2:] == ["train", "--distribute=one_device"]
    assert options == {"trials": 0, "metric": "eval_loss", "prune": False, "parallel": 3}
    assert f"--config={tmp_path}/runs/b/recipe.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "directory"),
    [
        (["--config=recipes/mine.py"], "runs/mine"),
        (["--config=digits"], "runs/digits"),
        (["folder:pictures/pets/"], "runs/pets"),
        (["tfds:cifar10#download=False"], "runs/cifar10"),
    ],
)
def test_a_run_without_a_directory_has_the_name_of_its_recipe_or_data(arguments, directory):
    load("train.main")
    remaining = flags.FLAGS(["train.main", *arguments])
    assert common_flags.default_workdir(remaining[1:]) == directory


WRITE = {  # the programs that write files, and the flag or argument that names the path
    "train.main": ["--config=digits", "--workdir={}"],
    "train.launch": ["digits", "--target=slurm", "--output={}"],
    "train.vtab": ["--weights=augreg", "--workdir={}"],
    "train.sweep": ["--config=digits", "--grid=seed=0,1", "--workdir={}"],
    "train.embed": [f"--model={RUN}", "a.png", "--output={}.npz"],
    "train.similar": [f"--model={RUN}", "a.png", "--features=a.npz", "--output={}.html"],
    "train.predict": [f"--model={RUN}", "a.png", "--output={}"],
    "train.visualize": [f"--model={RUN}", "--output={}"],
    "train.sample_data": ["--output={}"],
    "train.make_tfrecords": ["digits", "--output={}"],
    "train.check_data": ["digits", f"--model={RUN}", "--output={}"],
    "export.main": [f"--model={RUN}", "--output={}"],
    "export.client": ["--name=pets", "a.png", "--output={}"],
    "export.convert_checkpoint": [str(RUN), "{}.npz"],
}


REQUIRE_A_PLACE = ("sweep", "vtab", "embed", "visualize", "sample_data", "make_tfrecords")


@pytest.mark.parametrize("program", [*(f"train.{name}" for name in REQUIRE_A_PLACE), "export.main"])
def test_missing_output_flag_is_reported(program):
    code, output = run(program, *(argument for argument in WRITE[program] if "{}" not in argument))
    assert code == 2 and re.search(r"--(output|workdir)\b.* (is missing|are needed)", output), output


@pytest.mark.parametrize("program", WRITE)
def test_urls_are_not_taken_for_folders(program, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scheme = "s3" if program in ("train.sweep", "train.vtab") else "ftp"  # other programs upload to buckets
    code, output = run(program, *(argument.format(f"{scheme}://bucket/place") for argument in WRITE[program]))
    assert code == 2
    assert "Expected a path in the file system" in output and f"{scheme}://bucket/place" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", ["train.embed", "train.predict", "train.visualize", "export.main", "export.client"])
def test_image_urls_are_refused_before_the_model_is_opened(program):
    model = "--name=pets" if program == "export.client" else f"--model={RUN}"
    images = "--images=s3://bucket/a.png" if program == "export.main" else "s3://bucket/a.png"
    code, output = run(program, model, images, "--output=out.npz")
    assert code == 2 and "Expected images in the file system. Received: 's3://bucket/a.png'" in output


def test_all_programs_that_write_are_tested():
    for program in commands.PROGRAMS.values():
        load(program)
        written = {"workdir", "output", "sheet"} & set(flags.FLAGS)
        assert not written or program in WRITE, program
