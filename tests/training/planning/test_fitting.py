"""The rules for own images: the choices, the precedence of the user's settings, and the log."""

import dataclasses
import logging
import math
import re
import shutil
import types

import keras
import numpy as np
import pytest

from keras_vit import recipe as recipes
from keras_vit import zoo
from keras_vit.outputs import of as kind_of
from keras_vit.training.chosen_recipe import Choices, recipe_of, seconds_of
from keras_vit.training.planning import fitting, plan, rules
from tests.data import example_images
from tests.recipe import toy

FACTS = rules.Facts(images=1_600, test_images=400, outputs=3, kind=kind_of("class"), gpus=0, memory=8e9, cores=2)
PRETRAINED = recipes.Recipe(model=recipes.Model("ViT-S/14", weights="dinov2"))


def same(recipe):
    return recipe


@pytest.fixture
def machine(monkeypatch):
    """Lets this machine have GPUs, memory and cores, and lets the few small images of the tests count as many large."""

    def has(gpus=0, memory=8e9, cores=2):
        monkeypatch.setattr(fitting, "machine", lambda: (gpus, memory, cores))

    has()
    monkeypatch.setattr(rules, "FEW_PER_CLASS", 0)
    monkeypatch.setattr(fitting, "typical_pixels", lambda source: 1_000)
    return has


@pytest.fixture
def photos(tmp_path):
    return example_images.folder(tmp_path / "photos")


def chosen(name, facts=FACTS, recipe=PRETRAINED, **fields):
    return rules.RULES[name](dataclasses.replace(facts, **fields), recipe)[0]


def test_adapt_follows_the_number_of_images():
    assert chosen("adapt") == chosen("adapt", images=19_999) == {"adapt": "lora"}
    few = {"kind": kind_of("class"), "outputs": 10}  # the head alone below 20 images per class
    assert [chosen("adapt", images=images, **few)["adapt"] for images in (199, 200)] == ["head", "lora"]
    assert chosen("adapt", images=20_000) == chosen("adapt", kind=kind_of("mask")) == {"adapt": "all"}
    resnet = recipes.replace(PRETRAINED, {"model.variant": "BiT-R50x1"})
    scratch = recipes.replace(PRETRAINED, {"model.weights": None})
    assert chosen("adapt", recipe=resnet) == chosen("adapt", recipe=scratch) == {"adapt": "all"}
    of = lambda adapt: chosen("update", recipe=recipes.replace(PRETRAINED, {"adapt": adapt}))  # noqa: E731
    numbers = [tuple(of(adapt).values()) for adapt in ("all", "last(2)", "head", "lora(rank=4)", "bias")]
    assert numbers == [("sgd", 3e-3, 0), ("sgd", 3e-3, 0), ("adamw", 1e-2, 0), ("adamw", 1e-3, 0), ("adamw", 1e-3, 0)]
    assert tuple(chosen("update", recipe=scratch).values()) == ("adamw", 1e-3, 0.05)
    whole = recipes.replace(PRETRAINED, {"adapt": "all"})
    assert tuple(chosen("update", kind=kind_of("mask"), recipe=whole).values()) == ("adamw", 1e-4, 0.05)
    for adapt, name in (("lora(rank=4)", "adamw"), ("head", "adamw"), ("all", "sgd"), ("last(2)", "sgd")):
        assert of(adapt)["optim.name"] == name
    assert of("head")["optim.learning_rate"] > of("lora")["optim.learning_rate"]
    assert chosen("update", recipe=scratch)["optim.weight_decay"] > 0 == chosen("update")["optim.weight_decay"]
    assert chosen("update", kind=kind_of("mask"))["optim.name"] == "adamw"
    head = recipes.replace(PRETRAINED, {"adapt": "head"})
    assert chosen("update", kind=kind_of("mask"), recipe=head) == of("head")
    reasons = [rules.adaptation(dataclasses.replace(FACTS, images=n), PRETRAINED)[1] for n in (19_999, 20_000)]
    assert reasons == ["fewer than 20,000 images", "not fewer than 20,000 images"]


