"""Random choices that depend only on the seed of the run, and the step or the position of an example in the stream."""

import hashlib

import tensorflow as tf

MASKED, SWAPPED = 0.8, 0.1  # of the corrupted patches; the others are unchanged


def key(seed: int, *path: str | int) -> int:
    """Return a number below 2**63 for the stream of random numbers that `path` names.

    The number is the same on every machine.
    """
    text = "/".join(str(part) for part in (int(seed), *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def pair(stream: int, position: tf.Tensor) -> tf.Tensor:
    """Return the seed for `tf.random.stateless_*`, int64 `[2]`, of a stream and a position."""
    return tf.stack([tf.constant(stream, tf.int64), tf.cast(position, tf.int64)])


def permute(index: tf.Tensor, epoch: tf.Tensor, stream: int, size: int) -> tf.Tensor:
    """Permute `index`, int64 `[b]` in [0, size), with a different permutation for each `epoch`, int64 `[b]`.

    Every element is computed independently and nothing is stored, so that a run can resume at any step without delay.
    """
    if size == 1:
        return tf.zeros_like(index)
    # The op takes a seed of three words for each row. Mix them well: with the plain epoch as the seed, it only produces
    # 256 permutations. (The Python wrapper of the op does not support a seed for each row.)
    base = tf.cast(epoch, tf.uint64) * _uint64(0x9E3779B97F4A7C15) + _uint64(stream)
    words = [_mix(base + _uint64(word * 0x632BE59BD9B4E019)) for word in range(3)]
    seed = tf.stack([tf.cast(word, tf.int64) for word in words], axis=1)
    return tf.raw_ops.RandomIndexShuffle(index=index, seed=seed, max_index=tf.constant(size - 1, tf.int64), rounds=4)


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value % 2**64, tf.uint64)


def _mix(value: tf.Tensor) -> tf.Tensor:
    """Apply the output function of SplitMix64 (https://doi.org/10.1145/2714064.2660195)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, _uint64(shift))) * _uint64(factor)
    return tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, _uint64(31)))


def patch_orders(seed: int, step: tf.Tensor, batch_size: int, num_patches: int) -> tf.Tensor:
    """Return the patches of each image of the global batch in random order, int32 `[batch_size, num_patches]`."""
    noise = _uniform(seed, step, "order", [batch_size, num_patches])
    return tf.argsort(noise, axis=1, stable=True)


def patch_corruptions(
    seed: int, step: tf.Tensor, batch_size: int, num_patches: int, num_corrupted: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Choose `num_corrupted` patches to corrupt in each image of the global batch, and the kind of corruption.

    Returns two tensors `[batch_size, num_patches]`. The first, int32, is the index of the patch whose embedding each
    patch gets, or -1 for the mask token. The second, bool, is whether the patch is corrupted.

    References:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix B.1.2
    """
    shape = [batch_size, num_patches]
    positions = tf.argsort(patch_orders(seed, step, batch_size, num_patches), axis=1)
    corrupted = positions < num_corrupted
    own = tf.broadcast_to(tf.range(num_patches)[None], shape)
    offset = 1 + tf.cast(_uniform(seed, step, "other", shape) * float(num_patches - 1), tf.int32)
    other = (own + tf.minimum(offset, max(num_patches - 1, 1))) % num_patches
    kind = _uniform(seed, step, "kind", shape)
    changed = tf.where(kind < MASKED, -1, tf.where(kind < MASKED + SWAPPED, other, own))
    return tf.where(corrupted, changed, own), corrupted


def _uniform(seed: int, step: tf.Tensor, name: str, shape: list[int]) -> tf.Tensor:
    stream = pair(key(seed, "hidden", name), step)
    return tf.random.stateless_uniform(shape, stream, alg=tf.random.Algorithm.PHILOX)
