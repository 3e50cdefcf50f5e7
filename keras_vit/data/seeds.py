"""Random numbers that depend on nothing but the seed of the run and the place of an example in the training stream."""

import hashlib

import tensorflow as tf


def key(seed: int, *path: str | int) -> int:
    """A number below 2**63 that stands for one use (`path`) of the run's `seed`.

    Different uses get independent streams; the same arguments give the same number on every machine and version.

    Args:
        seed: the seed of the run.
        *path: what the numbers are for, e.g. `"augment", 3`.
    """
    text = "/".join(str(part) for part in (int(seed), *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def pair(stream: int, position: tf.Tensor) -> tf.Tensor:
    """The seed, int64 [2], that `tf.random.stateless_*` takes, for one `stream` and one position."""
    return tf.stack([tf.constant(stream, tf.int64), tf.cast(position, tf.int64)])


def permute(index: tf.Tensor, epoch: tf.Tensor, stream: int, size: int) -> tf.Tensor:
    """The place of each `index` in the permutation of `range(size)` that belongs to its `epoch`.

    Nothing is stored and any element can be asked for alone, so that a run resumes at any step at once.

    Args:
        index: int64 [b], each in [0, size).
        epoch: int64 [b], one permutation each.
        stream: see `key`.
        size: length of the permutation.

    Returns:
        int64 [b].
    """
    if size == 1:
        return tf.zeros_like(index)
    # The Python wrapper of this op rejects a seed for each row, which the op itself takes (three words a row).
    words = [stream & 0x7FFFFFFF, stream >> 31]
    seed = tf.stack([tf.fill(tf.shape(epoch), tf.constant(word, tf.int64)) for word in words] + [epoch], axis=1)
    return tf.raw_ops.RandomIndexShuffle(index=index, seed=seed, max_index=tf.constant(size - 1, tf.int64), rounds=4)