def test_a_batch_divides_among_the_devices():
    sizes = {gpus: chosen("batch", gpus=gpus)["data.batch_size"] for gpus in (0, 1, 2, 3, 8)}
    assert sizes == {0: 32, 1: 32, 2: 32, 3: 33, 8: 32}
    assert [chosen("batch", images=images)["data.batch_size"] for images in (4_999, 5_000)] == [32, 128]
    assert chosen("batch", kind=kind_of("mask"))["data.batch_size"] == 16


def test_mixup_is_used_only_for_many_images_from_scratch():
    scratch = recipes.replace(PRETRAINED, {"model.weights": None})
    assert chosen("augmentation") == {
        "data.pp_train": "decode|inception_crop(224, 50, antialias=True)|flip_lr|value_range(-1, 1)"
    }
    head = recipes.replace(PRETRAINED, {"adapt": "head"})
    assert chosen("augmentation", recipe=head) == {
        "data.pp_train": "decode|resize(224, antialias=True)|flip_lr|value_range(-1, 1)"
    }
    assert "inception_crop(224, antialias=True)" in chosen("augmentation", recipe=head, images=20_000)["data.pp_train"]
    assert "inception_crop(224, antialias=True)" in chosen("augmentation", images=20_000)["data.pp_train"]
    assert chosen("augmentation", recipe=scratch, images=19_999) == chosen("augmentation")
    many = chosen("augmentation", recipe=scratch, images=20_000)
    assert (many["data.mixup"], many["label_smoothing"]) == (0.2, 0.1) and "|randaug(2, 10)|" in many["data.pp_train"]
    many = chosen("augmentation", recipe=scratch, images=20_000, kind=kind_of("values"))
    assert set(many) == {"data.pp_train"}  # mixing is for classes


@pytest.mark.parametrize(
    ("images", "outputs", "expected"),
    [
        (10, 2, 3_200),
        (200, 4, 4_000),
        (1_600, 3, 32_000),
        (10_000, 3, 64_000),
        (1_000, 100, 64_000),
        (20_000, 3, 1_280_000),
    ],
)
def test_number_of_images_seen_by_a_pretrained_model_follows_the_rule(images, outputs, expected):
    """Without a fitted head."""
    recipe = recipes.replace(PRETRAINED, {"data.batch_size": 32 if images < 5_000 else 128})
    fields, reason = rules.steps(dataclasses.replace(FACTS, images=images, outputs=outputs), recipe)
    assert fields["total_steps"] * recipe.data.batch_size == expected
    assert f"{expected / images:.3g} passes over {images:,} images" in reason
    assert fields["patience"] == (3 if images < 20_000 else 0)


@pytest.mark.parametrize(
    ("images", "outputs", "expected"),
    [(100, 3, 30_000), (100, 99, 200_000), (1_000, 3, 60_000), (10_000, 3, 600_000)],
)
def test_number_of_images_seen_from_scratch_follows_the_rule(images, outputs, expected):
    scratch = recipes.replace(PRETRAINED, {"model.weights": None})
    assert rules.images_seen(dataclasses.replace(FACTS, images=images, outputs=outputs), scratch) == expected


def test_images_seen_of_large_data_sets_match_bit():
    seen = [rules.images_seen(dataclasses.replace(FACTS, images=n), PRETRAINED) for n in (499_999, 500_000)]
    assert seen == [128 * 10_000, 128 * 20_000]
    seen = [
        rules.images_seen(dataclasses.replace(FACTS, images=n, kind=kind_of("mask")), PRETRAINED)
        for n in (19_999, 20_000)
    ]
    assert seen == [PRETRAINED.data.batch_size * steps for steps in (500, 10_000)]


def test_time_of_every_adaptation_is_estimated():
    """Two thirds of all operations without the gradients of the weights, one third without a backward pass."""
    adapted = ("all", "lora(rank=4)", "bias", "head", "last(2)")
    seconds = [rules.seconds_for(FACTS, recipes.replace(PRETRAINED, {"adapt": adapt}), 6e12) for adapt in adapted]
    assert seconds == pytest.approx([100, 200 / 3, 200 / 3, 100 / 3, 100])


