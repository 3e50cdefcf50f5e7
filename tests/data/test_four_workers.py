"""The order of examples on four workers: every example once per epoch, exact resuming, and a changed number of workers.

The items of a pipeline determine its examples, so no image is decoded.
"""

import pytest

from keras_vit import data
from keras_vit.data.sources import Rows
from tests.data import test_parquet, test_webdataset
from tests.data.test_tfrecord import write_indexed, write_numbered

EXAMPLES, BATCH = 24, 8
STEPS = 2 * EXAMPLES // BATCH  # two epochs


def open_source(kind, root):
    kind, _, shard_by = kind.partition(" by ")
    shards = [range(first, first + 6) for first in range(0, EXAMPLES, 6)]
    if kind == "tfrecord":
        write_numbered(root, [6, 6, 6, 6])
        return data.open_source(f"tfrecord:{root}", num_classes=10, shard_by=shard_by)
    if kind == "tfrecord with indices":
        write_indexed(root, [6, 6, 6, 6])
        return data.open_source(f"tfrecord:{root}", num_classes=10)
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="pip install 'keras-vision-transformers[parquet]'")
        for number, shard in enumerate(shards):
            test_parquet.write(root / f"train-{number}.parquet", shard, group=3)
        return data.open_source(f"parquet:{root}", shard_by=shard_by)
    for number, shard in enumerate(shards):
        test_webdataset.write(root / f"train-{number}.tar", shard)
    return data.open_source(f"webdataset:{root}")


def order(source, worker, workers, start=0):
    """The examples of a worker from a step on, `[steps, rows]`; an example is the values that identify it."""
    count = BATCH // workers
    items = source.train_items(Rows(BATCH, worker * count, count), 5, start, 10).take(STEPS - start)
    keys = (*source.keys, "position")
    return [list(zip(*(item[key].tolist() for key in keys), strict=True)) for item in items.as_numpy_iterator()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["tfrecord by rows", "tfrecord by files", "tfrecord with indices", "parquet by files", "tar"]
)
def test_four_workers_read_every_example_once_per_epoch(kind, tmp_path):
    source, half = open_source(kind, tmp_path), STEPS // 2
    workers = [order(source, worker, 4) for worker in range(4)]
    batches = [sum(parts, []) for parts in zip(*workers, strict=True)]
    epochs = [sum(batches[:half], []), sum(batches[half:], [])]
    for epoch in epochs:
        assert len({example[:-1] for example in epoch}) == EXAMPLES == len(epoch)
    assert [position for *_, position in sum(epochs, [])] == list(range(2 * EXAMPLES))
    assert [example[:-1] for example in epochs[0]] != [example[:-1] for example in epochs[1]]
    start = half + 1
    assert [order(source, worker, 4, start) for worker in range(4)] == [steps[start:] for steps in workers]
    pair = [order(source, worker, 2, start) for worker in range(2)]
    same = [sum(parts, []) for parts in zip(*pair, strict=True)] == batches[start:]
    assert same == (not kind.endswith("files"))  # with separate files, the order depends on the number of workers
