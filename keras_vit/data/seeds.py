"""Random numbers that depend only on the seed of the run and the position of an example in the training stream."""

import hashlib

import tensorflow as tf


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