def test_number_of_images_for_fitting_the_head_is_limited():
    """All images if only the head is trained, otherwise those of a quarter of the time, at most 20,000 (masks: 500)."""

    def number(recipe, seconds, **fields):
        return rules.head_images(dataclasses.replace(FACTS, **fields), recipe, seconds, limit=1_000.0)

    head, scratch = (recipes.replace(PRETRAINED, change) for change in ({"adapt": "head"}, {"model.weights": None}))
    assert [number(PRETRAINED, seconds) for seconds in (0.0, 0.1, 0.25, 100.0)] == [1_600, 1_600, 1_000, 100]
    assert [number(head, seconds) for seconds in (0.5, 1.0)] == [1_600, 1_000]
    assert [number(recipe, 0.0, images=10**6) for recipe in (PRETRAINED, head)] == [20_000, 10**6]
    assert number(PRETRAINED, 0.0, kind=kind_of("mask")) == 500 and number(scratch, 0.0) == 0
    fitted = recipes.replace(head, {"head_images": 10})
    assert rules.steps(FACTS, fitted)[0]["total_steps"] == 0 < rules.steps(FACTS, head)[0]["total_steps"]
    # A forward pass; two for LoRA, because kernels have no gradients; three for all weights
    passes = [rules.forward_passes(recipes.replace(head, {"adapt": adapt})) for adapt in ("head", "lora", "all")]
    assert passes == [1, 2, 3]


@pytest.mark.parametrize(
    ("pixels", "sizes"), [(0, [518, 378, 252]), (28, [56]), (8, [56]), (150, [308, 252]), (1_000, [518, 378, 252])]
)
def test_small_images_are_enlarged_to_at_most_twice_their_size_and_at_least_four_patches(pixels, sizes):
    recipe = recipes.replace(PRETRAINED, {"model.image_size": 518})
    assert rules.image_sizes(dataclasses.replace(FACTS, pixels=pixels), recipe, 14) == sizes


def test_number_of_evaluations_is_limited_by_time_and_count():
    """40% of 3,200 images are 3.2 times 400 images. There are at most ten evaluations."""
    assert [rules.of_steps(100, 32, images)["eval_every"] for images in (400, 1)] == [34, 10]


def test_patch_size_of_a_model_is_found():
    found = [
        fitting._patch(recipes.Model(variant, arguments=arguments))
        for variant, arguments in (("ViT-S/14", {}), ("BiT-R50x1", {}), ("ViT-S/16", {"patch_size": (4, 8)}))
    ]
    assert found == [14, 1, 8]


@pytest.mark.parametrize(
    ("rule", "recipe", "facts", "reason"),
    [
        ("update", PRETRAINED, {}, "for adapt=all"),
        ("update", PRETRAINED, {"kind": kind_of("mask")}, "masks"),
        ("batch", PRETRAINED, {"images": 4_999}, "fewer than 5,000 images"),
        ("batch", PRETRAINED, {"images": 5_000}, "not fewer than 5,000 images"),
        ("batch", PRETRAINED, {"kind": kind_of("mask")}, "masks"),
        ("augmentation", PRETRAINED, {}, "few images, so crops of half of the area or more"),
        ("augmentation", PRETRAINED, {"images": 20_000}, "crops of any part"),
        ("adapt", PRETRAINED, {"kind": kind_of("mask")}, "masks"),
    ],
)
def test_reason_of_every_rule_is_stated(rule, recipe, facts, reason):
    assert rules.RULES[rule](dataclasses.replace(FACTS, **facts), recipe)[1] == reason


