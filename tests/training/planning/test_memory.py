"""Memory of a training step: the estimate beside measurements, the machine's memory, and the advice."""

import json
import math
import os
import re
import types

import pytest

from benchmarks import step_memory
from keras_vit import recipe as recipes
from keras_vit.training.planning import memory, plan

GB = 1e9


def backend(device="cpu", replicas=1, workers=1, weight_parts=1):
    return types.SimpleNamespace(device=device, num_replicas=replicas, num_workers=workers, weight_parts=weight_parts)


def recipe(variant="ViT-S/16", batch_size=64, adapt="all", **optim):
    return recipes.Recipe(
        adapt=adapt,
        model=recipes.Model(variant, 224),
        data=recipes.Data(batch_size=batch_size),
        optim=recipes.Optim(**{"name": "adamw", **optim}),
    )


@pytest.mark.parametrize("name", list(step_memory.RECIPES))
def test_the_estimate_is_within_20_percent_of_the_measured_peak(name):
    with open(step_memory.FILE, encoding="utf-8") as file:
        measured = json.load(file)[name]
    assert plan.of_recipe(step_memory.RECIPES[name], step_memory.CLASSES).total_bytes() == pytest.approx(
        measured, rel=0.2
    )


def test_the_estimate_adds_weights_and_activations():
    whole, parts = plan.of_recipe(recipe(), 10), plan.of_recipe(recipe(accumulation_steps=4), 10)
    assert parts.peak_bytes == pytest.approx(whole.peak_bytes / 4)
    weights = 21_669_514  # ViT-S/16 with ten classes, published parameters without the head of 1,000
    assert whole.weights_bytes == 16 * weights  # weight, gradient, two moments
    assert parts.weights_bytes == 20 * weights  # and the sum of the gradients
    assert plan.of_recipe(recipe(), 10, devices=4).peak_bytes == pytest.approx(whole.peak_bytes / 4)


def test_the_logits_of_each_pixel_count():
    small, large = (
        plan.of_recipe(recipes.replace(recipe(batch_size=4), {"task": "segmentation"}), n) for n in (1, 151)
    )
    logits_and_gradients = 4 * 2 * 224**2 * 150 * 4  # images, both, pixels, classes more, bytes
    assert large.activations_bytes - small.activations_bytes == pytest.approx(logits_and_gradients, rel=0.01)


@pytest.fixture
def machine(monkeypatch):
    """Set total and free memory of the machine, in GB; return the warnings."""
    warnings: list[str] = []
    monkeypatch.setattr(memory.logging, "warning", lambda text, *values: warnings.append(text % values))

    def set_to(total, free):
        monkeypatch.setattr(memory, "machine_memory", lambda: (total * GB, free * GB))
        return warnings

    return set_to


def advised(warning):
    """The changes that a warning names, as a list of (field, value)."""
    return re.findall(r"--config\.([\w.]+)=(\w+)", warning.partition("These settings fit, with the same result: ")[2])


def test_no_warning_if_a_step_fits(machine):
    warnings = machine(16, 12)
    memory.check(recipe(), backend(), 10, 3)
    assert not warnings


def test_the_advice_fits_and_a_smaller_change_does_not(machine):
    (warnings, free) = (machine(8, 3), 3 * GB)
    memory.check(recipe(), backend(), 10, 3)
    (warning,) = warnings
    assert "but 3.0 GB are free" in warning
    assert advised(warning) == [("optim.accumulation_steps", "4")]
    assert plan.of_recipe(recipe(accumulation_steps=4), 10).total_bytes() <= free
    assert plan.of_recipe(recipe(accumulation_steps=2), 10).total_bytes() > free


def test_two_changes_are_suggested_if_one_is_not_enough(machine):
    warnings = machine(8, 3.3)
    given = recipe("ViT-B/16", batch_size=2)
    given.model.image_size, given.model.attention_chunk_size = 896, 10_000
    memory.check(given, backend(), 10, 3)
    assert advised(warnings[0]) == [("model.remat", "blocks"), ("optim.accumulation_steps", "2")]


def test_parts_of_a_batch_divide_among_the_devices():
    """A batch of 12 on two devices has 1, 2, 3 or 6 parts."""
    count = lambda changed: 10 - changed.optim.accumulation_steps  # noqa: E731
    assert "accumulation_steps=6 (0.0 GB)" in memory._advice(recipe(batch_size=12), count, 6, 2)


def test_a_resnet_is_not_rematerialized(machine):
    warnings = machine(8, 0.3)
    memory.check(recipe("BiT-R50x1", batch_size=4), backend(), 10, 3)
    assert "Not even one image at a time fits" in warnings[0] and "remat" not in warnings[0]


@pytest.mark.slow
def test_one_image_at_a_time_is_the_last_change(machine):
    needed = plan.of_recipe(recipes.replace(recipe(accumulation_steps=64), {"model.remat": "blocks"}), 10).total_bytes()
    for free, words in ((needed, "accumulation_steps=64"), (needed - 1e3, "Not even one image at a time fits")):
        warnings = machine(8, (free + 1) / GB)
        memory.check(recipe(), backend(), 10, 3)
        assert words in warnings[-1]


