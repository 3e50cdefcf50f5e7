"""The loop on a toy problem: events between steps must not change the learned weights."""

import dataclasses
import json
import os
import signal

import numpy as np
import pytest

from keras_vit.runs import checkpoints
from keras_vit.runs.checkpoints import CheckpointStore
from keras_vit.runs.errors import Diverged, Interrupted
from keras_vit.runs.run_directory import read_metrics
from keras_vit.training.metrics import MetricsWriter
from keras_vit.training.speed import Speed
from keras_vit.util import signals
from tests import selection
from tests.training import toy

METRICS = ("loss", "accuracy", "grad_norm", "learning_rate")


def lines(directory):
    found = read_metrics(directory)
    return [{name: value for name, value in line.items() if name != "images_per_second"} for line in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run: its trainer, its directory."""
    directory = tmp_path_factory.mktemp("whole")
    trainer = toy.Trainer(directory, toy.recipe())
    call, trainer.history = trainer.loop.run_steps, []

    def recorded(*arguments):
        found = call(*arguments)
        trainer.history += np.transpose([found[name] for name in METRICS]).astype(np.float64).tolist()
        return found

    trainer.loop.run_steps = recorded
    trainer.results = trainer.run()
    trainer.loop.run_steps = call
    return trainer


def test_training_reduces_the_loss_and_writes_metrics(whole):
    found = lines(whole.directory)
    assert [line["step"] for line in found if "loss" in line] == [2, 4, 6, 8, 10]
    assert [line["step"] for line in found if "eval_loss" in line] == [4, 8, 10]
    assert whole.results["examples"] == 5  # three rows of the evaluation batch are masked
    assert found[0]["learning_rate"] == pytest.approx(0.025)
    assert os.listdir(f"{whole.directory}/tensorboard")
    assert whole.validation.tally.sum() == 5
    assert len(whole.validation.examples["image"]) == 5


@pytest.mark.slow
def test_steps_per_loop_changes_nothing(whole, tmp_path):
    trainer = toy.Trainer(tmp_path, toy.recipe(steps_per_loop=1, log_every=2))
    trainer.run()
    toy.assert_same(trainer.everything(), whole.everything())
    assert lines(tmp_path) == lines(whole.directory)


@pytest.mark.slow
def test_reporting_and_saving_intervals_change_nothing(whole, tmp_path):
    """Fields that may change in a resumed run."""
    trainer = toy.Trainer(tmp_path, toy.recipe(log_every=5, eval_every=2, checkpoint_every=1, keep_checkpoints=9))
    trainer.run()
    learned = {name: value for name, value in trainer.everything().items() if name not in ("best", "window")}
    assert any(name.startswith("model/") for name in learned)
    toy.assert_same(learned, {name: whole.everything()[name] for name in learned})


def test_slow_steps_return_to_python_within_seconds_in_several_workers(whole, monkeypatch):
    """The grace period after SIGTERM is often 30 seconds. All workers run the same number of steps."""
    monkeypatch.setattr(whole.backend, "num_workers", 2)
    other = 8.0  # steps that the other worker proposes
    monkeypatch.setattr(whole.backend, "mean", lambda value: (value + other) / 2, raising=False)
    recipe = toy.recipe(total_steps=1000, log_every=0, eval_every=0, checkpoint_every=0)
    monkeypatch.setattr(whole.loop, "recipe", recipe)
    speed = Speed(batch_size=8)
    speed.add(steps=1, seconds=0.5)
    assert whole.loop._next_count(100, speed) == 6


def test_remaining_time_excludes_the_compiling_call():
    speed = Speed(batch_size=8)
    assert speed.seconds_for(5) is None and speed.images_per_second == 0.0 and speed.steps_in(60.0) == 1
    speed.add(steps=1, seconds=60.0)
    speed.add(steps=10, seconds=5.0)
    assert (speed.seconds_for(20), speed.images_per_second) == (10.0, 16.0)
    assert [speed.steps_in(seconds) for seconds in (0.4, 0.99, 1.0)] == [0, 1, 2]
    speed.add(steps=10, seconds=15.0)
    assert speed.seconds_for(10) == pytest.approx(0.7 * 5 + 0.3 * 15)


def test_step_is_traced_once_for_any_number_of_steps(whole):
    assert whole.loop.run_steps.compiled.experimental_get_tracing_count() == 1
    assert whole.validation.evaluate.compiled.experimental_get_tracing_count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", selection.cases([2, 5, 6], [5], selection.EXHAUSTIVE))
def test_resuming_from_any_step_is_exact(whole, tmp_path, stop_at, monkeypatch):
    """SIGTERM after `stop_at` steps; a second trainer resumes. Dropout, averages and metrics agree."""
    first = toy.Trainer(tmp_path, toy.recipe(steps_per_loop=1))
    call = first.loop.run_steps

    def call_and_terminate(iterator, step, count):
        if step + 1 == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(iterator, step, count)

    monkeypatch.setattr(first.loop, "run_steps", call_and_terminate)
    with pytest.raises(Interrupted, match=f"SIGTERM at step {stop_at} of 10; the state is saved") as caught:
        first.run()
    assert caught.value.exit_code == 75
    second = toy.Trainer(tmp_path, toy.recipe())
    assert second.restored == stop_at
    second.run()
    toy.assert_same(second.everything(), whole.everything())
    assert lines(tmp_path) == lines(whole.directory)


@pytest.mark.slow
def test_steps_after_the_last_checkpoint_are_repeated_after_a_kill(whole, tmp_path, monkeypatch):
    """Steps after the last checkpoint are repeated, and their lines of metrics occur only once."""
    first = toy.Trainer(tmp_path, toy.recipe(steps_per_loop=1))
    call = first.loop.run_steps

    def call_and_die(iterator, step, count):
        if step == 7:
            raise MemoryError
        return call(iterator, step, count)

    monkeypatch.setattr(first.loop, "run_steps", call_and_die)
    with pytest.raises(MemoryError):
        first.run()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "lo')  # cut off while it was written
    second = toy.Trainer(tmp_path, toy.recipe())
    assert second.restored == 6
    second.run()
    toy.assert_same(second.everything(), whole.everything())
    assert lines(tmp_path) == lines(whole.directory)


@pytest.mark.slow
def test_a_finished_run_is_only_evaluated(whole):
    again = toy.Trainer(whole.directory, toy.recipe())
    before = again.everything()
    assert again.run() == whole.results
    toy.assert_same(again.everything(), before)


@pytest.mark.slow
def test_nan_loss_ends_the_run_and_names_the_step(tmp_path):
    trainer = toy.Trainer(tmp_path, toy.recipe(), bad_step=7)
    with pytest.raises(Diverged, match=r"loss is nan.* in step 8, at learning rate 0.0.*ckpt-6") as caught:
        trainer.run()
    assert caught.value.exit_code == 70
    again = toy.Trainer(tmp_path, toy.recipe())
    assert again.restored == 6
    assert all(np.isfinite(value).all() for name, value in again.everything().items() if name != "best")


def test_metrics_of_later_steps_are_removed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    writer = MetricsWriter(str(tmp_path), step=2)
    writer.write(3, {"loss": 0.5, "split": "test"})
    writer.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2},
        {"step": 3, "loss": 0.5, "split": "test"},
    ]


def test_a_line_has_the_means_of_only_its_steps(whole):
    history = np.array(whole.history)  # [steps, (loss, accuracy, norm, rate)]
    assert history.shape == (10, 4)
    for line in lines(whole.directory):
        if "loss" in line:
            loss, accuracy = history[line["step"] - 2 : line["step"], :2].mean(axis=0)
            assert line["loss"] == pytest.approx(loss, rel=1e-6) and line["accuracy"] == pytest.approx(accuracy)
            assert [line["grad_norm"], line["learning_rate"]] == pytest.approx(history[line["step"] - 1, 2:].tolist())


@pytest.mark.slow
def test_the_first_loss_is_the_loss_of_the_first_batch(tmp_path):
    """Worked out in NumPy, without dropout."""
    trainer = toy.Trainer(tmp_path, toy.recipe(total_steps=1, checkpoint_every=0))
    trainer.model.get_layer("dropout").rate = 0.0
    batch = {name: value.numpy() for name, value in toy.batch_of(0).items()}
    kernel, bias, head_kernel, head_bias = (weight.numpy().astype(np.float64) for weight in trainer.model.weights[:4])
    logits = np.tanh(batch["image"] @ kernel + bias) @ head_kernel + head_bias
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(toy.BATCH), batch["label"]]
    trainer.run()
    found = lines(tmp_path)[0]
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((logits.argmax(-1) == batch["label"]).mean())


def toy_loop(monkeypatch, tmp_path, run_steps, evaluators=()):
    """The loop of a toy run from its first step, with other steps and evaluators."""
    trainer = toy.Trainer(tmp_path, toy.recipe(checkpoint_every=0))
    monkeypatch.setattr(trainer.loop, "run_steps", run_steps)
    monkeypatch.setattr(trainer.loop, "evaluators", list(evaluators))
    return trainer


def test_an_infinite_gradient_ends_the_run(monkeypatch, tmp_path):
    """The loss of the step is finite; the weights after it would not be."""
    steps = np.array([[1.0, 0.5, 2.0, 0.05], [1.0, 0.5, np.inf, 0.05]], np.float32)
    trainer = toy_loop(monkeypatch, tmp_path, lambda iterator, step, count: history(steps[:count]))
    monkeypatch.setattr(trainer.loop, "_next_count", lambda step, speed: 2)
    with pytest.raises(Diverged, match="gradient's norm inf in step 2"):
        trainer.run()


def history(steps):
    """Metrics of steps by name, from rows of numbers."""
    return dict(zip(METRICS, np.transpose(steps), strict=True))


class SameScore:
    """An evaluation whose score does not change after the second one."""

    scores = (0.25, 0.5, 0.5, 0.5, 0.75, 0.75)

    def __init__(self):
        self.left = list(self.scores)

    def intervals(self):
        return [2]

    def __call__(self, step, last):
        yield {"eval_accuracy": self.left.pop(0)}


@pytest.mark.parametrize("total", [10, 0])
def test_a_fitted_head_is_evaluated_and_saved_before_the_first_step(total, monkeypatch, tmp_path):
    """Step 0 counts as an evaluation that chooses the best checkpoint. Without steps, all evaluations then run."""
    fake = np.array([[1.0, 0.5, 2.0, 0.05]], np.float32)
    run_steps = lambda iterator, step, count: history(np.repeat(fake, count, axis=0))  # noqa: E731
    recipe, called = toy.recipe(total_steps=total, checkpoint_every=0, head_images=8), []

    class Other(SameScore):
        def __call__(self, step, last):
            called.append((step, last))
            yield {"other": 1.0}

    trainer, saved = toy.Trainer(tmp_path, recipe), []
    monkeypatch.setattr(trainer.loop, "run_steps", run_steps)
    monkeypatch.setattr(trainer.loop, "evaluators", [SameScore(), Other()])
    monkeypatch.setattr(trainer.store, "save", lambda values, best: saved.append((trainer.state.progress.step, best)))
    first = SameScore.scores[0]
    assert trainer.run()["eval_accuracy"] == (first if not total else pytest.approx(0.75))
    assert saved[0] == (0, True) and lines(tmp_path)[0] == {"step": 0, "eval_accuracy": first}
    assert called[0] == ((0, True) if not total else (2, False)) and called[-1] == (total, True)


def test_a_plan_of_no_steps_ends_after_the_fitted_head(monkeypatch, tmp_path):
    """Also if the run was killed while it planned."""
    recipe = toy.recipe(total_steps=10, checkpoint_every=0, head_images=8)

    class Other(SameScore):
        def __call__(self, step, last):
            yield {"other": 1.0}

    for number_of_lines in (2, 4):
        trainer = toy.Trainer(tmp_path, recipe)
        monkeypatch.setattr(trainer.loop, "plan", lambda: dataclasses.replace(recipe, total_steps=0))
        monkeypatch.setattr(trainer.loop, "batches", None)  # no step is run
        monkeypatch.setattr(trainer.loop, "evaluators", [SameScore(), Other()])
        assert trainer.run() == {"eval_accuracy": SameScore.scores[0]}
        assert [line["step"] for line in lines(tmp_path)] == [0] * number_of_lines
        assert trainer.store.newest().endswith("ckpt-0")


def test_an_evaluation_at_the_end_does_not_choose_the_fitted_head(monkeypatch, tmp_path):
    """The test images are its only images."""

    class AtTheEnd(SameScore):
        def intervals(self):
            return []

    fake = np.array([[1.0, 0.5, 2.0, 0.05]], np.float32)
    recipe = toy.recipe(total_steps=10, checkpoint_every=0, head_images=8)
    for plan, expected in ((None, 10), (lambda: dataclasses.replace(recipe, total_steps=0), 0)):
        directory = tmp_path / str(expected)
        directory.mkdir()
        trainer = toy.Trainer(directory, recipe)
        monkeypatch.setattr(trainer.loop, "run_steps", lambda iterator, step, count: history(np.repeat(fake, count, 0)))
        monkeypatch.setattr(trainer.loop, "evaluators", [AtTheEnd()])
        monkeypatch.setattr(trainer.loop, "plan", plan)
        assert trainer.run() == {"eval_accuracy": SameScore.scores[0]}
        assert [line["step"] for line in lines(directory) if "eval_accuracy" in line] == [expected]
        found = [checkpoints.saved_steps(folder) for folder in (trainer.store.best, trainer.store.directory)]
        assert found == [[expected]] * 2


def test_an_equal_score_is_not_a_new_best(monkeypatch, tmp_path):
    fake = np.array([[1.0, 0.5, 2.0, 0.05]], np.float32)
    run_steps = lambda iterator, step, count: history(np.repeat(fake, count, axis=0))  # noqa: E731
    trainer = toy_loop(monkeypatch, tmp_path, run_steps, [SameScore()])
    saved = []
    monkeypatch.setattr(
        trainer.store, "save", lambda values, best: saved.append((trainer.state.progress.step, best)) or None
    )
    trainer.run()
    assert [step for step, best in saved if best] == [2, 4, 10]


@pytest.mark.slow
def test_training_ends_after_evaluations_without_a_better_score(tmp_path):
    """With a rate of zero only the first evaluation, after step 4, is the best. An interruption changes nothing."""
    recipe = toy.recipe(total_steps=40, patience=2, log_every=5, optim={"learning_rate": 0.0})
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = toy.Trainer(tmp_path / "whole", recipe)
    whole.run()
    assert whole.state.progress.step == 12
    assert [line["step"] for line in lines(tmp_path / "whole") if "loss" in line] == [5, 10, 12]

    parts = toy.Trainer(tmp_path / "parts", recipe)
    parts.validation.evaluate = terminated(parts.validation.evaluate)
    with pytest.raises(Interrupted, match="at step 4 of 40"):
        parts.run()
    resumed = toy.Trainer(tmp_path / "parts", recipe)
    resumed.run()
    toy.assert_same(resumed.everything(), whole.everything())
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")

    again = toy.Trainer(tmp_path / "whole", recipe)
    again.run()
    assert again.restored == again.state.progress.step == 12
    longer = toy.Trainer(tmp_path / "whole", dataclasses.replace(recipe, patience=0))
    longer.run()
    assert longer.state.progress.step == 40


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, 10])
def test_an_interrupted_evaluation_is_repeated_after_the_restart(whole, tmp_path, step):
    first = toy.Trainer(tmp_path, toy.recipe())
    first.loop.evaluators = [first.validation, Interrupting(step)]
    with pytest.raises(Interrupted, match=f"SIGTERM at step {step} of 10; the state is saved"):
        first.run()
    assert first.loop.evaluators[1].finished == [at for at in (4, 8) if at < step]
    assert not any("eval_loss" in line for line in read_metrics(tmp_path) if line["step"] == step)
    second = toy.Trainer(tmp_path, toy.recipe())
    assert second.restored == step
    assert second.run() == whole.results
    toy.assert_same(second.everything(), whole.everything())
    assert lines(tmp_path) == lines(whole.directory)
    assert os.listdir(tmp_path / "checkpoints" / "best") == os.listdir(f"{whole.directory}/checkpoints/best")


class Killed(BaseException):
    """Ends a run as SIGKILL does: nothing is cleaned up."""


@pytest.fixture(scope="module")
def improving(tmp_path_factory):
    """An uninterrupted run whose evaluations after 4 and 8 steps are the best so far; it ends after step 16."""
    directory = tmp_path_factory.mktemp("improving")
    trainer = improving_trainer(directory)
    trainer.run()
    assert trainer.state.progress.step == 16
    return trainer


def improving_trainer(directory):
    trainer = toy.Trainer(directory, toy.recipe(total_steps=40, patience=2), background=False)
    trainer.loop.evaluators = [Improving()]
    return trainer


class Improving:
    def intervals(self):
        return [4]

    def __call__(self, step, last):
        yield {"eval_loss": 1.0, "eval_accuracy": min(step / 16, 0.5)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "call"),
    selection.cases([(4, 3), *((8, call) for call in range(6))], [(4, 3), (8, 1)], selection.EXHAUSTIVE),
)
def test_kill_while_saving_keeps_the_best_checkpoint(improving, tmp_path, monkeypatch, step, call):
    """Killed at each call of the six that write the best and the newest checkpoint: the best checkpoint was lost."""
    trainer, calls = improving_trainer(tmp_path), []

    def counted(function):
        def count(*arguments):
            if trainer.state.progress.step == step:
                calls.append(function)
                if len(calls) > call:
                    raise Killed
            return function(*arguments)

        return count

    with monkeypatch.context() as patch:
        for of, name in ((checkpoints, "write"), (checkpoints, "write_manifest"), (CheckpointStore, "_keep_newest")):
            patch.setattr(of, name, counted(getattr(of, name)))
        with pytest.raises(Killed):
            trainer.run()
    resumed = improving_trainer(tmp_path)
    assert resumed.restored == (step if call > 1 else {4: 3, 8: 6}[step])
    resumed.run()
    toy.assert_same(resumed.everything(), improving.everything())
    assert lines(tmp_path) == lines(improving.directory)
    for folder in ("checkpoints", "checkpoints/best"):
        assert checkpoints.saved_steps(tmp_path / folder) == checkpoints.saved_steps(f"{improving.directory}/{folder}")


class Interrupting:
    """An evaluation during which SIGTERM comes, at one step."""

    def __init__(self, step):
        self.step, self.finished = step, []

    def intervals(self):
        return [4]

    def __call__(self, step, last):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)
        self.finished.append(step)
        return []


@pytest.mark.slow
def test_a_signal_during_the_save_ends_the_run_before_the_next_step(tmp_path):
    trainer = toy.Trainer(tmp_path, toy.recipe())
    trainer.store.save = terminated(trainer.store.save)
    with pytest.raises(Interrupted, match="at step 3 of 10"):
        trainer.run()
    assert toy.Trainer(tmp_path, toy.recipe()).restored == 3


@pytest.mark.slow
def test_without_intervals_evaluation_and_checkpoint_follow_the_last_step(tmp_path):
    trainer = toy.Trainer(tmp_path, toy.recipe(total_steps=5, log_every=0, eval_every=0, checkpoint_every=0))
    trainer.run()
    assert [(line["step"], "loss" in line) for line in lines(tmp_path)] == [(5, True), (5, False)]
    assert {name.split(".")[0] for name in os.listdir(tmp_path / "checkpoints")} == {"best", "ckpt-5"}


def terminated(call):
    """A function that receives SIGTERM and then does what `call` does."""

    def terminate(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return call(*arguments)

    return terminate


def test_signal_before_the_end_of_the_first_step_saves_nothing(tmp_path, monkeypatch):
    trainer = toy.Trainer(tmp_path, toy.recipe())
    monkeypatch.setattr(trainer.loop, "run_steps", terminated(trainer.loop.run_steps))
    with pytest.raises(signals.Stopped, match="SIGTERM. Nothing is lost") as caught:
        trainer.run()
    assert caught.value.exit_code == 75 and not (tmp_path / "checkpoints").exists()
