"""Sweeps: started runs, kept results and the table. All tests except one replace the training program."""

import math
import os
import pathlib
import signal
import sys
import threading
import time

import pytest

from keras_vit import recipe
from keras_vit.runs import errors, recipe_file
from keras_vit.runs.run_directory import read_metrics
from keras_vit.util import locks
from keras_vit.util.metrics import Metric
from tests import forked, programs, tiny
from train import experiments
from train.experiments import sweeps
from train.experiments.runs import metric_of
from train.experiments.table import Row, Table, _cell, _short

optuna = pytest.importorskip("optuna")

FAKE = [sys.executable, str(pathlib.Path(__file__).with_name("fake_run.py"))]
RATE, SEED = "optim.learning_rate", "seed"
RATES = {RATE: [0.1, 0.3], SEED: [0, 1]}
NAMES = [f"{RATE}={rate},seed={seed}" for rate in (0.1, 0.3) for seed in (0, 1)]


def sweep(workdir, space=RATES, base=None, **options):
    return experiments.sweep(base or recipe.Recipe(total_steps=2), space, str(workdir), command=FAKE, **options)


def starts(workdir):
    """When each run was started, in nanoseconds."""
    return {path.parent.name: list(map(int, path.read_text().split())) for path in workdir.glob("runs/*/starts")}


def counts(workdir):
    return {name: len(times) for name, times in starts(workdir).items()}


def states(table):
    return {name: state for row in table.rows for name, state in row.runs.items()}


def study(workdir):
    journal = optuna.storages.journal
    storage = journal.JournalStorage(journal.JournalFileBackend(str(workdir / "study.journal")))
    return optuna.load_study(study_name="sweep", storage=storage)


def trials(workdir):
    return study(workdir).trials


def wait_for(workdir, pattern, number=1):
    deadline = time.monotonic() + 50
    while len(list(workdir.glob(pattern))) < number and time.monotonic() < deadline:
        time.sleep(0.01)


def stop_once_running(workdir, number):
    def stop():
        wait_for(workdir, "runs/*/ready", number)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()


class TestGrid:
    @pytest.mark.slow
    def test_every_combination_is_trained_once_and_in_order(self, tmp_path):
        table = sweep(tmp_path)
        assert counts(tmp_path) == dict.fromkeys(NAMES, 1)
        assert sorted(NAMES, key=starts(tmp_path).get) == NAMES
        assert sweep(tmp_path) == table
        assert counts(tmp_path) == dict.fromkeys(NAMES, 1)
        assert [row.settings for row in table.rows] == [{RATE: 0.3}, {RATE: 0.1}]  # the best first
        assert table.rows[1].values("eval_accuracy") == [0.1, 0.11]
        text = (tmp_path / "table.md").read_text()
        assert "| 2 finished | 0.3 | 30.50% ± 0.71% | 1 ± 0 nats |" in text  # of the sample: two values, 0.01 apart
        assert table.markdown() == text

    def test_each_run_has_its_recipe(self, tmp_path):
        base = recipe.Recipe(total_steps=3, data=recipe.Data(source="folder:a 'b'\\c"))
        settings = {RATE: 0.3, "optim.schedule.boundaries": (1, 2)}
        sweep(tmp_path, {field: [value] for field, value in settings.items()}, base)
        (path,) = tmp_path.glob("runs/*/recipe.py")
        assert recipe_file.load(str(path))[0] == recipe.replace(base, settings)

    @pytest.mark.slow
    def test_a_larger_grid_adds_only_the_missing_runs(self, tmp_path):
        sweep(tmp_path)
        table = sweep(tmp_path, {RATE: [0.2], SEED: [0, 1, 2]})
        assert set(counts(tmp_path).values()) == {1}
        assert [(row.settings[RATE], len(row.runs)) for row in table.rows] == [(0.3, 2), (0.2, 3), (0.1, 2)]

    @pytest.mark.parametrize(
        ("choices", "kind", "log"),
        [
            *(((0.1, 1.0), "Float", True), ((0.1, 0.99), "Float", False), ((0.0, 1.0), "Float", False)),
            *(((1, 10), "Int", True), ((1, 9), "Int", False), ((1, 10.0), "Float", True), ((-1, 1), "Int", False)),
        ],
    )
    def test_ranges_of_a_factor_of_ten_are_logarithmic(self, choices, kind, log):
        found = sweeps._distribution(choices)
        assert (type(found).__name__, found.log, (found.low, found.high)) == (f"{kind}Distribution", log, choices)
        assert sweeps._distribution(found) is found

    def test_another_field_adds_a_column(self, tmp_path):
        sweep(tmp_path, {RATE: [0.1]}, prune=False)
        table = sweep(tmp_path, {RATE: [0.1], "optim.weight_decay": [0.5]})
        assert [row.settings["optim.weight_decay"] for row in table.rows] == [0.0, 0.5]

    @pytest.mark.slow
    def test_another_recipe_or_metric_is_refused(self, tmp_path):
        sweep(tmp_path)
        with pytest.raises(ValueError, match="total_steps: 2 -> 9"):
            sweep(tmp_path, base=recipe.Recipe(total_steps=9))
        with pytest.raises(ValueError, match="--metric: .eval_accuracy. -> .eval_loss."):
            sweep(tmp_path, metric="eval_loss")
        sweep(tmp_path, base=recipe.Recipe(total_steps=2, log_every=1, seed=5))  # without effect: the seed is swept
        assert set(counts(tmp_path).values()) == {1}


