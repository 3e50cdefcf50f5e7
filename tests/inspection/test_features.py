import keras
import numpy as np
import pytest

from keras_vit import inspection, models
from tests.inspection import small


@pytest.mark.slow
def test_features_of_every_block_are_returned_by_default():
    model, images = small.shared(), small.images()
    found = inspection.layer_features(model, images, batch_size=2)
    assert list(found) == ["encoderblock_0", "encoderblock_1"]
    for name, values in found.items():
        expected = keras.Model(model.inputs[0], model.get_layer(name).output)(images)
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)  # batches of other sizes


@pytest.mark.slow
def test_features_of_named_layers_are_returned():
    model, images = small.model(representation_size=5), small.images()
    found = inspection.layer_features(model, images, ["pre_logits", "encoder_norm", "head"])
    assert [values.shape for values in found.values()] == [(3, 13, 16), (3, 5), (3, small.CLASSES)]
    # The model alone computes only the class token in its last block: matrix products of other shapes.
    np.testing.assert_allclose(found["head"], model(images), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="no layer 'encoderblok_1'. Did you mean 'encoderblock_1'"):
        inspection.layer_features(model, images, ["encoderblok_1"])


@pytest.mark.slow
def test_features_of_hybrids_and_resnets_are_returned_per_stage():
    found = inspection.layer_features(small.shared("hybrid"), small.images())
    assert list(found) == ["block1", "block2", "encoderblock_0", "encoderblock_1"]
    bit = models.BiTResNet((1, 1), image_size=32, classes=2)
    found = inspection.layer_features(bit, small.images(2, size=(32, 32)))
    assert {name: values.shape for name, values in found.items()} == {
        "block1": (2, 8, 8, 256),
        "block2": (2, 4, 4, 512),
    }
    with pytest.raises(ValueError, match="No encoder block"):
        inspection.layer_features(
            keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten()]), np.zeros((1, 4, 4, 1))
        )


@pytest.mark.parametrize("unbiased", [False, True])
class TestCKA:
    def features(self, seed, width=6, count=20):
        return np.random.default_rng(seed).normal(size=(count, width)) + 3.0

    def test_cka_of_equal_features_is_one(self, unbiased):
        assert inspection.cka(self.features(0), self.features(0), unbiased) == pytest.approx(1)

    def test_cka_is_invariant_to_rotation_scale_and_shift(self, unbiased):
        x, y = self.features(0), self.features(1, width=4)
        rotation = np.linalg.qr(self.features(2, width=6, count=6))[0]
        expected = inspection.cka(x, y, unbiased)
        assert inspection.cka(-2.5 * x @ rotation + 7.0, y, unbiased) == pytest.approx(expected)
        assert inspection.cka(y, x, unbiased) == pytest.approx(expected)

    def test_cka_flattens_features(self, unbiased):
        x, y = self.features(0), self.features(1)
        assert inspection.cka(x.reshape(20, 2, 3), y, unbiased) == pytest.approx(inspection.cka(x, y, unbiased))

    def test_cka_of_wrong_features_is_refused(self, unbiased):
        with pytest.raises(ValueError, match="20 and 19 examples"):
            inspection.cka(self.features(0), self.features(0)[:-1], unbiased)
        fewest = 4 if unbiased else 2
        assert inspection.cka(*[self.features(0, count=fewest)] * 2, unbiased) == pytest.approx(1)
        with pytest.raises(ValueError, match=f"at least {fewest}. Received: {fewest - 1} and"):
            inspection.cka(*[self.features(0, count=fewest - 1)] * 2, unbiased)


def test_cka_matches_its_definition():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 4)), rng.normal(size=(9, 3))
    a, b = x - x.mean(0), y - y.mean(0)
    expected = np.linalg.norm(b.T @ a) ** 2 / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b)
    assert inspection.cka(x, y) == pytest.approx(expected)


def test_unbiased_estimate_of_unrelated_features_is_zero_on_average():
    rng = np.random.default_rng(0)
    draws = [
        [inspection.cka(rng.normal(size=(8, 30)), rng.normal(size=(8, 30)), u) for u in (False, True)]
        for _ in range(200)
    ]
    biased, unbiased = np.mean(draws, axis=0)
    assert biased > 0.5  # far fewer examples than features
    assert abs(unbiased) < 0.05  # 200 draws of deviation 0.2 or so: a standard error of 0.015


@pytest.mark.slow
def test_layer_similarity_compares_the_layers_of_two_models():
    first, second, images = small.model(seed=1), small.model(seed=2, num_layers=3), small.images(12)
    own = inspection.layer_similarity(first, first, images, batch_size=6)
    assert own.layers == own.other_layers == ("encoderblock_0", "encoderblock_1")
    np.testing.assert_allclose(np.diag(own.values), 1, rtol=1e-5)
    np.testing.assert_allclose(own.values, own.values.T, rtol=1e-5)
    both = inspection.layer_similarity(first, second, images, batch_size=12)
    assert both.values.shape == (2, 3)
    x = inspection.layer_features(first, images)["encoderblock_1"]
    y = inspection.layer_features(second, images)["encoderblock_2"]
    assert both.values[1, 2] == pytest.approx(inspection.cka(x, y, unbiased=True), rel=1e-4)


@pytest.mark.slow
def test_layer_similarity_compares_models_of_two_image_sizes():
    first, second = small.shared(), small.model(image_size=16)
    images, smaller = small.images(5), small.images(5, size=(16, 16))
    assert inspection.layer_similarity(first, second, images, smaller).values.shape == (2, 2)
    with pytest.raises(ValueError, match="other_images"):
        inspection.layer_similarity(first, second, images, smaller[:4])
    with pytest.raises(ValueError, match="at least 4 images"):
        inspection.layer_similarity(first, first, images[:3])
    four = inspection.layer_similarity(first, first, images[:4]).values
    # One image is left over: for a batch of one, the estimate is undefined.
    np.testing.assert_allclose(inspection.layer_similarity(first, first, images, batch_size=4).values, four, rtol=1e-6)


class TestOcclusion:
    def test_occlusion_finds_the_relevant_patches(self):
        def predict(images):
            return np.stack([images[:, 2:4, 6:8].mean(axis=(1, 2, 3)), images[:, 0, 0, 0]], axis=1)

        image = np.full((8, 12, 1), 0.5, "float32")
        image[2:4, 6:8] = 1.0
        expected = np.zeros((4, 6))
        expected[1, 3] = 1.0
        np.testing.assert_array_equal(inspection.occlusion_sensitivity(predict, image, grid=(4, 6)), expected)
        expected = np.zeros((4, 6))
        expected[0, 0] = 0.5
        found = inspection.occlusion_sensitivity(predict, image, class_index=1, grid=(4, 6), batch_size=5)
        np.testing.assert_array_equal(found, expected)

    def test_occlusion_grid_is_not_finer_than_the_image(self):
        found = inspection.occlusion_sensitivity(lambda x: x.reshape(len(x), -1), np.ones((2, 3, 1)), 0, grid=8)
        np.testing.assert_array_equal(found, [[1, 0, 0], [0, 0, 0]])

    def test_occluded_pixels_have_the_fill_value(self):
        found = inspection.occlusion_sensitivity(lambda x: x.reshape(len(x), -1), np.ones((1, 2, 1)), 0, fill=0.25)
        np.testing.assert_array_equal(found, [[0.75, 0.0]])

    def test_wrong_occlusion_arguments_are_refused(self):
        with pytest.raises(ValueError, match="must be one image"):
            inspection.occlusion_sensitivity(lambda x: x, np.ones((1, 2, 3, 1)))