@pytest.mark.parametrize("test_images", [0, 1, 400, 50_000])
@pytest.mark.parametrize("total", [1, 7, 99, 20_000])
def test_evaluations_take_a_part_of_the_time(total, test_images):
    fields = rules.of_steps(total, 32, test_images)
    evaluations = -(-total // fields["eval_every"])
    assert 1 <= evaluations <= 10
    assert evaluations == 1 or evaluations * test_images <= 0.4 * total * 32
    assert fields["optim.schedule.warmup_steps"] == {1: 0, 7: 0, 99: 9, 20_000: 500}[total]
    assert total == fields["total_steps"]


# The machine


def fitted(photos, variant="ViT_S16", change=same):
    return fitting.fit(toy.module("folder").get_config(data=photos, model=variant), change)


@pytest.mark.slow
def test_images_are_as_large_as_time_and_memory_permit(machine, photos, caplog):
    caplog.set_level(logging.INFO, logger="absl")
    sizes = []
    for variant, cores in (("ViT_B16", 64), ("ViT_B16", 1), ("ViT_L16", 1)):
        machine(memory=1e12, cores=cores)
        recipe = fitted(photos, variant)
        sizes.append(recipe.model.image_size)
        assert f"inception_crop({sizes[-1]}, 50, antialias=True)" in recipe.data.pp_train
        assert f"resize({sizes[-1]}, antialias=True)" in recipe.data.pp_eval
    assert sizes == [224, 160, 112]
    machine(gpus=1, memory=80e9)
    assert fitted(photos).model.image_size == 384
    machine(gpus=1, memory=3e9)
    assert fitted(photos, "ViT_L16").model.image_size == 224
    machine(gpus=1, memory=80e9)
    assert fitted(photos, "ViT_H14").model.image_size == 378  # a multiple of its patch size
    reasons = [text.partition(" (")[2] for text in caplog.messages if text.startswith("images: ")]
    slow, large = "larger images take too long for 30:00)", "larger images take too much memory)"
    own = "the size of the weights)"
    assert reasons == [own, slow, slow, own, large, own]


@pytest.mark.slow
def test_few_small_images_train_only_the_head(photos, caplog):
    """The 27 images have 20 x 30 pixels."""
    caplog.set_level(logging.INFO, logger="absl")
    recipe = fitted(photos)
    assert (recipe.adapt, recipe.head_images, recipe.total_steps, recipe.model.image_size) == ("head", 27, 0, 64)
    *_, model, images, _, steps, _, _ = caplog.messages
    assert model.endswith(
        "adapt=head, the head is first fitted to features of 27 images (fewer than 20 images per class)"
    )
    assert images.endswith("(for images of 24 pixels)") and steps.endswith("(only the head is fitted)")


def test_unknown_gpu_memory_is_assumed(monkeypatch):
    monkeypatch.setattr("tensorflow.config.list_physical_devices", lambda kind: ["gpu"] * 2)
    for found, expected in ((8e10, 8e10), (math.inf, 16e9)):
        monkeypatch.setattr(fitting.memory, "gpu_memory", lambda found=found: found)
        assert fitting.machine()[:2] == (2, expected)


@pytest.mark.slow
def test_a_batch_is_computed_in_as_many_parts_as_the_memory_requires(machine, photos):
    machine(memory=1e12, cores=64)
    whole = fitted(photos)
    assert whole.optim.accumulation_steps == 1
    needed = plan.of_recipe(whole, 3).total_bytes()
    for memory, parts in ((2 * needed, 1), (2 * needed - 1e3, 2), (5e8, 32)):  # half of the memory, and a little less
        machine(memory=memory, cores=64)
        assert fitted(photos).optim.accumulation_steps == parts
    machine(gpus=4, memory=1e9)  # each device computes one image at a time
    assert fitted(photos, "ViT_B16").optim.accumulation_steps == 8


@pytest.mark.slow
def test_steps_on_a_processor_fit_into_the_time(machine, photos, monkeypatch):
    machine(cores=1)
    monkeypatch.setattr(rules, "images_seen", lambda *_: 64_000)  # 2,000 steps
    totals = []
    for time in (60.0, 1_000.0, 2_000.0):
        change = lambda recipe, time=time: recipes.replace(recipes.with_image_size(recipe, 112), {"time": time})  # noqa: E731
        recipe = fitted(photos, "ViT_Ti16", change)
        flops = fitting.plan.of_recipe(recipe, 3).total_flops
        seconds = rules.seconds_for(dataclasses.replace(FACTS, cores=1), recipe, flops)
        totals.append(recipe.total_steps)
        assert 0.98 * time < seconds <= time or recipe.total_steps == rules.MIN_STEPS
        assert recipe.optim.schedule.warmup_steps == totals[-1] // 10
    assert rules.MIN_STEPS == totals[0] < totals[1] < totals[2] < 2_000


# The user


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "given"),
    [
        ({}, []),
        ({"total_steps": 120, "data.batch_size": 30, "model.image_size": 112}, ["images", "batch", "steps"]),
        ({"optim.accumulation_steps": 2, "optim.weight_decay": 0.1}, ["batch", "update"]),
        ({"adapt": "head", "optim.schedule.warmup_steps": 3, "label_smoothing": 0.1}, ["model", "augmentation"]),
    ],
)
def test_six_lines_state_the_settings_that_follow_from_the_flags(overrides, given, machine, photos, caplog):
    machine(memory=1e12)
    with caplog.at_level(logging.INFO, logger="absl"):
        recipe = recipe_of(Choices(photos, model="ViT_S16", overrides=overrides))
    about_splits, *texts = caplog.messages
    assert about_splits.startswith("No validation images")
    lines = {name: line for name, _, line in (text.partition(": ") for text in texts)}
    assert list(lines) == ["model", "images", "batch", "steps", "update", "augmentation"]
    assert all(recipes.get(recipe, field) == value for field, value in overrides.items())
    parts, optim = recipe.optim.accumulation_steps, recipe.optim
    assert lines["images"].startswith(f"{recipe.model.image_size} pixels, value_range(-1, 1)")
    assert lines["batch"].startswith(f"{recipe.data.batch_size} in {parts} part{'s' if parts > 1 else ''} (")
    warmup = optim.schedule.warmup_steps
    warm = f", {warmup} of them warm-up" if recipe.total_steps else ""
    assert lines["steps"].startswith(f"{recipe.total_steps} steps{warm} (")
    decay = f", weight decay {optim.weight_decay:g}" if optim.weight_decay else ""
    assert lines["update"].startswith(f"adamw, rate {optim.learning_rate:g}{decay} (")
    smoothing = f", label smoothing {recipe.label_smoothing:g}" if recipe.label_smoothing else ""
    assert f"|flip_lr{smoothing} (" in lines["augmentation"]
    assert given == [name for name, line in lines.items() if line.endswith("(given)")]
    assert f"resize({recipe.model.image_size}, antialias=True)" in recipe.data.pp_eval


