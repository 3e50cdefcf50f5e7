import functools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from keras_vit.data import mix

B, H, W, CLASSES = 4, 10, 12, 5


def batch(dtype=tf.float32):
    images = tf.random.stateless_uniform([B, H, W, 3], [1, 2], -1.0, 1.0, dtype=tf.float32)
    labels = tf.one_hot([0, 1, 2, 4], CLASSES)
    return tf.cast(images, dtype), tf.cast(labels, dtype)


@functools.cache
def blending(compiled, **alphas):
    """Images, labels, shares and the seed of the box to the mixed images and labels."""
    return tf.function(
        lambda images, labels, lam, seed: mix.blend(
            images, labels, lam, tf.random.stateless_uniform([2], seed), **alphas
        ),
        jit_compile=compiled,
        autograph=False,
    )


def apply(lam, seed=(3, 4), compiled=False, dtype=tf.float32, **alphas):
    images, labels = batch(dtype)
    results = blending(compiled, **alphas)(
        images, labels, tf.fill([B], tf.constant(lam, tf.float32)), tf.constant(seed, tf.int32)
    )
    return [tf.cast(result, tf.float32).numpy() for result in results]


@pytest.mark.parametrize("compiled", [False, True])
def test_mixup_blends_images_and_labels(compiled):
    images, labels = (value.numpy() for value in batch())
    mixed, mixed_labels = apply(0.75, compiled=compiled, mixup=0.2)
    # Two products and a sum in float32.
    np.testing.assert_allclose(mixed, 0.75 * images + 0.25 * np.roll(images, 1, axis=0), atol=1e-6)
    np.testing.assert_allclose(mixed_labels, 0.75 * labels + 0.25 * np.roll(labels, 1, axis=0), atol=1e-6)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alphas", [{"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0}])
def test_cutmix_pastes_a_box_and_blends_labels(compiled, alphas):
    images, labels = (value.numpy() for value in batch())
    partner, shares = np.roll(images, 1, axis=0), []
    for seed in range(8):
        mixed, mixed_labels = apply(-0.6, seed=(seed, 0), compiled=compiled, **alphas)
        inside = (mixed == partner).all(-1)
        assert ((mixed == images).all(-1) | inside).all()  # every pixel is from one of the two
        assert (inside == inside[0]).all()  # at the same position in the whole batch
        rows, columns = np.flatnonzero(inside[0].any(1)), np.flatnonzero(inside[0].any(0))
        assert inside[0][rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        share = 1 - inside[0].mean()
        shares.append(share)
        # The labels tell the area that is really left.
        np.testing.assert_allclose(mixed_labels, share * labels + (1 - share) * np.roll(labels, 1, axis=0), atol=1e-6)
    # A box of 40%, rounded to pixels, and less where it was cut: by up to half of its height and of its width.
    assert min(shares) >= 0.6 - 0.1 and max(shares) <= 0.9 + 0.05
    assert abs(min(shares) - 0.6) < 0.1  # of eight boxes, one is hardly cut
    assert len(set(shares)) > 1


def test_mixup_and_cutmix_together_apply_one_of_the_two():
    """The sign decides which; a positive number mixes like mixup without CutMix."""
    for first, second in zip(apply(0.8, mixup=0.2, cutmix=1.0), apply(0.8, mixup=0.2), strict=True):
        np.testing.assert_allclose(first, second, atol=1e-6)


def test_types_are_kept_and_labels_sum_to_one():
    images, labels = batch(tf.bfloat16)
    mixed, mixed_labels = mix.blend(images, labels, tf.fill([B], -0.5), tf.constant([0.2, 0.7]), cutmix=1.0)
    assert mixed.dtype == mixed_labels.dtype == tf.bfloat16
    for lam in (0.9, -0.9, -1e-6, 1 - 1e-6):
        np.testing.assert_allclose(apply(lam, mixup=0.5, cutmix=0.5)[1].sum(-1), 1.0, atol=1e-6)


def test_shapes_are_static():
    function = tf.function(lambda i, lab, lam, center: mix.blend(i, lab, lam, center, 0.2, 1.0), autograph=False)
    specs = [tf.TensorSpec([B, H, W, 3]), tf.TensorSpec([B, CLASSES]), tf.TensorSpec([B]), tf.TensorSpec([2])]
    outputs = function.get_concrete_function(*specs).structured_outputs
    assert [output.shape.as_list() for output in outputs] == [[B, H, W, 3], [B, CLASSES]]


def draws(count, **alphas):
    steps = tf.data.Dataset.range(count).map(lambda step: mix.draw(7, step, **alphas))
    return next(steps.batch(count).as_numpy_iterator())


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 8.0])
def test_cutmix_shares_are_beta_distributed(alpha):
    shares = -draws(800, cutmix=alpha)
    assert ((shares > 0) & (shares < 1)).all()
    # Compared above the limits that keep the sign: there beta of 0.1 has much of its weight.
    inner = lambda x: np.clip(np.float32(x), 1e-5, 1 - 1e-5)  # noqa: E731
    expected = inner(scipy.stats.beta(alpha, alpha).rvs(20_000, random_state=0))
    assert scipy.stats.ks_2samp(inner(shares), expected).pvalue > 1e-3


