import keras
import numpy as np
import pytest

from keras_vit import checkpoints, inspection, models
from keras_vit.inspection import examples
from tests import golden_data, selection
from tests.inspection import small
from train.report import cards


@pytest.mark.slow
def test_attention_maps_match_hugging_face():
    golden = golden_data.load("hf_vit_io")
    model = checkpoints.model_from_checkpoint(
        golden_data.path("hf_vit.safetensors"), config=golden_data.path("hf_vit_config.json")
    )
    maps = inspection.attention_maps(model, golden["image"])
    assert list(maps) == ["encoderblock_0", "encoderblock_1"]
    for index, weights in enumerate(maps.values()):
        # float32 softmax of another library: a few units in the last place of numbers up to 1
        np.testing.assert_allclose(weights, golden[f"attention_{index}"], atol=2e-6)
    assert maps.layout == inspection.TokenLayout((4, 4), 1, "tokens", (0,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", selection.cases(small.VARIANTS, ("token", "map", "registers", "hybrid", "relative", "bfloat16"))
)
def test_attention_maps_of_every_variant_sum_to_one(name):
    model, images = small.shared(name), small.images()
    prefix = small.PREFIX.get(name, 1)
    tokens = prefix + 12
    maps = inspection.attention_maps(model, images, batch_size=2)
    assert list(maps) == ["encoderblock_0", "encoderblock_1"] + ["MAPHead_0"] * (name == "map")
    assert (maps.layout.grid, maps.layout.num_prefix_tokens) == (small.GRID, prefix)
    for layer, weights in maps.items():
        assert weights.dtype == np.float32
        assert weights.shape == (3, 2, 1 if layer == "MAPHead_0" else tokens, tokens)
        # bfloat16 keeps 8 bits: 14 weights of about 1/14 are each off by up to 1/256 of themselves
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-2 if name == "bfloat16" else 1e-5)
    for grid in maps.grids().values():
        assert grid.shape == (3, 2, *small.GRID)
    rollout = inspection.attention_rollout(maps)
    assert rollout.shape == (3, tokens, tokens)
    assert maps.output_grid(rollout).shape == (3, *small.GRID)


@pytest.mark.slow
def test_grids_contain_the_attention_of_the_tokens_read_by_the_output():
    token, gap, deit, registers = (small.maps(name) for name in ("token", "gap", "deit", "registers"))
    weights = token["encoderblock_1"]
    np.testing.assert_array_equal(token.grids()["encoderblock_1"], weights[:, :, 0, 1:].reshape(3, 2, 4, 3))
    weights = gap["encoderblock_1"]
    np.testing.assert_allclose(gap.grids()["encoderblock_1"], weights.mean(2).reshape(3, 2, 4, 3), rtol=1e-6)
    weights = deit["encoderblock_1"]
    np.testing.assert_allclose(
        deit.grids()["encoderblock_1"], weights[:, :, :2, 2:].mean(2).reshape(3, 2, 4, 3), rtol=1e-6
    )
    weights = registers["encoderblock_1"]
    np.testing.assert_array_equal(registers.grids()["encoderblock_1"], weights[:, :, 0, 3:].reshape(3, 2, 4, 3))
    everything = small.maps("mean_of_all")
    weights = everything["encoderblock_1"]
    np.testing.assert_allclose(
        everything.grids()["encoderblock_1"], weights[..., 3:].mean(2).reshape(3, 2, 4, 3), rtol=1e-6
    )
    pooled = small.maps("map")
    rollout = inspection.attention_rollout(pooled)
    probe = pooled["MAPHead_0"].mean(1)  # [B, 1, N]
    np.testing.assert_allclose(pooled.output_grid(rollout), (probe @ rollout).reshape(3, 4, 3), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["token", "gap", "map", "deit", "mean_of_all"])