@pytest.mark.slow
def test_log_states_a_single_step_and_a_time(machine, photos, caplog):
    machine(memory=1e12)
    caplog.set_level(logging.INFO, logger="absl")
    recipe_of(Choices(photos, model="ViT_Ti16", overrides={"total_steps": 1, "optim.schedule.warmup_steps": 3}))
    assert "steps: 1 step, 1 of them warm-up (given)" in caplog.messages
    recipe_of(Choices(photos, model="ViT_Ti16", time="1h30m"))
    assert "steps: as many as fit into 1:30:00, after some are measured (given)" in caplog.messages
    recipe_of(Choices(photos, model="ViT_S16", adapt="head", time="1h30m"))
    assert "steps: 0 steps (only the head is fitted)" in caplog.messages


@pytest.mark.parametrize(("cats", "is_shown"), [(6, True), (5, False)])
def test_imbalanced_classes_are_reported(cats, is_shown, caplog):
    """From three times as many images on."""
    labels = np.array([0] * cats + [1] * 2 + [2] * 3)
    source = types.SimpleNamespace(labels=lambda: labels, num_classes=3, class_names=("cat", "dog", "eel"))
    with caplog.at_level(logging.WARNING, logger="absl"):
        fitting.warn_of_imbalance(source)
    assert any("from 2 of 'dog' to 6 of 'cat'" in text for text in caplog.messages) == is_shown
    assert len(caplog.messages) == is_shown