@pytest.mark.slow
def test_mixup_takes_the_larger_share():
    shares = draws(400, mixup=0.2)
    assert (shares >= 0.5).all() and shares.max() > 0.99


@pytest.mark.slow
def test_mixup_and_cutmix_are_each_used_about_half_of_the_time():
    shares = draws(400, mixup=0.8, cutmix=1.0)
    assert 140 < (shares > 0).sum() < 260  # 6 standard deviations
    np.testing.assert_array_equal(shares, draws(400, mixup=0.8, cutmix=1.0))


def test_negative_parameters_are_refused():
    with pytest.raises(ValueError, match="mixup=-0.1"):
        mix.draw(0, tf.constant(0), mixup=-0.1)


@pytest.mark.parametrize("share", [0.36, 0.64, 0.84])
def test_cutmix_box_has_the_requested_area(share):
    """Its height and width are those of the image times the square root of the share ("CutMix", equation 2)."""
    images, labels = tf.zeros([2, 20, 30, 1]), tf.eye(2)
    images = tf.concat([images[:1], images[1:] + 1.0], axis=0)
    mixed, mixed_labels = mix.blend(images, labels, tf.fill([2], -(1.0 - share)), tf.constant([0.5, 0.5]), cutmix=1.0)
    inside = mixed.numpy()[0, :, :, 0] == 1
    height, width = 20 * share**0.5, 30 * share**0.5
    assert abs(inside.any(1).sum() - height) <= 1 and abs(inside.any(0).sum() - width) <= 1  # rounded to pixels
    assert mixed_labels.numpy()[0] == pytest.approx([1 - inside.mean(), inside.mean()])


def test_cutmix_box_is_centered_with_the_given_area():
    """A share of 3/4 leaves a box of half the height and width: 4 of 8 pixels, from 2 to 5, which the partner fills."""
    images = np.stack([np.zeros((8, 8, 1), "float32"), np.ones((8, 8, 1), "float32")])
    mixed, labels = mix.blend(images, np.eye(2, dtype="float32"), np.full(2, -0.75, "float32"), (0.5, 0.5), cutmix=1.0)
    rows, columns = np.nonzero(np.array(mixed)[0, :, :, 0])
    assert (set(rows), set(columns), len(rows)) == ({2, 3, 4, 5}, {2, 3, 4, 5}, 16)
    np.testing.assert_allclose(labels, [[0.75, 0.25], [0.25, 0.75]], rtol=1e-6)


def test_a_box_at_the_border_is_cut_and_labels_follow_its_area():
    images = np.stack([np.zeros((8, 8, 1), "float32"), np.ones((8, 8, 1), "float32")])
    mixed, labels = mix.blend(images, np.eye(2, dtype="float32"), np.full(2, -0.75, "float32"), (0.0, 0.99), cutmix=1.0)
    rows, columns = np.nonzero(np.array(mixed)[0, :, :, 0])
    assert (set(rows), set(columns)) == ({0, 1}, {5, 6, 7})
    np.testing.assert_allclose(labels[0], [1 - 6 / 64, 6 / 64], rtol=1e-6)