class TestOutcomes:
    @pytest.mark.slow
    def test_results_are_of_the_best_weights_and_only_the_best_setting_is_tested(self, tmp_path):
        best, other = sweep(tmp_path, {RATE: [0.6, 0.7]}).rows
        assert best.results == [
            {"eval_accuracy": 0.7 + 0.1, "eval_loss": 1.0, "test_accuracy": 1 - 0.7, "test_loss": 1.0}
        ]
        assert other.results == [{"eval_accuracy": 0.6 + 0.1, "eval_loss": 1.0}]

    @pytest.mark.parametrize(
        ("prune", "value", "step", "count", "is_pruned"),
        [
            *((True, 0.47, 5, 4, True), (True, 0.1, 4, 4, False), (True, 0.1, 5, 3, False)),
            *((True, 0.48, 5, 4, False), (False, 0.1, 5, 4, False)),
        ],
    )
    def test_a_run_in_the_worst_quarter_is_pruned_after_half_of_the_steps(
        self, prune, value, step, count, is_pruned, tmp_path
    ):
        """At least four other runs are needed."""
        study = sweeps._open_study(
            str(tmp_path), recipe.Recipe(total_steps=10), set(), metric_of(recipe.Classification.metrics, ()), prune
        )
        for other in (0.4, 0.5, 0.6, 0.7)[:count]:
            trial = study.ask()
            trial.report(other, step)
            study.tell(trial, other)
        trial = study.ask()
        trial.report(value, step)
        assert trial.should_prune() == is_pruned

    @pytest.mark.parametrize(("earlier", "started"), [(0, False), (1, True)])
    def test_a_failure_of_another_process_is_not_repeated(self, earlier, started, tmp_path, monkeypatch):
        """Only a run that had failed before this call is tried again."""
        base = recipe.Recipe(total_steps=2)
        study = sweeps._open_study(str(tmp_path), base, {SEED}, metric_of(base.task.metrics, ()), True)
        trial = study.ask()
        for name, value in (("settings", {SEED: 1}), ("run", "a"), ("outcome", "failed: exit code 1")):
            trial.set_user_attr(name, value)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        calls = []
        monkeypatch.setattr(sweeps._Sweep, "_train", lambda *_: calls.append(1) or "")
        sweeps._Sweep(str(tmp_path), base, metric_of(base.task.metrics, ()), {}, FAKE, study, earlier, None).train(
            "a", {SEED: 1}
        )
        assert bool(calls) == started

    @pytest.mark.slow
    @pytest.mark.parametrize("parallel", [1, 2])
    def test_a_failed_run_does_not_stop_the_others_and_is_tried_again(self, tmp_path, parallel):
        grid = {RATE: [1.0, 0.1]}
        table = sweep(tmp_path, grid, parallel=parallel)
        state = states(table)[f"{RATE}=1.0"]
        assert state.startswith("failed: exit code 1, The loss is nan in step 1. (")
        assert f"- {RATE}=1.0 failed: exit code 1" in (tmp_path / "table.md").read_text()
        assert table.rows[0].settings == {RATE: 0.1}
        (tmp_path / "runs" / f"{RATE}=1.0" / "repaired").touch()
        assert set(states(sweep(tmp_path, grid)).values()) == {"finished"}
        assert counts(tmp_path) == {f"{RATE}=1.0": 2, f"{RATE}=0.1": 1}

    def test_diverged_run_is_not_repeated(self, tmp_path):
        for _ in range(2):
            table = sweep(tmp_path, {RATE: [2.0, 0.1]})
            assert states(table)[f"{RATE}=2.0"].startswith("diverged: exit code 70, The loss is nan")
        assert set(counts(tmp_path).values()) == {1}
        assert [trial.state.name for trial in trials(tmp_path)] == ["PRUNED", "COMPLETE"]

    @pytest.mark.slow
    def test_clearly_worse_run_is_pruned(self, tmp_path):
        grid = {RATE: [0.1, 0.2, 0.3, 0.4, 0.0001]}
        for _ in range(2):
            table = sweep(tmp_path, grid)
            assert list(states(table).values()) == ["finished"] * 4 + ["pruned"]
            assert table.rows[-1].settings == {RATE: 0.0001}
        assert set(counts(tmp_path).values()) == {1}
        assert (tmp_path / "runs" / f"{RATE}=0.0001" / "stopped").exists()  # by SIGTERM, after saving
        assert trials(tmp_path)[-1].intermediate_values == {1: pytest.approx(0.05001)}
        assert "| optim.learning_rate=0.0001, pruned |" in table.markdown()

    def test_a_metric_that_is_missing_is_reported(self, tmp_path):
        table = sweep(tmp_path, {RATE: [0.1]}, metric="knn/k20")
        assert states(table)[f"{RATE}=0.1"] == "failed: it has no knn/k20, but eval_accuracy, eval_loss"

    @pytest.mark.parametrize("name", ["eval_loss", "eval_accuracy"])
    def test_nan_is_never_the_best_result(self, name):
        metric = metric_of(recipe.Classification.metrics, (), name)
        rows = [Row({}, {"a": "finished"}, [{name: value}]) for value in (math.nan, 0.5, math.inf)]
        assert [row.goodness(metric) > -math.inf for row in rows] == [False, True, False]
        half = Row({}, {"a": "finished", "b": "pruned"}, [{name: 0.9}])
        assert half.goodness(metric) == -math.inf


