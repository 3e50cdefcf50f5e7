"""Train a model from a recipe.

    keras-vit train folder:images
    keras-vit train folder:images --model=ViT_S16 --weights=augreg-224 --image_size=224 --epochs=20
    keras-vit train folder:images --model=hf:facebook/dinov2-small --time=20m
    keras-vit train --config=digits --workdir=runs/digits --steps=200 --batch_size=32 --learning_rate=1e-3
    keras-vit train --config=my_recipe.py --workdir=runs/mine --seed=1 --config.optim.weight_decay=0.03

For a data set without a recipe, the program uses the recipe `folder`. This recipe fine-tunes published weights. The
program chooses its settings for the images, the model and the machine, and logs them in six lines. Weights are
downloaded once, and their size and hash are compared with the server's values. --model, --weights and
--image_size set all fields of the recipe that depend on them. --model with a pretrained model (a name on the Hugging
Face hub, or a checkpoint file) sets the variant, the weights, the image size and the normalization of the pixels.
--adapt=lora, head, bias or last(4) trains a part of the weights. --epochs, --steps or --time sets the length of the
training. Any other field of the recipe is set with --config.FIELD=VALUE. In Python: `keras_vit.fine_tune`.

The run directory contains config.json, data.json, metrics.jsonl, tensorboard/, checkpoints/, model.keras and
report.png; with --adapt=lora also adapter/, which keras_vit.load_adapter and peft read.
If you start the program again with the same run directory, it resumes from the last checkpoint. Changes of the data,
and of fields of the recipe that affect the trained weights, are errors. With --change_recipe, the program resumes
despite such changes and keeps the old record. The exit codes are listed in `keras_vit.cli`. After exit code 75, the
state is saved: start the program again.

With KERAS_BACKEND=jax, the program trains the same recipes on JAX (--distribute=data_parallel or fsdp).
"""

from collections.abc import Sequence

from absl import flags

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_written_flag("workdir", "Run directory, by default runs/NAME. A stopped run is resumed.")
common_flags.define_recipe_flags()
common_flags.define_distribution_flags()
flags.DEFINE_bool("change_recipe", False, "Resume even if the recipe or the data of the run have changed.")
flags.DEFINE_bool("profile", False, "Write a profile of a few steps for TensorBoard.")
flags.DEFINE_multi_enum(
    "track", ["tensorboard"], ["tensorboard", "wandb", "mlflow"], "Tracker of the metrics. May be repeated."
)
flags.DEFINE_bool("multi_host", False, "On JAX: train with the other hosts of this TPU pod or cluster job.")

with cli.imports(__name__):
    from keras_vit.training import train


def main(argv: Sequence[str]) -> None:
    options = flags.FLAGS
    workdir = options.workdir or cli.default_workdir(argv[1:])
    train.train(
        cli.recipe_from_flags(argv[1:], workdir),
        workdir,
        distribute=options.distribute,
        tpu=options.tpu,
        virtual_devices=options.virtual_devices,
        multi_host=options.multi_host,
        change_recipe=options.change_recipe,
        profile=options.profile,
        track=options.track,
    )


if __name__ == "__main__":
    cli.run(main)
