"""Pre-training without labels: golden losses and gradients, and the selection of masked patches."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.data import open_source, preprocess, seeds, train_batches
from keras_vit.tasks import patches
from tests import tiny
from tests.training import masked, virtual_devices


def recipe(task, size=8, **arguments):
    model = recipes.Model("ViT-Ti/16", image_size=size, arguments={**tiny.ARGUMENTS, **arguments})
    return recipes.Recipe(task=task, model=model)


# Masked autoencoder


@pytest.fixture(scope="module")
def data():
    return masked.load()


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
def test_losses_match_the_reference(data, normalize):
    for prefix, ratio in masked.ratios(data).items():
        model = masked.create_model(data["meta"], ratio)
        task = masked.task_of(model, normalize)
        values = ops.convert_to_tensor(data["image"]), ops.convert_to_tensor(masked.to_order(data["noise"]))
        metrics, predictions = task(model, values, training=False)
        losses = metrics["loss"]
        # float32 in another order of summation
        np.testing.assert_allclose(predictions, data[f"{prefix}/pred"], rtol=1e-5, atol=1e-5)
        expected = data[f"{prefix}/loss_norm_pix_{normalize}"]
        np.testing.assert_allclose(np.mean(losses), expected, rtol=1e-5)


@pytest.mark.slow
def test_latents_match_the_reference(data):
    for prefix, ratio in masked.ratios(data).items():
        model = masked.create_model(data["meta"], ratio)
        encoder = keras.Model(model.inputs, model.get_layer("encoder_norm").output)
        latent = encoder([data["image"], masked.to_order(data["noise"])])
        np.testing.assert_allclose(latent, data[f"{prefix}/latent"], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [False, True])
def test_gradients_match_the_reference(data, normalize):
    model = masked.create_model(data["meta"])
    task = masked.task_of(model, normalize)
    weights = [weight.value for weight in model.trainable_variables]
    with tf.GradientTape() as tape:
        values = tf.constant(data["image"]), tf.constant(masked.to_order(data["noise"]))
        metrics, _ = task(model, values, training=True)
        loss = tf.reduce_mean(metrics["loss"])
    found = dict(zip([weight.path for weight in model.trainable_variables], tape.gradient(loss, weights), strict=True))
    prefix = f"grad_norm_pix_{normalize}/"
    golden = {name.removeprefix(prefix): value for name, value in data.items() if name.startswith(prefix)}
    expected = masked.to_variables(golden, data["meta"])
    assert set(found) == set(expected)
    for path, gradient in found.items():
        # The gradient of a key bias is zero but for rounding.
        np.testing.assert_allclose(gradient, expected[path], rtol=1e-4, atol=1e-6, err_msg=path)


@pytest.mark.slow
def test_masked_autoencoder_matches_hugging_face(golden):
    """`ViTMAEForPreTraining` on given noise."""
    from keras_vit import checkpoints
    from tests import golden_data

    data = golden("hf_mae_io")
    config = json.loads(golden_data.path("hf_mae_config.json").read_text())
    model = checkpoints.model_from_checkpoint(golden_data.path("hf_mae.safetensors"), decoder=True, config=config)
    assert model.config.mask_ratio == config["mask_ratio"]
    task = masked.task_of(model, config["norm_pix_loss"])
    order = masked.to_order(data["noise"])
    np.testing.assert_array_equal(np.argsort(order, axis=1), data["ids_restore"])
    removed = np.argsort(order, axis=1) >= model.config.num_visible
    np.testing.assert_array_equal(removed, data["mask"])
    values = ops.convert_to_tensor(data["image"]), ops.convert_to_tensor(order)
    metrics, predictions = task(model, values, training=False)
    losses = metrics["loss"]
    np.testing.assert_allclose(predictions, data["logits"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.mean(losses), data["loss"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("way", virtual_devices.MASKED)
def test_training_matches_the_reference(way, on_devices):
    """24 steps of AdamW as the reference made them, on one replica, and on two with accumulation."""
    found = on_devices(2)[way]
    assert found["loss"] < 1e-4
    assert found["rate"] < 1e-6
    # Adam divides the rounding of a key bias's gradient by its own size.
    wrong = {path: error for path, error in found["weights"].items() if error > 1e-4 and not path.endswith("key/bias")}
    assert not wrong


def test_explained_variance_matches_hand_computation():
    """1 where the prediction is right, 0 where it is the mean of the masked pixels."""
    task = tasks.bind(recipe("mae(normalize_pixels=False, mask_ratio=0.5)"))
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
    order = np.array([[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]], np.int32)
    pixels = np.asarray(task.targets(ops.convert_to_tensor(images)))
    removed = np.argsort(order, axis=1) >= 2
    mean = np.stack([np.full_like(pixels[i], pixels[i][removed[i]].mean()) for i in range(3)])
    for predicted, expected in ((pixels, 1.0), (mean, 0.0)):
        metrics, _ = task(lambda inputs, training, p=predicted: p, (images, order), training=False)
        np.testing.assert_allclose(metrics["explained"], expected, atol=1e-5)


# Masked patch prediction


def test_targets_match_the_paper(golden):
    data = golden("mpp")
    patch = data["meta"]["patch"]
    cut = patches.to_patches(ops.convert_to_tensor(data["image"]), (patch, patch))
    np.testing.assert_array_equal(cut, data["patches"])
    np.testing.assert_array_equal(patches.mean_color(cut)[..., 0], data["target_mean_colour"])
    np.testing.assert_array_equal(patches.small_colors(cut), data["target_4x4"])


def test_loss_is_the_mean_over_the_corrupted_patches(golden):
    data = golden("mpp")
    size, patch = data["image"].shape[1], data["meta"]["patch"]
    task = tasks.bind(recipe("masked_patch", size=size, patch_size=patch))
    targets = ops.convert_to_tensor(data["target_mean_colour"][..., None].astype("int32"))
    logits = ops.convert_to_tensor(data["logits"][:, :, None])
    losses, right = task.compare(logits, targets)
    mask = data["mask"]
    np.testing.assert_allclose(np.asarray(losses)[mask].mean(), data["loss_mean_colour"], rtol=1e-5)
    np.testing.assert_array_equal(right, data["logits"].argmax(-1) == data["target_mean_colour"])


def test_the_task_counts_only_the_corrupted_patches():
    task = tasks.bind(recipe("masked_patch(target='pixels')"))
    images = np.random.default_rng(0).uniform(0, 255, size=(2, 8, 8, 3)).astype("float32")
    targets = np.asarray(task.targets(ops.convert_to_tensor(images)))
    corrupted = np.array([[True, True, False, False], [False, True, False, True]])
    wrong = np.where(corrupted[..., None], targets + 0.5, 7.0)
    values = images, None, ops.convert_to_tensor(corrupted), ops.convert_to_tensor(targets)
    metrics, _ = task(lambda inputs, training: wrong, values, training=False)
    np.testing.assert_allclose(metrics["loss"], 0.25, rtol=1e-5)
    np.testing.assert_array_equal(metrics["accuracy"], 0.0)


@pytest.mark.parametrize(("error", "right"), [(0.0624, 1), (0.0626, 0), (-0.0624, 1), (-0.0626, 0)])
def test_a_pixel_is_right_within_half_a_level(error, right):
    """A level is 1 / 8."""
    task = tasks.bind(recipe("masked_patch(target='pixels')"))
    targets = np.full((1, 4, 12), 0.5, "float32")
    _, found = task.compare(ops.convert_to_tensor(targets + np.float32(error)), ops.convert_to_tensor(targets))
    np.testing.assert_array_equal(found, np.full((1, 4), right))


def test_small_colors_are_shown_over_the_whole_patch():
    """Of 8 by 6 pixels: two rows for each color, and one or two columns."""
    task = tasks.bind(recipe("masked_patch(target='colors_4x4')", patch_size=2))
    classes = np.arange(16).reshape(4, 4) % 8
    shown = task._colors(np.eye(8)[classes.reshape(1, 1, 16)], (1, 1, 8, 6, 1))[0, 0, :, :, 0]
    expected = (classes[[0, 0, 1, 1, 2, 2, 3, 3]][:, [0, 0, 1, 2, 2, 3]] + 0.5) / 8
    np.testing.assert_allclose(shown, expected)


def test_color_targets_of_patches_of_any_size():
    """14 pixels are averaged to 4 by the part of each that is inside: a ramp stays one."""
    ramp = np.broadcast_to(np.linspace(0, 1, 14, dtype="float32")[:, None, None], (14, 14, 1))
    classes = np.asarray(patches.small_colors(ops.convert_to_tensor(ramp[None, None])))
    colors = patches.class_colors(classes, 1)[0, 0, :, 0].reshape(4, 4)
    assert (np.diff(colors, axis=0) > 0).all() and (np.diff(colors, axis=1) == 0).all()
    weights = patches._averages(14)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    np.testing.assert_allclose(weights.sum(axis=0), 4 / 14)


def test_color_classes_round_trip():
    colors = np.random.default_rng(0).uniform(size=(50, 3)).astype("float32")
    classes = np.asarray(patches.color_classes(ops.convert_to_tensor(colors)))
    again = patches.class_colors(classes, 3)
    assert np.abs(again - colors).max() <= 0.5 / 8 + 1e-6
    np.testing.assert_array_equal(patches.color_classes(ops.convert_to_tensor(again.astype("float32"))), classes)
    assert int(patches.color_classes(ops.ones((1, 3)))[0]) == 511


# Selection of masked patches


def test_orders_are_permutations_of_the_seed_and_the_step():
    first = seeds.patch_orders(3, tf.constant(5), 64, 16).numpy()
    assert first.dtype == np.int32
    np.testing.assert_array_equal(np.sort(first, axis=1), np.tile(np.arange(16), (64, 1)))
    np.testing.assert_array_equal(first, seeds.patch_orders(3, tf.constant(5), 64, 16))
    for seed, step in ((4, 5), (3, 6)):
        assert (seeds.patch_orders(seed, tf.constant(step), 64, 16).numpy() != first).mean() > 0.8
    # Each patch is first as often as any other: 4 standard deviations of 4,096 draws
    counts = np.bincount(seeds.patch_orders(0, tf.constant(0), 4096, 16).numpy()[:, 0], minlength=16)
    assert np.abs(counts - 256).max() < 4 * np.sqrt(256)


def test_shares_of_corrupted_patches_match_bert():
    """50% are corrupted, in every image; of these 80, 10 and 10%, within 4 standard deviations of 51,200 draws."""
    sources, corrupted = (value.numpy() for value in seeds.patch_corruptions(0, tf.constant(7), 6400, 16, 8))
    np.testing.assert_array_equal(corrupted.sum(axis=1), 8)
    own = np.arange(16)[None]
    assert ((sources == own) | corrupted).all()
    chosen = sources[corrupted]
    masked_share = (chosen == -1).mean()
    same = (sources == own)[corrupted].mean()
    assert abs(masked_share - 0.8) < 4 * np.sqrt(0.8 * 0.2 / chosen.size)
    assert abs(same - 0.1) < 4 * np.sqrt(0.1 * 0.9 / chosen.size)
    others = ((sources - own) % 16)[corrupted & (sources >= 0) & (sources != own)]
    counts = np.bincount(others, minlength=16)[1:]  # any other patch, with equal probability
    assert np.abs(counts - counts.mean()).max() < 4 * np.sqrt(counts.mean())


@pytest.mark.slow
def test_rows_do_not_depend_on_the_number_of_workers():
    task = tasks.bind(recipe("mae"))
    draw = functools.partial(task.draw, 1)
    source = open_source("digits")

    def batches(shard=0, shards=1, start=2):
        found = train_batches(
            source, "value_range(-1, 1)", 8, start_step=start, shard_index=shard, num_shards=shards, draw=draw
        )
        return [batch["order"].numpy() for batch in found.take(2)]

    whole = batches()
    np.testing.assert_array_equal(np.concatenate([batches(0, 2)[0], batches(1, 2)[0]]), whole[0])
    np.testing.assert_array_equal(batches(start=3)[0], whole[1])


# Example images


@pytest.mark.parametrize(
    ("task", "seen"), [("mae(normalize_pixels=False)", "visible"), ("mae", "visible"), ("masked_patch", "corrupted")]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_example_images_show_reconstructions(task, seen, channels):
    created = tasks.bind(recipe(task, size=8, patch_size=2))
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, channels)).astype("uint8")
    batch = {"image": images, **{k: v.numpy() for k, v in created.draw(0, tf.constant(0), 3).items()}}
    to_range = preprocess.device_function("value_range(-1, 1)")
    if seen == "visible":
        predictions = np.asarray(created.targets(to_range(ops.convert_to_tensor(images))))
        hidden_patches = np.argsort(batch["order"], axis=1) >= created.config.num_visible
    else:
        targets = created.targets(ops.convert_to_tensor(images))
        predictions = np.asarray(ops.one_hot(targets, 8**channels))
        hidden_patches = batch["sources"] == -1
    shown = created.show({**batch, "predictions": predictions}, to_range).images
    assert list(shown) == ["input", seen, "reconstruction"]
    assert all(value.dtype == np.uint8 and value.shape == images.shape for value in shown.values())
    np.testing.assert_array_equal(shown["input"], images)
    gray = np.asarray(patches.to_patches(ops.convert_to_tensor(shown[seen]), (2, 2)))
    assert (gray[hidden_patches] == 128).all()
    if seen == "visible":  # the predictions are the pixels themselves
        assert np.abs(shown["reconstruction"].astype(int) - images).max() <= 1
    else:  # a patch of its mean color, within half a level
        means = np.asarray(patches.to_patches(ops.convert_to_tensor(images.astype("float32")), (2, 2))).mean((2, 3))
        found = np.asarray(patches.to_patches(ops.convert_to_tensor(shown["reconstruction"]), (2, 2)))[:, :, 0, 0]
        assert np.abs(found - means)[batch["corrupted"]].max() <= 0.5 * 256 / 8 + 1


# Wrong arguments


@pytest.mark.parametrize(
    ("task", "arguments", "match"),
    [
        ("mae(mask_ratio=0.99)", {}, "mask_ratio"),
        ("mae(mask_ratio=0.0)", {}, "mask_ratio"),
        ("masked_patch(mask_ratio=1.5)", {}, "mask_ratio"),
        ("masked_patch(target='color')", {}, "target"),
        ("mae(decoder_num_heads=7)", {}, "decoder_num_heads"),
        ("mea", {}, "mae"),
        ("mae|masked_patch", {}, "task"),
        ("mae", {"resnet_blocks": (1,), "patch_size": 1}, "resnet_blocks"),
        ("mae", {"patch_size": 3}, "image_size"),
    ],
)
def test_wrong_arguments_are_refused(task, arguments, match):
    with pytest.raises(ValueError, match=match):
        recipes.check(recipe(task, **arguments))


def test_resnets_cannot_mask_patches():
    with pytest.raises(ValueError, match=r"model.variant"):
        recipes.check(recipes.Recipe(task="mae", model=recipes.Model("BiT-R50x1")))