class TestResume:
    @pytest.mark.slow
    def test_sigterm_makes_all_runs_save(self, tmp_path):
        grid = {RATE: [0.5], SEED: [0, 1, 2]}
        stop_once_running(tmp_path, 2)
        with pytest.raises(errors.Interrupted):
            sweep(tmp_path, grid, parallel=2)
        assert "| 2 not finished | 0.5 |" in (tmp_path / "table.md").read_text()
        (tmp_path / "runs" / f"{RATE}=0.5,seed=2").mkdir(exist_ok=True)
        (tmp_path / "runs" / f"{RATE}=0.5,seed=2" / "stopped").touch()
        assert list(states(sweep(tmp_path, grid)).values()) == ["finished"] * 3
        assert sorted(counts(tmp_path).values()) == [1, 2, 2]

    @pytest.mark.slow
    def test_killed_sweep_is_resumed(self, tmp_path):
        space = {RATE: [0.5]}
        killed = forked.start(sweep, tmp_path, space)
        wait_for(tmp_path, "runs/*/ready")
        killed.kill()
        killed.join()
        os.kill(int((tmp_path / "runs" / f"{RATE}=0.5" / "ready").read_text()), signal.SIGTERM)
        wait_for(tmp_path, "runs/*/stopped")
        assert [trial.state.name for trial in trials(tmp_path)] == ["RUNNING"]
        assert states(sweep(tmp_path, space)) == {f"{RATE}=0.5": "finished"}
        assert [trial.state.name for trial in trials(tmp_path)] == ["FAIL", "COMPLETE"]

    @pytest.mark.slow
    def test_a_finished_run_is_not_trained_again(self, tmp_path):
        """The sweep was killed before it noticed the end."""
        sweep(tmp_path)
        os.remove(tmp_path / "study.journal")
        assert set(states(sweep(tmp_path)).values()) == {"finished"}
        assert counts(tmp_path) == dict.fromkeys(NAMES, 1)

    def test_runs_in_training_by_another_process_are_skipped(self, tmp_path):
        for folder in ("runs", "locks"):
            with locks.locked(str(tmp_path / folder / f"{RATE}=0.1")):
                assert states(sweep(tmp_path, {RATE: [0.1]})) == {}
        assert set(states(sweep(tmp_path, {RATE: [0.1]})).values()) == {"finished"}

    @pytest.mark.slow
    def test_two_processes_divide_the_runs(self, tmp_path):
        grid = {RATE: [0.1, 0.2, 0.3], SEED: [0, 1, 2]}
        sweeps = [forked.start(sweep, tmp_path, grid) for _ in range(2)]
        for process in sweeps:
            process.join()
        assert [process.exitcode for process in sweeps] == [0, 0]
        assert counts(tmp_path) == {f"{RATE}={rate},seed={seed}": 1 for rate in grid[RATE] for seed in grid[SEED]}
        assert {trial.state.name for trial in trials(tmp_path)} == {"COMPLETE"} and len(trials(tmp_path)) == 9


