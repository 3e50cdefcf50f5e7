"""Planning for accelerators: their names, the roofline, the search, remedies.

The tests that compile are in test_gpu_compile.py and test_tpu_compile.py.
"""

import dataclasses
import json
import math
import re
import types

import pytest

from keras_vit import cli
from keras_vit import recipe as recipes
from tests import programs
from tools.compile_plan import compiler, step_plan, targets
from tools.compile_plan.compiler import Compiled, DoesNotFit
from tools.compile_plan.step_plan import Planner, Setting
from tools.compile_plan.step_report import Report

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "devices", "topology"),
    [
        # Up to v3 a name counts TensorCores, and a program sees each. v4 and v5p names count them too, but a program
        # sees chips. v5e and v6e names count chips, which have one TensorCore.
        ("v3-8", 8, "v3:2x2"),
        ("v3-32", 32, "v3:4x4"),
        ("v4-8", 4, "v4:2x2x1"),
        ("v4-32", 16, "v4:2x2x4"),
        ("v4-128", 64, "v4:4x4x4"),
        ("v5p-16", 8, "v5p:2x2x2"),
        ("v5e-1", 1, "v5e:1x1"),
        ("v5litepod-8", 8, "v5e:2x4"),
        ("v5e-256", 256, "v5e:16x16"),
        ("v6e-8", 8, "v6e:2x4"),
    ],
)
def test_tpu_slices_are_found_by_name(name, devices, topology):
    target = targets.parse(name)
    assert (target.devices, targets.topology(target)) == (devices, topology)
    assert math.prod(targets.shape(target.chips, target.chip.dimensions)) == target.chips


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a101", "v3, v4.*a100"),
        ("h100:9", "up to 8"),
        ("h100:", "v3, v4"),
        ("v9-8", "v3, v4"),
        ("v3-7", "TensorCores.* v3-8"),
        ("v3-9", "TensorCores.* v3-8"),
        ("v4-4", "v4-8"),
        ("v5e-12", "chips.* v5e-4"),
    ],
)
def test_unknown_targets_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        targets.parse(name)


def test_gpus_are_found_by_name():
    one, eight = targets.parse("h100"), targets.parse("h100:8")
    assert [(target.devices, targets.topology(target)) for target in (one, eight)] == [(1, "1x1x1"), (8, "1x1x8")]
    assert one.peak_flops == eight.peak_flops == 989e12  # per device
    for name in targets.GPUS:
        gpu = targets.GPUS[name]
        configuration = targets.configuration(gpu)
        # 64 or 128 fused multiply-adds per multiprocessor and clock make the published float32 rate.
        lanes = int(re.search(r"fpus_per_core: (\d+)", configuration)[1])
        published = {"a100": 19.5, "a100-40g": 19.5, "l4": 30.3, "l40s": 91.6, "rtx4090": 82.6, "h100": 67, "h200": 67}
        assert 2e-3 * gpu.processors * gpu.clock * lanes == pytest.approx(published[name], rel=0.015)
        assert f"major: {gpu.capability[0]} minor: {gpu.capability[1]}" in configuration
        assert gpu.title in configuration


def test_several_tpu_slices_add_their_devices():
    target = targets.parse("v5e-256", slices=2)
    assert (target.devices, targets.topology(target), target.name) == (512, "v5e:16x16", "2 slices of v5e-256")
    for name in ("v3-8", "h100:8"):
        with pytest.raises(ValueError, match=f"--slices=2 .*v5e, v5p, v6e.*{name}"):
            targets.parse(name, slices=2)
    recipe = recipes.Recipe(data=recipes.Data(batch_size=512))
    with pytest.raises(ValueError, match="--slices=2 .*KERAS_BACKEND=jax"):
        step_plan.of_recipe(recipe, 10, types.SimpleNamespace(target=target, capacity=lambda: GIB))