def test_maps_of_a_page_match_the_functions(name):
    model, images = small.model(**small.VARIANTS[name]), small.images(1)
    maps = inspection.attention_maps(model, images)
    example = examples.Example("a", np.zeros((*small.SIZE, 3), np.uint8), images[0])
    (card,), views = cards.image_cards([example], None, (), model)
    assert [view.key for view in views] == ["rollout", "layers"]
    assert [frame.partition(": ")[2] for frame in views[1].frames] == list(maps)
    np.testing.assert_allclose(card.maps["layers"][:, 1:], np.concatenate(list(maps.grids().values())), rtol=1e-5)
    np.testing.assert_allclose(card.maps["layers"][:, 0], card.maps["layers"][:, 1:].mean(axis=1), rtol=1e-5)
    for depth in range(1, 3):
        rollout = inspection.attention_rollout(list(maps.blocks().values())[:depth])
        expected = maps.layout.to_grid(maps.layout.output_row(rollout))
        np.testing.assert_allclose(card.maps["rollout"][depth - 1], expected, rtol=1e-5)
    whole = maps.output_grid(inspection.attention_rollout(maps))
    np.testing.assert_allclose(card.maps["rollout"][-1], whole, rtol=1e-5)


@pytest.mark.slow
def test_the_model_is_not_changed():
    model, images = small.model(), small.images()
    before = model(images)
    block = model.get_layer("encoderblock_0")
    nodes, weights = len(block._inbound_nodes), [id(v) for v in model.variables]
    inspection.attention_maps(model, images)
    inspection.gradient_attention(model, images)
    inspection.layer_features(model, images)
    assert (len(block._inbound_nodes), [id(v) for v in model.variables]) == (nodes, weights)
    np.testing.assert_array_equal(model(images), before)


@pytest.mark.slow
def test_wrapped_models_have_the_maps_of_the_inner_model():
    inner, images = small.model(), small.images()
    expected = inspection.attention_maps(inner, images)
    inputs = keras.Input((*small.SIZE, 3))
    functional = keras.Model(inputs, keras.layers.Dense(2)(inner(keras.layers.Rescaling(1.0)(inputs))))
    sequential = keras.Sequential([keras.layers.Dropout(0.9), inner, keras.layers.Dense(2)])
    inner.trainable = False
    for outer in (functional, sequential, keras.Sequential([sequential])):
        maps = inspection.attention_maps(outer, images)
        assert maps.layout == expected.layout
        for name in expected:
            np.testing.assert_array_equal(maps[name], expected[name])
    body = keras.Model(inner.inputs, inner.get_layer("encoderblock_1").output)
    np.testing.assert_array_equal(inspection.attention_maps(body, images)["encoderblock_1"], expected["encoderblock_1"])


class Flipped(keras.layers.Layer):
    """A layer of a user, which has no argument `training` for the layer inside it."""

    def __init__(self):
        super().__init__()
        self.flip = keras.layers.RandomFlip("horizontal_and_vertical")

    def call(self, x):
        return self.flip(x)


@pytest.mark.slow
def test_augmentation_layers_are_inactive():
    inner, images = small.model(num_layers=1), small.images()
    inputs, tensor = keras.Input((*small.SIZE, 3)), keras.Input((*small.SIZE, 3))
    drop_always = keras.Model(tensor, keras.layers.Dropout(0.9)(tensor, training=True))
    nested = keras.Sequential([keras.Sequential([Flipped()]), drop_always])
    outer = keras.Model(inputs, inner(nested(keras.layers.RandomBrightness(0.5, (-1, 1))(inputs))))
    np.testing.assert_array_equal(outer(images, training=False), inner(images))
    for function, arguments in {
        inspection.attention_maps: (),
        inspection.layer_features: (),
        inspection.gradient_attention: (2,),
        inspection.attention_distance: (),
    }.items():
        found, expected = (
            dict(enumerate(one)) if hasattr(one, "shape") else one
            for one in (function(model, images, *arguments) for model in (outer, inner))
        )
        for name in expected:
            np.testing.assert_array_equal(found[name], expected[name])
    expected = inspection.occlusion_sensitivity(lambda batch: np.asarray(inner(batch)), images[0], 2, grid=2)
    np.testing.assert_array_equal(inspection.occlusion_sensitivity(outer, images[0], 2, grid=2), expected)


@pytest.mark.slow
def test_maps_of_an_ensemble_are_named_by_model():
    first, second = small.model(seed=1, name="one"), small.model(seed=2, name="two")
    inputs = keras.Input((*small.SIZE, 3))
    ensemble = keras.Model(inputs, keras.layers.Average()([first(inputs), second(inputs)]))
    maps = inspection.attention_maps(ensemble, small.images())
    assert sorted(maps) == ["encoderblock_0", "encoderblock_0#2", "encoderblock_1", "encoderblock_1#2"]


@pytest.mark.slow
def test_attention_maps_have_the_grid_of_another_image_size():
    model = small.shared("any_size")
    maps = inspection.attention_maps(model, small.images(size=(16, 48)))
    assert maps.layout.grid == (2, 6)