class TestSearch:
    SPACE = {
        RATE: (0.01, 0.4),
        "optim.weight_decay": (0.0, 0.1),
        "data.batch_size": (2, 8),
        "optim.name": ["adamw", "sgd"],
    }

    @pytest.mark.slow
    def test_settings_are_chosen_from_ranges_and_values(self, tmp_path):
        table = sweep(tmp_path, self.SPACE, trials=5)
        assert list(counts(tmp_path)) and set(states(table)) == {f"00{number}" for number in range(5)}
        for row in table.rows:
            settings = row.settings
            assert 0.01 <= settings[RATE] <= 0.4 and 0 <= settings["optim.weight_decay"] <= 0.1
            assert settings["data.batch_size"] in range(2, 9) and isinstance(settings["data.batch_size"], int)
            assert settings["optim.name"] in ("adamw", "sgd")
        rate, decay, *_ = trials(tmp_path)[0].distributions.values()
        assert rate.log and not decay.log
        values = [row.values("eval_accuracy")[0] for row in table.rows]
        assert values == sorted(values, reverse=True) == sorted((t.value for t in trials(tmp_path)), reverse=True)

    @pytest.mark.slow
    def test_more_trials_are_added(self, tmp_path):
        before = sweep(tmp_path, self.SPACE, trials=2)
        after = sweep(tmp_path, self.SPACE, trials=3)
        assert len(after.rows) == 3 and all(row in after.rows for row in before.rows)
        assert set(counts(tmp_path).values()) == {1}

    @pytest.mark.slow
    def test_a_stopped_trial_keeps_its_setting(self, tmp_path):
        space = {RATE: [0.5], "optim.weight_decay": (0.0, 0.1)}
        stop_once_running(tmp_path, 1)
        with pytest.raises(errors.Interrupted):
            sweep(tmp_path, space, trials=1)
        sweep(tmp_path, space, trials=1)
        first, second = trials(tmp_path)
        assert first.params == second.params and (first.state.name, second.state.name) == ("FAIL", "COMPLETE")

    @pytest.mark.parametrize(("metric", "direction"), [("eval_loss", "MINIMIZE"), ("eval_accuracy", "MAXIMIZE")])
    def test_best_setting_follows_the_direction_of_the_metric(self, tmp_path, metric, direction):
        sweep(tmp_path, {RATE: [0.1]}, metric=metric)
        assert study(tmp_path).direction.name == direction

    @pytest.mark.parametrize(
        ("space", "named"),
        [
            ({"optim.learning_rat": (1, 2)}, "learning_rate"),
            ({"optim": [1]}, "learning_rate"),
            ([{SEED: [1]}], "several"),
        ],
    )
    def test_wrong_search_spaces_are_refused(self, tmp_path, space, named):
        with pytest.raises(ValueError, match=named):
            sweep(tmp_path, space, trials=2)
        assert not list(tmp_path.iterdir())


def test_missing_optuna_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"\[sweep\]"):
        sweep(tmp_path)


@pytest.mark.parametrize(
    ("name", "larger", "text"),
    [("", True, "50.00%"), ("eval_loss", False, "0.5 nats"), ("x/ece", False, "0.5"), ("knn/k20", True, "50.00%")],
)
def test_metric_is_found_by_name_with_direction_and_unit(name, larger, text):
    metric = metric_of(recipe.Classification.metrics, ("classification(name='x')", "knn"), name)
    assert (metric.name, metric.larger_is_better, metric.text(0.5)) == (name or "eval_accuracy", larger, text)