@pytest.mark.slow
@pytest.mark.parametrize("choices", [{"weights": "none"}, {"weights": "augreg"}, {"model": "ViT_Ti16:augreg"}])
def test_an_image_size_of_the_user_is_stated_as_such(choices, machine, photos, caplog):
    """Also where the rules have one size to choose from."""
    machine(gpus=1, memory=80e9)
    caplog.set_level(logging.INFO, logger="absl")
    recipe_of(Choices(photos, image_size=64, **{"model": "ViT_Ti16", **choices}))
    assert "images: 64 pixels, value_range(-1, 1) (given)" in caplog.messages


@pytest.mark.slow
def test_rules_follow_the_settings_of_the_user(machine, photos):
    """The trained weights determine the rate, the batch its parts, and the images the steps."""
    of = lambda **choices: recipe_of(Choices(photos, **{"model": "ViT_S16", **choices}))  # noqa: E731
    assert of(adapt="all").optim.name == "sgd" and of(overrides={"adapt": "head"}).optim.name == "adamw"
    assert of(image_size=96).data.pp_train.startswith("decode|inception_crop(96, 50, antialias=True)")
    assert of(overrides={"data.batch_size": 130}).optim.accumulation_steps == 130
    small, large = of(), of(model="ViT_L16")
    assert large.model.image_size < small.model.image_size or large.total_steps < small.total_steps
    assert rules.of_steps(9, 1, 1).keys() == {*recipes.OF_TIME}
    for field in recipes.OF_TIME:
        with pytest.raises(ValueError, match=f"either the time or {field}"):
            of(time="5m", overrides={field: 5})
        with pytest.raises(ValueError, match=f"either the time or {field}"):
            of(overrides={"time": 300.0, field: 5})


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"data": "/a/photos/"}, "runs/photos"),
        ({"data": "folder:/a/images#masks=/a/masks"}, "runs/images"),
        ({"config": "recipes/mine.py"}, "runs/mine"),
        ({"config": "digits", "data": "npz:mine.npz"}, "runs/mine.npz"),
        ({"data": "/"}, "runs/run"),
    ],
)
def test_a_run_is_named_after_its_data(choices, expected):
    assert Choices(**choices).workdir() == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "seconds"), [("20m", 1_200), ("1h30m", 5_400), ("90s", 90), ("1.5h", 5_400), (60, 60), (" 2m ", 120)]
)
def test_times_with_units_are_parsed(text, seconds, machine, photos):
    assert seconds_of(text) == seconds == recipe_of(Choices(photos, model="ViT_Ti16", time=text)).time


@pytest.mark.parametrize("text", ["", "m", "20 min", "-5m", "0", "abc"])
def test_invalid_time_is_refused(text):
    with pytest.raises(ValueError, match="'20m'"):
        seconds_of(text)


@pytest.mark.slow
def test_a_copy_of_the_recipe_follows_the_rules_too(machine, photos, tmp_path):
    copy = shutil.copy(toy.CONFIGS / "folder.py", tmp_path / "mine.py")
    found, own = (recipe_of(Choices(photos, config=config, model="ViT_S16")) for config in (str(copy), None))
    assert found == own


# The weights


@pytest.fixture
def offline(monkeypatch):
    def resolve(*_):
        raise OSError("Could not fetch hf:facebook/dinov2-small.")

    monkeypatch.setattr(zoo, "resolve", resolve)