def compiled(memory=GIB, flops=1e12, accessed=1e9, **sent):
    return Compiled(flops, accessed, memory // 2, 64, 64, memory - memory // 2, 0, {}, **sent)


def estimate(result, target="v5e-8", slices=1):
    return step_plan.Estimate(Setting(64), targets.parse(target, slices), result, 8 * GIB)


def test_step_time_is_the_bound_of_the_roofline():
    # 197 TFLOP/s and 819 GB/s a chip; two cores share those of a v3 chip, 123 TFLOP/s and 900 GB/s.
    bound = estimate(compiled(flops=197e12, accessed=81.9e9))
    assert bound.seconds["compute"] == pytest.approx(1)
    assert bound.seconds["memory bandwidth"] == pytest.approx(0.1)
    assert (bound.limit, bound.step_seconds) == ("compute", pytest.approx(1))
    assert bound.images_per_second == pytest.approx(64)
    core = estimate(compiled(flops=61.5e12, accessed=900e9), "v3-8")
    assert core.seconds["compute"] == pytest.approx(1)
    assert (core.limit, core.step_seconds) == ("memory bandwidth", pytest.approx(2))
    # A GPU's cache may hold the values within a step.
    cached = estimate(compiled(GIB, accessed=1e15), "h100")
    assert cached.seconds["memory bandwidth"] == pytest.approx((GIB // 2 + 64) / 3_350e9)
    # A chip sends 200 GB/s within its slice. A slice of 256 chips sends 6.4 Tbit/s to other slices.
    ring = estimate(compiled(sent=300e9))
    assert (ring.limit, ring.step_seconds) == ("interconnect", pytest.approx(1.5))
    two = estimate(compiled(sent=300e9, sent_across=6.25e9), slices=2)
    assert (two.limit, two.step_seconds) == ("network", pytest.approx(2))


def test_programs_within_the_device_memory_fit():
    assert estimate(compiled(8 * GIB)).fits
    assert not estimate(compiled(8 * GIB + 2)).fits
    assert not estimate(DoesNotFit(7 * GIB, 6 * GIB)).fits
    assert estimate(DoesNotFit(9 * GIB, 8 * GIB)).free == -GIB


class Fake:
    """A compiler whose memory is a fixed part plus one part per image of a device and micro-batch."""

    def __init__(self, fixed, each, refuses=True, devices=8):
        self.fixed, self.each, self.refuses, self.devices, self.asked = fixed, each, refuses, devices, []

    def __call__(self, setting):
        self.asked.append(setting)
        images = setting.batch_size // (self.devices * setting.accumulation_steps)
        fixed = self.fixed / setting.fsdp
        memory = int(fixed + images * self.each / (4 if setting.remat else 1))
        if self.refuses and memory > 8 * GIB:
            return DoesNotFit(memory, 8 * GIB)
        slower = setting.accumulation_steps + setting.remat
        return compiled(memory, flops=1e12 * slower)

    def planner(self, **options):
        return Planner(self, targets.parse("v5e-8"), 8 * GIB, **options)


@pytest.mark.parametrize("each", [GIB // 4096, GIB // 100, GIB // 20, 3 * GIB, 7 * GIB])
@pytest.mark.parametrize("start", [8, 512, 80_000])
def test_largest_batch_fits_and_the_next_larger_does_not(each, start):
    fake = Fake(GIB // 2, each)
    found = fake.planner().largest_batch(Setting(start))
    largest = min(7.5 * GIB // each, 4_096)
    images = found.setting.batch_size // 8
    assert found.fits
    assert images <= largest
    assert images >= largest * 31 / 32 - 1
    assert len(fake.asked) <= 12
    assert len(set(fake.asked)) == len(fake.asked)


def test_largest_batch_is_none_if_no_batch_fits():
    fake = Fake(9 * GIB, GIB // 100)
    assert fake.planner().largest_batch(Setting(512)) is None


def test_suggested_changes_fit_in_the_device_memory():
    asked = Setting(512)  # 64 images per device need 16.5 GiB
    fake = Fake(GIB // 2, GIB // 4)
    planner = fake.planner()
    assert not planner.estimate(asked).fits
    found = planner.remedies(asked)
    assert all(remedy.fits and remedy.setting in fake.asked for remedy in found)
    assert [remedy.setting for remedy in found] == [Setting(512, remat=True), Setting(512, accumulation_steps=4)]
    assert found[0].setting.overrides(asked) == ("--config.model.remat=blocks",)
    assert found[1].setting.overrides(asked) == ("--config.optim.accumulation_steps=4",)
    assert Fake(GIB // 2, GIB // 4).planner(rematerializes=False).remedies(asked)[0].setting.remat is False
    # Weights too many for a device: nothing helps but to divide them.
    assert Fake(9 * GIB, GIB // 100).planner().remedies(asked) == []
    # As few devices as are needed share them: a quarter of 9 GiB and 6 GiB of activations exceed 8 GiB, an eighth fits.
    for each, fsdp in ((GIB // 100, 2), (3 * GIB // 32, 8)):
        planner = Fake(9 * GIB, each).planner(rematerializes=False, most_fsdp=8, weights_bytes=9 * GIB)
        (divided, *_) = planner.remedies(asked)
        assert divided.setting.overrides(asked) == (f"--distribute='mesh(fsdp={fsdp})'",)


def test_out_of_memory_errors_of_the_compiler_are_parsed():
    texts = {
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 22.50G of "
        "15.75G hbm. Exceeded hbm capacity by 6.75G.": (22.5, 15.75),
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (8.50T) exceeds "
        "available HBM (15.48G).": (8_704, 15.48),
    }

    def fail(text):
        raise RuntimeError(text)

    outcome = compiler.TpuCompiler.outcome
    for text, (memory, capacity) in texts.items():
        answer = outcome(None, lambda text=text: fail(text))
        assert (answer.memory, answer.capacity) == (int(memory * GIB), int(capacity * GIB))
    with pytest.raises(RuntimeError, match="something else"):
        outcome(None, lambda: fail("something else"))


def test_batch_size_that_the_replicas_cannot_divide_is_refused():
    recipe = recipes.Recipe(data=recipes.Data(batch_size=100))
    with pytest.raises(ValueError, match="data.batch_size .* 8 replicas.*=100.* 96"):
        step_plan.of_recipe(recipe, 10, types.SimpleNamespace(target=targets.parse("v3-8")))


def test_settings_are_converted_to_recipes():
    recipe = recipes.Recipe(model=recipes.Model("BiT-R50x1"))
    assert step_plan.with_setting(recipe, Setting(64)).model.remat is None  # which a BiT ResNet does not have
    assert step_plan.with_setting(recipe, Setting(64, remat=True, accumulation_steps=2)) == recipes.Recipe(
        model=dataclasses.replace(recipe.model, remat="blocks"),
        data=recipes.Data(batch_size=64),
        optim=recipes.Optim(accumulation_steps=2),
    )


@pytest.fixture
def planned(monkeypatch):
    """The program with a fake compiler: 64 images per device need 16.5 GiB."""
    plan = programs.load("tools.compile_plan.__main__")
    recipe = recipes.Recipe(
        model=recipes.Model("ViT-S/16"), data=recipes.Data(source="tfds:imagenet2012", batch_size=512)
    )
    monkeypatch.setattr(cli, "recipe_from_flags", lambda *_, **options: recipe)
    fake = Fake(GIB // 2, GIB // 4)
    monkeypatch.setattr(plan.step_plan, "of_recipe", lambda *arguments: fake.planner())
    monkeypatch.setattr(plan.compiler, "of_target", lambda _: types.SimpleNamespace(versions=lambda: "a compiler"))
    return recipe


def test_the_program_lists_the_changes_that_make_the_step_fit(planned, capsys):
    assert programs.call("tools.compile_plan.__main__", "--target=v5e-8") == 0
    text = capsys.readouterr().out
    for expected in (
        "v5e-8, 8 chips, 8 devices with 16.00 GiB",
        "does NOT fit: needs 16.50 GiB per device, 8.50 GiB too much",
        "--config.model.remat=blocks  (fits with 3.50 GiB free",
        "--config.optim.accumulation_steps=4  (fits with 3.50 GiB free",
        "largest batch    240 (30 per device) without rematerialization",
        "with model.remat=blocks",
    ):
        assert expected in text


def test_program_prints_json(planned, capsys):
    planned.data.batch_size = 64
    programs.call("tools.compile_plan.__main__", "--target=v5e-8", "--json", "--nosearch")
    content = json.loads(capsys.readouterr().out)
    assert content["fits"] is True
    assert content["memory"] == 2.5 * GIB
    assert content["free"] == 5.5 * GIB
    assert max(content["least_seconds"], key=content["least_seconds"].get) == "compute"
    assert content["images_per_second"] == pytest.approx(64 / (1e12 / 197e12))
    assert content["largest_batch"] == {}
    assert content["remedies"] == []


def test_sharded_weights_require_jax(planned):
    with pytest.raises(ValueError, match="--distribute=fsdp needs the JAX backend"):
        programs.call("tools.compile_plan.__main__", "--target=v5e-8", "--distribute=fsdp")


def test_report_states_that_no_batch_fits():
    asked = Setting(512)
    rows = Report(Fake(9 * GIB, 1).planner().estimate(asked), [], {False: None}, "a compiler").rows()
    text = "\n".join(value for _, value in rows)
    assert "KERAS_BACKEND=jax" in text
    assert "none without rematerialization" in text


def test_compiled_program_may_exceed_the_memory():
    rows = Report(Fake(9 * GIB, 1, refuses=False).planner().estimate(Setting(8)), [], {}, "a compiler").rows()
    (memory,) = (value for name, value in rows if name == "memory")
    assert memory == "does NOT fit: needs 9.00 GiB per device, 1.00 GiB too much"


@pytest.mark.parametrize(("name", "extra"), [("v5e-8", "plan"), ("h100", "plan-gpu")])
def test_missing_compiler_names_the_extra(name, extra, monkeypatch):
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(compiler.CompilerMissing, match=rf"{name} .*pip install '.\[cpu,{extra}\]"):
        compiler.of_target(targets.parse(name))
