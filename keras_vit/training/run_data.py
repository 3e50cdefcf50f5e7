"""Training and evaluation batches of a run, which depend only on the recipe and the step."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from absl import logging

from keras_vit import recipe as recipes
from keras_vit import tasks
from keras_vit.data import Source, eval_batches, open_source, separation, splits, train_batches
from keras_vit.data.labels import check_masks
from keras_vit.training import distribute, teacher
from keras_vit.training.backend import Backend

_EVALUATION_SEED = 0x6576616C  # "eval": makes the masks of the evaluation independent of the training masks

SKIP_ADVICE = "Repair or remove it, or skip it with --config.data.on_bad_image=skip"  # for images that cannot be read


class RunData:
    """Training and evaluation split of a recipe.

    The constructor checks that the splits fit each other, the model, the devices and the teacher.

    Attributes:
        train: Source of the training split.
        eval: Source of the evaluation split.
        test: Source of the test split; None if the evaluation split is reported.
        channels: Channels of the images.
        task: The task, created from the training split.
        eval_batch_size: Examples per evaluation batch.
    """

    def __init__(self, recipe: recipes.Recipe, backend: Backend):
        data, replicas = recipe.data, backend.num_replicas
        self.recipe, self.backend = recipe, backend
        self.eval_batch_size = data.eval_batch_size or data.batch_size
        distribute.check_batch_size("data.batch_size", data.batch_size, replicas, recipe.optim.accumulation_steps)
        distribute.check_batch_size("data.eval_batch_size", self.eval_batch_size, replicas)
        self.train = open_source(data.source, split=data.train_split)
        self.eval = open_source(data.source, split=data.eval_split)
        self.test: Source | None = None
        if data.test_split and data.test_split != data.eval_split:
            self.test = open_source(data.source, split=data.test_split)
        for note in separation.about_same_images([self.train, self.eval, *filter(None, [self.test])]):
            logging.warning("%s: %s", data.source, note)
        self.channels = self._check_images()
        self.task = tasks.bind(recipe, self.train)
        if self.train.kind.has_masks:
            check_masks(self.train)

    def train_batches(self, step: int) -> Iterable[Any]:
        """Return the global batches on the devices, starting at a step."""
        data, seed = self.recipe.data, self.recipe.seed
        options: dict[str, Any] = {
            "batch_size": data.batch_size,
            "seed": seed,
            "start_step": step,
            "mixup": data.mixup,
            "cutmix": data.cutmix,
            "shuffle_buffer": data.shuffle_buffer,
        }
        batches = functools.partial(train_batches, self.train, data.pp_train, **options)
        return self._distributed(batches, seed)

    def eval_batches(self, split: Source) -> Iterable[Any]:
        """Return the global batches of one pass over a split on the devices."""
        pp, size = self.recipe.data.pp_eval, self.eval_batch_size
        batches = functools.partial(eval_batches, split, pp, batch_size=size)
        return self._distributed(batches, self.recipe.seed ^ _EVALUATION_SEED)

    def _distributed(self, batches: Callable, seed: int) -> Iterable[Any]:
        draw = self.task.draw
        return self.backend.distribute(
            lambda shard, shards: self.task.on_host(
                batches(
                    shard_index=shard,
                    num_shards=shards,
                    on_bad_image=self.recipe.data.on_bad_image,
                    draw=None if draw is None else functools.partial(draw, seed),
                )
            )
        )

    def summary(self) -> str:
        """Return the numbers of images, and which of them choose the best checkpoint and which are reported."""
        data, count = self.recipe.data, self.eval.num_examples
        text = f"{data.source}: {self.train.num_examples} to train on, {count} of {data.eval_split!r}"
        if data.test_split == data.eval_split:
            return f"{text} to report, read once at the end"
        cut = " (held out of the training images)" if splits.part_of(data.eval_split)[0] else ""
        text += f" to choose the best checkpoint{cut}"
        if self.test is None:
            return f"{text} and to report, so the report is optimistic (data.test_split names other images for it)"
        return f"{text}, {self.test.num_examples} of {data.test_split!r} to report, read once at the end"

    def describe(self) -> dict[str, Any]:
        """Return the description of the data for `config.json`."""
        return {
            "name": self.train.name,
            "class_names": list(self.train.class_names),
            "num_classes": self.train.num_classes,
            "num_train": self.train.num_examples,
            "num_eval": self.eval.num_examples,
            "label_kind": self.train.label_kind,
            "channels": self.channels,
            **({"workers": self.backend.num_workers} if self.train.shard_by == "files" else {}),
            **self.task.record(),
            **teacher.record(self.task),
        }

    def _check_images(self) -> int:
        """Check that both pipelines produce images of the model's size, and return the number of channels."""
        data, size = self.recipe.data, self.recipe.model.image_size
        kind, count = self.train.label_kind, self.train.num_outputs
        for name, split in ((data.eval_split, self.eval), (data.test_split, self.test)):
            if split is not None and (split.label_kind, split.num_outputs) != (kind, count):
                raise ValueError(
                    f"All splits must have the same labels. Received: {count} of the kind {kind!r} in "
                    f"{data.train_split!r}, {split.num_outputs} of the kind {split.label_kind!r} in {name!r}."
                )
        shapes = {
            "data.pp_train": train_batches(self.train, data.pp_train, batch_size=1).element_spec["image"].shape[1:],
            "data.pp_eval": eval_batches(self.eval, data.pp_eval, batch_size=1).element_spec["image"].shape[1:],
        }
        for name, (height, width, _) in shapes.items():
            if (height, width) != (size, size):
                raise ValueError(
                    f"{name} must return images of model.image_size={size} by {size}. It returns {height} by {width}. "
                    f"Change model.image_size, or end the preprocessing with an operation such as resize({size})."
                )
        train, evaluation = (channels for _, _, channels in shapes.values())
        if train != evaluation:
            raise ValueError(
                f"data.pp_train and data.pp_eval must return the same number of channels. Received: {train} and "
                f"{evaluation}."
            )
        return train