@pytest.mark.slow
def test_small_model_is_trained_from_scratch_without_weights(offline, machine, photos, caplog):
    recipe = recipe_of(Choices(photos))
    assert recipe.model.weights is None and recipe.model.variant == rules.SMALL_MODEL["model.variant"]
    assert recipe.model.image_size == 96 and "inception_crop(96, 50, antialias=True)" in recipe.data.pp_train
    assert recipes.describe_model(recipe, 3).count_params() < 2e6
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith("No weights: Could not fetch hf:facebook/dinov2-small.")
    assert recipe_of(Choices(photos, weights="none")) == recipe  # on request, without a warning
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    assert recipe_of(Choices(photos), workdir="runs/new") == recipe  # as the program does
    with pytest.raises(OSError, match="Could not fetch"):
        recipe_of(Choices(photos, model="hf:facebook/dinov2-small"), workdir="runs/new")
    other = recipe_of(Choices(photos, model="ViT_Ti16", weights="none"))
    assert (other.model.variant, other.optim) == (
        "ViT-Ti/16",
        dataclasses.replace(recipe.optim, schedule=other.optim.schedule),
    )


@pytest.mark.slow
def test_available_default_weights_are_used(machine, photos, monkeypatch, caplog):
    monkeypatch.setattr(zoo, "resolve", lambda *_: "there")
    recipe = recipe_of(Choices(photos))
    assert (recipe.model.variant, recipe.model.weights) == rules.DEFAULT_MODEL
    assert zoo.parse_weights_name(recipe.model.weights).location == "hf:facebook/dinov2-small"
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    "choices", [{"weights": "dinov5"}, {"model": "ViT_S14", "weights": "nowhere.npz"}, {"model": "ViT_S99"}]
)
def test_missing_named_weights_are_an_error(choices, offline, machine, photos):
    with pytest.raises((ValueError, FileNotFoundError), match=next(reversed(choices.values()))):
        recipe_of(Choices(photos, **choices))


# The data


@pytest.mark.slow
def test_too_few_or_missing_data_are_refused(machine, tmp_path):
    example_images.folder(tmp_path / "one", classes=("cat",))
    example_images.folder(tmp_path / "few", classes=("cat", "dog"), count=1)
    example_images.folder(
        tmp_path / "enough", classes=("cat", "dog"), count=3
    )  # two of each class, and one to test with
    assert recipe_of(Choices(str(tmp_path / "enough"), model="ViT_Ti16")).data.eval_split == "test"
    for name, said in (("one", "one class, 'cat'"), ("few", "at least 4 images"), ("none", "no folder")):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            recipe_of(Choices(str(tmp_path / name), model="ViT_Ti16"))


def test_data_with_masks_select_the_segmentation_recipe(monkeypatch, machine, tmp_path):
    toy.replace_readers(monkeypatch, tmp_path)
    machine(memory=1e12, cores=64)
    found, own = (
        fitting.fit(toy.load(name, "/images#masks=/masks,ViT_B16"), same) for name in ("folder", "segmentation")
    )
    assert recipes.check(found) == recipes.check(own)
    assert found.task == recipes.Segmentation() and found.adapt == "all"
    assert (found.optim.name, found.data.batch_size, found.total_steps) == ("adamw", 16, 500)
    upsample = toy.load("segmentation", "/images#masks=/masks")
    upsample = recipes.replace(upsample, {"task": "segmentation(head='upsample')", "model.variant": "ViT-Ti/16"})
    assert fitting.fit(upsample, same).task.head == "upsample"


@pytest.mark.slow
def test_multi_label_data_select_task_and_loss(machine, tmp_path):
    example_images.folder(tmp_path / "p", classes=("cat",), count=12)
    rows = [f"{path.relative_to(tmp_path)},red;round" for path in sorted((tmp_path / "p").rglob("*.*"))]
    (tmp_path / "list.csv").write_text("\n".join(["path,labels", *rows]))
    choices = {"data": f"manifest:{tmp_path}/list.csv", "model": "ViT_Ti16"}
    found = recipe_of(Choices(**choices))
    assert (found.task, found.loss) == (recipes.MultiLabel(), "sigmoid")
    with pytest.raises(ValueError, match="loss='softmax'"):
        recipe_of(Choices(**choices, overrides={"loss": "softmax"}))


