"""Choice of the patches that pre-training hides, which depends only on the seed and the step.

Each function draws for the global batch, and every worker uses its rows.
"""

import tensorflow as tf

from keras_vit.data import seeds

MASKED, SWAPPED = 0.8, 0.1  # of the corrupted patches; the others are unchanged


def orders(seed: int, step: tf.Tensor, batch_size: int, num_patches: int) -> tf.Tensor:
    """Return the patches of each image of the global batch in random order, int32 `[batch_size, num_patches]`."""
    noise = _uniform(seed, step, "order", [batch_size, num_patches])
    return tf.argsort(noise, axis=1, stable=True)


def corruptions(
    seed: int, step: tf.Tensor, batch_size: int, num_patches: int, num_corrupted: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Choose `num_corrupted` patches to corrupt in each image of the global batch, and the kind of corruption.

    Returns two tensors `[batch_size, num_patches]`. The first, int32, is the index of the patch whose embedding each
    patch gets, or -1 for the mask token. The second, bool, is whether the patch is corrupted.

    References:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix B.1.2
    """
    shape = [batch_size, num_patches]
    places = tf.argsort(orders(seed, step, batch_size, num_patches), axis=1)
    corrupted = places < num_corrupted
    own = tf.broadcast_to(tf.range(num_patches)[None], shape)
    offset = 1 + tf.cast(_uniform(seed, step, "other", shape) * float(num_patches - 1), tf.int32)
    other = (own + tf.minimum(offset, max(num_patches - 1, 1))) % num_patches
    kind = _uniform(seed, step, "kind", shape)
    changed = tf.where(kind < MASKED, -1, tf.where(kind < MASKED + SWAPPED, other, own))
    return tf.where(corrupted, changed, own), corrupted


def _uniform(seed: int, step: tf.Tensor, name: str, shape: list[int]) -> tf.Tensor:
    stream = seeds.pair(seeds.key(seed, "hidden", name), step)
    return tf.random.stateless_uniform(shape, stream, alg=tf.random.Algorithm.PHILOX)
