"""Train a model as a recipe says.

    keras-vit train folder:images
    keras-vit train folder:images --model=ViT_S16 --weights=augreg-224 --image_size=224
    keras-vit train folder:images --model=hf:facebook/dinov2-small --time=20m
    keras-vit train --config=digits --workdir=runs/digits
    keras-vit train --config=my_recipe.py --workdir=runs/mine --config.total_steps=200 --config.seed=1

A data set without a recipe is trained with the recipe `folder`, which fine-tunes published weights with settings that
follow from the images, the model and the machine: six lines name them. Weights are downloaded once, and their size and
hash are compared with those that their server states. --model, --weights and --image_size set all fields of the recipe
that follow from them. --model with a checkpoint (a name on the Hugging Face hub, or a path) sets the variant, the
weights, the image size and the normalization of the pixels. --adapt=lora, head, bias or last(4) trains a part of the
weights. --time=20m sets the number of steps. In Python: `keras_vit.fine_tune`.

Leaves in the run directory: config.json, data.json, metrics.jsonl, tensorboard/, checkpoints/, model.keras, report.png;
with --adapt=lora also adapter/, which keras_vit.load_adapter and peft read.
Started again with the same run directory, it resumes from its last checkpoint. A directory that another recipe has
trained in is refused, unless only fields differ that do not decide what is learned, and so is one whose data have
changed; --change_recipe continues from its last checkpoint and keeps the old record. Exit codes are those of
`keras_vit.program`; 75 means: stopped on request after saving, start again.

Under KERAS_BACKEND=jax it trains the same recipes on JAX (--distribute=data_parallel or fsdp).
"""

from collections.abc import Sequence

from absl import flags

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_recipe_flags()
common_flags.define_distribution_flags()
common_flags.define_written_flag("workdir", "Run directory; a stopped run there is resumed. runs/NAME if not given.")
flags.DEFINE_bool("change_recipe", False, "Resume even if the recipe of the run was another one.")
flags.DEFINE_bool("profile", False, "Write a profile of a few steps for TensorBoard.")
flags.DEFINE_multi_enum(
    "track", ["tensorboard"], ["tensorboard", "wandb", "mlflow"], "Program that draws the metrics. May be repeated."
)
flags.DEFINE_bool("several_hosts", False, "On JAX: train with the other hosts of this TPU pod or cluster job.")

with program.imports(__name__):
    from keras_vit.tuning import train


def main(argv: Sequence[str]) -> None:
    options = flags.FLAGS
    workdir = options.workdir or program.default_workdir(argv[1:])
    train.train(
        program.recipe_from_flags(argv[1:], workdir),
        workdir,
        distribute=options.distribute,
        tpu=options.tpu,
        virtual_devices=options.virtual_devices,
        several_hosts=options.several_hosts,
        change_recipe=options.change_recipe,
        profile=options.profile,
        track=options.track,
    )


if __name__ == "__main__":
    program.run(main)
