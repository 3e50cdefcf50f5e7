"""Trackers with fake packages: what they record, and what a resumed run records."""

import sys
import types

import pytest
import tensorflow as tf

from keras_vit import recipe as recipes
from keras_vit.runs import errors, run_directory
from keras_vit.training import metrics, trackers


class FakeWandb:
    def __init__(self):
        self.starts, self.logged, self.ended, self.axes = [], [], 0, []

    def init(self, **options):
        self.starts.append(options)
        run = types.SimpleNamespace(id=options["id"] or "new", log=self.log_next, finish=self.finish)
        run.define_metric = lambda name, step_metric: self.axes.append((name, step_metric))
        return run

    def log_next(self, values):
        """W&B counts the calls: a step that does not increase would be dropped."""
        self.log({name: value for name, value in values.items() if name != "step"}, values["step"])

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        self.ended += 1


class FakeMlflow(FakeWandb):
    def start_run(self, run_id, run_name):
        self.starts.append({"id": run_id, "name": run_name})
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=run_id or "new"))

    def log_params(self, fields):
        self.starts[-1]["config"] = fields

    def log_metrics(self, values, step):
        self.log(values, step)

    def end_run(self):
        self.finish()


@pytest.fixture(params=["wandb", "mlflow"])
def package(request, monkeypatch):
    fake = {"wandb": FakeWandb, "mlflow": FakeMlflow}[request.param]()
    monkeypatch.setitem(sys.modules, request.param, fake)
    return request.param, fake


@pytest.fixture
def run(tmp_path):
    data = {"name": "digits", "class_names": ["0"], "num_classes": 1, "num_train": 1, "num_eval": 1}
    path = tmp_path / "mine"
    path.mkdir()
    recipe = recipes.Recipe(total_steps=7, data=recipes.Data(pp_train="x" * 501))
    run_directory.write_config(str(path), recipe, data)
    return str(path)


def record(run, name, step=0):
    writer = metrics.MetricsWriter(run, step, [name])
    writer.write(step + 2, {"loss": 0.5, "learning_rate": 0.1})
    writer.write(step + 2, {"split": "test", "eval_accuracy": 0.75, "eval_loss": 1.5})
    writer.close()


def test_tracker_records_metrics_and_recipe_and_continues_a_resumed_run(package, run):
    name, fake = package
    record(run, name)
    assert fake.logged == [
        (2, {"train/loss": 0.5, "train/learning_rate": 0.1}),
        (2, {"eval/accuracy": 0.75, "eval/loss": 1.5}),
    ]
    assert fake.axes == ([("train/*", "step"), ("eval/*", "step")] if name == "wandb" else [])
    first = fake.starts[0]
    assert first["id"] is None and first["name"] == "mine" and int(first["config"]["total_steps"]) == 7
    assert first["config"]["data.pp_train"] == "x" * (500 if name == "mlflow" else 501)  # MLflow's limit
    record(run, name, step=2)
    assert fake.starts[1]["id"] == "new" and fake.ended == 2
    assert fake.starts[1]["name"] == (None if name == "mlflow" else "mine")  # MLflow would rename the record
    assert len(run_directory.read_metrics(run)) == 4


def test_each_tracker_continues_its_own_record(run, monkeypatch):
    fakes = {"wandb": FakeWandb(), "mlflow": FakeMlflow()}
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    for name in ("wandb", "mlflow", "wandb", "mlflow"):
        trackers.TRACKERS[name](run, 0)
    assert [[start["id"] for start in fake.starts] for fake in fakes.values()] == [[None, "new"]] * 2


def test_error_of_a_tracker_does_not_end_the_run(package, run, monkeypatch, caplog):
    name, fake = package

    def fails(*arguments, **options):
        raise ConnectionError("the network is down")

    monkeypatch.setattr(fake, "log", fails)
    record(run, name)
    assert len(run_directory.read_metrics(run)) == 2
    assert len([text for text in caplog.messages if "the network is down" in text]) == 1


@pytest.mark.parametrize(
    ("step", "content", "is_resumed"), [(0, None, False), (2, None, True), (0, "{}", True), (0, "", True)]
)
def test_a_tracker_that_cannot_start_ends_only_a_first_start(
    step, content, is_resumed, package, run, monkeypatch, caplog
):
    name, fake = package

    def fails(**options):
        raise ConnectionError("the server is down")

    monkeypatch.setattr(fake, {"wandb": "init", "mlflow": "start_run"}[name], fails)
    if content is not None:
        with open(f"{run}/trackers.json", "w") as file:
            file.write(content)
    if not is_resumed:
        with pytest.raises(errors.TrainingError, match=f"--track={name} .* the server is down"):
            record(run, name, step)
        return
    record(run, name, step)
    assert len(run_directory.read_metrics(run)) == 2 and "the server is down" in caplog.text


def test_a_damaged_list_of_records_begins_a_new_record(package, run, caplog):
    name, fake = package
    with open(f"{run}/trackers.json", "w"):
        pass
    record(run, name, step=2)
    assert fake.starts[0]["id"] is None and fake.ended == 1 and "trackers.json" in caplog.text
    assert trackers.file_io.read_json(f"{run}/trackers.json") == {name: "new"}


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_before_the_training(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"\[{name}\]"):
        trackers.require(name)


def values(directory):
    """The values of all events in a directory by tag: lists of (step, plugin, content, value)."""
    found = {}
    for path in sorted(directory.glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                plugin = value.metadata.plugin_data
                entry = event.step, plugin.plugin_name, plugin.content, tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, []).append(entry)
    return found


def test_training_and_evaluation_share_their_tags(tmp_path):
    writer = metrics.MetricsWriter(str(tmp_path), step=0)
    writer.write(2, {"loss": 0.5, "accuracy": 0.25, "grad_norm": 1.0})
    writer.write(2, {"split": "test", "eval_accuracy": 0.75, "eval_loss": 0.125, "examples": 8})
    writer.write(2, {"knn/k1": 0.5})
    writer.close()
    train, evaluation = (values(tmp_path / "tensorboard" / kind) for kind in ("train", "eval"))
    assert {"loss", "accuracy"} <= set(train) & set(evaluation)
    assert train["loss"] == [(2, "scalars", b"", 0.5)] and evaluation["loss"] == [(2, "scalars", b"", 0.125)]
    assert evaluation["knn/k1"] == [(2, "scalars", b"", 0.5)]
    assert not values(tmp_path / "tensorboard")


def test_a_resumed_run_lets_tensorboard_drop_the_events_after_its_checkpoint(tmp_path):
    """TensorBoard drops events whose step is not below that of the record of a start."""
    for step, steps in ((0, (2, 4, 6)), (4, (6, 8))):
        writer = metrics.MetricsWriter(str(tmp_path), step)
        for each in steps:
            writer.write(each, {"loss": 0.5})
        writer.close()
    kept = []
    for path in sorted((tmp_path / "tensorboard" / "train").glob("events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            if event.session_log.status == tf.compat.v1.SessionLog.START:
                kept = [step for step in kept if step < event.step]
            kept += [event.step for _ in event.summary.value]
    assert kept == [2, 4, 6, 8]


def test_file_at_the_path_of_a_tracker_is_reported(tmp_path):
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(errors.StorageError, match="tensorboard"):
        metrics.MetricsWriter(str(tmp_path), step=0).write(1, {"loss": 0.5})