@pytest.mark.parametrize("fits", [True, False])
def test_graph_of_the_program_uses_no_gpu_memory(fits, machine, monkeypatch):
    warnings, planned = machine(8, 0), plan.of_recipe(recipe(), 10, devices=2)
    needed = planned.weights_bytes + planned.peak_bytes
    monkeypatch.setattr(memory, "gpu_memory", lambda: needed - (not fits))
    memory.check(recipe(), backend("gpu", replicas=2), 10, 3)
    assert [f"but a device has {needed / GB:.1f} GB" in warning for warning in warnings] == [True] * (not fits)


def test_weights_that_exceed_the_machine_are_refused(machine):
    machine(8, 8)
    with pytest.raises(ValueError, match=r"ViT-H/14 take 10\.\d GB, more than the 8\.0 GB"):
        memory.check(recipe("ViT-H/14"), backend(), 10, 3)
    memory.check(recipe("ViT-H/14", batch_size=8), backend(replicas=8, workers=8, weight_parts=8), 10, 3)  # sharded


def test_virtual_cpu_devices_share_the_memory(machine):
    warnings = machine(16, 3)
    memory.check(recipe(batch_size=8), backend(), 10, 3)
    assert not warnings
    memory.check(recipe(batch_size=8), backend(replicas=8), 10, 3)  # eight copies of the weights
    assert len(warnings) == 1
    memory.check(recipe(batch_size=8), backend(replicas=8, workers=8), 10, 3)
    assert len(warnings) == 1


def test_tpus_are_not_checked(machine):
    warnings = machine(1, 0.1)
    memory.check(recipe("ViT-H/14"), backend("tpu"), 10, 3)
    assert not warnings


@pytest.mark.slow
def test_frozen_weights_have_no_gradients_and_slots(machine):
    """A recipe with frozen weights was not checked at all."""
    weights, head = 21_669_514, 384 * 10 + 10
    probe = plan.of_recipe(recipe(adapt="head"), 10)
    assert probe.weights_bytes == 4 * weights + 12 * head
    assert probe.peak_bytes < 0.001 * plan.of_recipe(recipe(), 10).peak_bytes
    first = plan.of_recipe(recipe(adapt="weights('^(?!embedding|cls|posembed)')"), 10)
    assert first.peak_bytes > 0.95 * plan.of_recipe(recipe(), 10).peak_bytes
    factors = 2 * 12 * 8 * (384 + 384)  # of queries and values of 12 blocks at rank 8
    lora = plan.of_recipe(recipe(adapt="lora"), 10)
    assert lora.weights_bytes == 4 * (weights + factors) + 12 * (factors + head)
    warnings = machine(8, 3)
    memory.check(recipe(adapt="head"), backend(), 10, 3)
    assert not warnings
    with pytest.raises(ValueError, match=r"ViT-H/14 take 2\.5 GB"):
        machine(2, 2)
        memory.check(recipe("ViT-H/14", adapt="head"), backend(), 10, 3)


def test_gpu_memory_is_the_memory_of_the_smallest_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert memory.gpu_memory() == math.inf
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 81559\necho 16384\n")
    os.chmod(tmp_path / "nvidia-smi", 0o755)
    assert memory.gpu_memory() == 2**34


def test_a_container_has_less_memory_than_its_machine(tmp_path, monkeypatch):
    files = {"memory.max": "4000", "memory.current": "3000", "memory.stat": "anon 100\ninactive_file 500\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "free").mkdir()
    (tmp_path / "free" / "memory.max").write_text("max\n")
    folders = [str(tmp_path / "free"), str(tmp_path), str(tmp_path / "absent")]
    monkeypatch.setattr(memory, "_control_groups", lambda: iter(folders))
    assert memory.machine_memory() == (4000, 1500)


def test_memory_is_read_from_proc_and_cgroup_files(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal:       16 kB\nMemAvailable:    8 kB\nHugePages_Total:   0\n")
    expected = {"MemTotal": 16.0, "MemAvailable": 8.0, "HugePages_Total": 0.0}
    assert memory._entries(str(tmp_path / "meminfo")) == expected and memory._entries(str(tmp_path / "absent")) == {}
    monkeypatch.setattr(memory, "_text", {"/proc/self/cgroup": "1:name=systemd:/x\n0::/pods/a\n"}.get)
    assert list(memory._control_groups()) == [f"/sys/fs/cgroup{path}" for path in ("", "/pods", "/pods/a")]


def test_memory_of_this_machine_is_found(monkeypatch):
    total, free = memory.machine_memory()
    assert 0 < free <= total
    monkeypatch.setattr(memory, "_control_groups", lambda: iter(()))
    monkeypatch.setattr(memory, "_entries", lambda path: {"MemAvailable": 2048.0})
    assert memory.machine_memory()[1] == 2**21  # /proc/meminfo is in KiB