def test_table_cells_show_mean_and_standard_deviation():
    nats = Metric("loss", unit="nats")
    assert _cell([1.0, 1.1234], nats) == "1.062 ± 0.087 nats"
    assert _cell([0.5, 0.6], Metric("accuracy", unit="%")) == "55.00% ± 7.07%"
    assert (_cell([1.23456], nats), _cell([], nats)) == ("1.235 nats", "–")


def test_long_values_are_cut():
    assert [_short(text) for text in ("a" * 40, "a" * 41)] == ["a" * 40, "a" * 39 + "…"]
    assert _short({"a": (1, None)}) == '{"a": [1, null]}'


def test_table_can_be_transposed():
    rows = [Row({RATE: rate, "model.weights": "/a/b.npz"}, {str(rate): "finished"}) for rate in (1, 2)]
    lines = Table(rows, [Metric("accuracy")]).markdown(across=True).splitlines()
    assert lines[0] == "| runs | 1 | 2 |"
    assert lines[2:] == [f"| {RATE} | 1 | 2 |", "| model.weights | b.npz | b.npz |", "| accuracy | – | – |"]


class TestProgram:
    def test_wrong_flags_are_refused(self, tmp_path):
        place = f"--workdir={tmp_path}"
        for arguments, named in [
            (["--grid=seed=1"], "--workdir"),
            ([place], "--grid"),
            ([place, "--grid=seed=1", "--seeds=2"], "--seeds"),
            ([place, "--range=optim.ema_momentum=0,0.9", "--trials=3", "--seeds=2"], "--seeds"),
            ([place, "--range=optim.ema_momentum=0,0.9"], "--trials"),
            ([place, "--grid=data.batch_size=8,16", "--epochs=5"], "--epochs"),
            ([place, "--range=optim.ema_momentum=0.9,0", "--trials=2"], "low"),
            ([place, "--range=optim.ema_momentum=0,0.5,0.9", "--trials=2"], "LOW,HIGH"),
        ]:
            with pytest.raises(ValueError, match=named):
                programs.call("train.sweep", "--config=digits", *arguments)
        assert not list(tmp_path.iterdir())

    def test_list_flag_trains_nothing(self, tmp_path, capsys):
        arguments = ["--config=digits", f"--workdir={tmp_path}", "--grid=optim.ema_momentum=0,0.9"]
        arguments += ["--seeds=2", "--list"]
        assert programs.call("train.sweep", *arguments, override=["seed=5"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines == [f"optim.ema_momentum={ema},seed={seed}" for ema in (0.0, 0.9) for seed in (5, 6)]
        assert not list(tmp_path.iterdir())

    def test_settings_that_are_ranked_by_the_test_images_are_a_warning(self, tmp_path, caplog):
        arguments = ["--config=digits", f"--workdir={tmp_path}", "--grid=seed=1", "--list"]
        for split, is_warned in (("None", False), ("test", True)):
            programs.call("train.sweep", *arguments, override=[f"data.test_split={split}"])
            assert is_warned == ("--config.data.eval_split='validation(train)'" in caplog.text)

    @pytest.mark.slow
    def test_sweep_of_digits_trains_and_prints_the_table(self, tmp_path, capsys):
        fields = {"total_steps": 3, "log_every": 1, "data.eval_split": "test[:40]", "data.batch_size": 8}
        fields |= {f"model.arguments.{name}": value for name, value in tiny.ARGUMENTS.items()}
        overrides = [f"{field}={value}" for field, value in fields.items()]
        arguments = ["--config=digits", "--grid=optim.learning_rate=1e-3", f"--workdir={tmp_path}"]
        arguments += ["--", "--distribute=one_device"]
        assert programs.call("train.sweep", *arguments, override=overrides) == 0
        run = tmp_path / "runs" / "optim.learning_rate=0.001"
        output = capsys.readouterr().out
        assert "| optim.learning_rate=0.001 | 0.001 |" in output and f"--config={run}/recipe.py" in output
        assert (run / "model.keras").exists()
        assert [line["step"] for line in read_metrics(str(run))] == [1, 2, 3, 3]