class Wrapper(keras.Model):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def call(self, x):
        return self.backbone(x)


@pytest.mark.slow
def test_wrong_models_and_images_are_refused():
    model, images = small.model(), small.images()
    with pytest.raises(ValueError, match="BiT is a ResNet.*layer_features, cka and occlusion_sensitivity"):
        inspection.attention_maps(models.BiTResNet((1,), image_size=32, classes=2), images)
    with pytest.raises(ValueError, match="has its own `call`.*Pass the model inside of it, 'vision_transformer"):
        inspection.attention_maps(Wrapper(model), images)
    inputs = [keras.Input((*small.SIZE, 3)), keras.Input((1,))]
    with pytest.raises(ValueError, match="takes 2 inputs. Pass the Vision Transformer inside"):
        inspection.attention_maps(keras.Model(inputs, model(inputs[0]) * inputs[1]), images)
    with pytest.raises(ValueError, match=r"floats in \[-1, 1\].*uint8.*images / 127.5 - 1"):
        inspection.attention_maps(model, np.zeros((1, *small.SIZE, 3), "uint8"))
    with pytest.raises(ValueError, match="must be a batch"):
        inspection.attention_maps(model, images[0])
    with pytest.raises(ValueError, match="takes images of shape"):
        inspection.attention_maps(model, images[:, :16])


class TestRollout:
    def test_rollout_of_two_layers_matches_hand_computation(self):
        # One image, one head, two tokens.
        first = np.array([[[[0.5, 0.5], [0.2, 0.8]]]])
        second = np.array([[[[0.4, 0.6], [1.0, 0.0]]]])
        # (A + I) / 2: [[.75, .25], [.1, .9]] and [[.7, .3], [.5, .5]]; their product, the second from the left:
        expected = [[[0.7 * 0.75 + 0.3 * 0.1, 0.7 * 0.25 + 0.3 * 0.9], [0.425, 0.575]]]
        np.testing.assert_allclose(inspection.attention_rollout([first, second]), expected, rtol=1e-6)
        np.testing.assert_allclose(
            inspection.attention_rollout({"a": first, "b": second}, residual=False), second[0] @ first[0], rtol=1e-6
        )

    @pytest.mark.parametrize(("fusion", "fused"), [("mean", [0.45, 0.55]), ("max", [0.8, 0.9]), ("min", [0.1, 0.2])])
    def test_attention_heads_are_fused_by_mean_max_and_min(self, fusion, fused):
        heads = np.array([[[[0.1, 0.9], [0.5, 0.5]], [[0.8, 0.2], [0.5, 0.5]]]])  # [1, 2, 2, 2]
        row = (np.array(fused) + [1, 0]) / (sum(fused) + 1)
        np.testing.assert_allclose(inspection.attention_rollout([heads], fusion)[0, 0], row, rtol=1e-6)

    def test_smallest_attention_weights_are_discarded(self):
        weights = np.array([[[[0.1, 0.9], [0.4, 0.6]]]])
        expected = [[[0.0, 1.0], [0.0, 1.0]]]  # of four weights the two smallest, .1 and .4, are gone
        np.testing.assert_allclose(inspection.attention_rollout([weights], discard_ratio=0.5, residual=False), expected)
        np.testing.assert_allclose(
            inspection.attention_rollout([weights], discard_ratio=0.5), [[[1 / 1.9, 0.9 / 1.9], [0, 1]]], rtol=1e-6
        )

    @pytest.mark.slow
    def test_rollout_rows_sum_to_one(self):
        maps = inspection.attention_maps(small.model(num_layers=5), small.images())
        rollout = inspection.attention_rollout(maps, "max", 0.4)
        np.testing.assert_allclose(rollout.sum(-1), 1, rtol=1e-5)
        assert rollout.min() >= 0

    def test_wrong_rollout_arguments_are_refused(self):
        with pytest.raises(ValueError, match="'mean', 'max', 'min'.*Received: head_fusion='median'"):
            inspection.attention_rollout([np.ones((1, 1, 2, 2))], "median")
        with pytest.raises(ValueError, match="discard_ratio"):
            inspection.attention_rollout([np.ones((1, 1, 2, 2))], discard_ratio=1.0)
        with pytest.raises(ValueError, match="at least one layer"):
            inspection.attention_rollout([])