PARTS = ("fit(train)", "validation(train)", "test")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folders", "count", "settings", "expected"),
    [
        ("train val", 2, {}, ("train", "validation", None)),
        ("train val test", 2, {}, ("train", "validation", "test")),
        ("train val test", 2, {"data.eval_split": "test"}, ("train", "test", None)),
        ("train test", 24, {}, PARTS),
        (".", 30, {}, PARTS),
        ("train test", 23, {}, ("train", "test", "test")),  # one in seven of 69 images are fewer than ten
        ("train test", 24, {"data.eval_split": "test"}, ("train", "test", None)),
        ("train test", 2, {"data.eval_split": "test"}, ("train", "test", None)),
        ("train test", 24, {"data.train_split": "train[:50%]"}, ("train[:50%]", "test", None)),
    ],
)
def test_best_checkpoint_is_chosen_on_other_images_than_the_test_split(
    folders, count, settings, expected, machine, tmp_path, caplog
):
    """A part of the training images, if there are no others. The test images do it only if the user says so."""
    for name in folders.split():
        example_images.folder(tmp_path / name, count=count)
    with caplog.at_level(logging.INFO, logger="absl"):
        recipe = fitted(str(tmp_path), "ViT_Ti16", lambda recipe: recipes.replace(recipe, settings))
    assert (recipe.data.train_split, recipe.data.eval_split, recipe.data.test_split) == expected
    few = expected[1] == expected[2]
    assert recipe.patience == (0 if few else 3)
    assert few == any(text.startswith("No validation images") for text in caplog.messages)


@pytest.mark.slow
def test_validation_images_are_held_out_only_if_steps_are_trained(machine, tmp_path):
    """Cross-validation within the training images chooses the strength of a head that is fitted without steps."""
    for name in ("train", "test"):
        example_images.folder(tmp_path / name, count=24)
    found = [
        fitted(str(tmp_path), "ViT_S16", lambda recipe, a=a: recipes.replace(recipe, {"adapt": a}))
        for a in ("head", "lora")
    ]
    parts = [(each.data.train_split, each.data.eval_split, each.data.test_split) for each in found]
    assert parts == [("train", "test", "test"), PARTS]
    # A seventh of the 24 images of each of three classes, rounded down, is held out.
    assert [(each.total_steps > 0, each.head_images) for each in found] == [(False, 72), (True, 63)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected", "count"),
    [
        ({"data.eval_split": "validation(train)"}, PARTS, 63),
        (
            {"data.train_split": "fit(train)", "data.eval_split": "validation(train)", "data.test_split": "test"},
            PARTS,
            63,
        ),
        ({"data.train_split": "fit(train)", "data.test_split": "test"}, ("fit(train)", "test", "test"), 63),
        ({"data.test_split": None}, (*PARTS[:2], None), 63),
        ({"data.test_split": "test[:50%]"}, ("train", "test[:50%]", "test[:50%]"), 72),
    ],
)
def test_head_is_never_fitted_to_images_that_the_user_evaluates(settings, expected, count, machine, tmp_path):
    for name in ("train", "test"):
        example_images.folder(tmp_path / name, count=24)
    recipe = fitted(str(tmp_path), "ViT_S16", lambda recipe: recipes.replace(recipe, {"adapt": "head", **settings}))
    assert (recipe.data.train_split, recipe.data.eval_split, recipe.data.test_split) == expected
    assert (recipe.total_steps, recipe.head_images) == (0, count)


@pytest.mark.slow
def test_a_line_names_rare_classes_unless_they_are_balanced(tmp_path, machine, caplog):
    for name in [f"train/many/{number}" for number in range(6)] + ["train/few/1", "train/few/2", "test/few/3"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        keras.utils.save_img(tmp_path / f"{name}.png", np.zeros((4, 4, 3)), scale=False)
    for balance, many in ((0.0, 6), (1.0, 6), (0.0, 5)):
        (tmp_path / "train/many/5.png").unlink() if many == 5 else None
        caplog.clear()
        recipe_of(Choices(str(tmp_path), model="ViT_Ti16", overrides={"class_weight_exponent": balance}))
        named = [text for text in caplog.messages if re.search(f"from 2 of 'few' to {many} of 'many'", text)]
        assert len(named) == (not balance and many == 6)  # three times as many, not fewer
