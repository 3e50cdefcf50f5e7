"""Trains a model as a recipe says.

    python -m train.main --config=train/configs/digits.py --workdir=runs/digits
    python -m train.main --config=train/configs/digits.py --workdir=W --config.total_steps=200 --config.seed=1

Leaves in the working directory: config.json, metrics.jsonl, tensorboard/, checkpoints/, model.keras and report.png.
Started again with the same working directory, it goes on at the step of its last checkpoint. Exit codes are those of
`keras_vit.program`; 75 means: stopped on request after saving, start again.
"""

import os

import keras
import tensorflow as tf
from absl import flags, logging

import keras_vit.checkpoints as checkpoints_of_the_field
from keras_vit import distribute, evaluators, program
from keras_vit import recipe as recipes
from keras_vit.data import eval_batches, open_source, train_batches
from keras_vit.inspection import plots
from keras_vit.training import inputs, network, report, run_directory
from keras_vit.training.checkpoints import CheckpointStore
from keras_vit.training.evaluation import Evaluation
from keras_vit.training.forward import Forward
from keras_vit.training.loop import Loop
from keras_vit.training.progress import read_metrics
from keras_vit.training.state import TrainState
from keras_vit.training.step import TrainStep

program.define_config_flag()
program.define_distribution_flags()
flags.DEFINE_string("workdir", None, "Where everything is written; a stopped run there is resumed.")
flags.DEFINE_bool("profile", False, "Write a TensorFlow profile of a few steps for TensorBoard.")


def main(argv):
    del argv
    recipe = program.recipe_from_flags()
    workdir = flags.FLAGS.workdir
    if not workdir:
        raise ValueError("--workdir is missing: the directory for everything that the run writes.")

    # Devices
    strategy = distribute.create_strategy(flags.FLAGS.distribute, flags.FLAGS.tpu, flags.FLAGS.virtual_devices)
    if recipe.deterministic:
        keras.utils.set_random_seed(recipe.seed)
        tf.config.experimental.enable_op_determinism()
    chief = distribute.is_chief(strategy)
    data, optim = recipe.data, recipe.optim
    distribute.check_batch_size("data.batch_size", data.batch_size, strategy, optim.accumulation_steps)
    eval_batch_size = data.eval_batch_size or data.batch_size
    distribute.check_batch_size("data.eval_batch_size", eval_batch_size, strategy)
    logging.info("%s; %s", distribute.describe(strategy), recipe.precision)

    # Data: the batches of a step depend on the recipe and the step alone
    train_source = open_source(data.source, split=data.train_split)
    eval_source = open_source(data.source, split=data.eval_split)
    classes = train_source.num_classes
    logging.info("%s: %d to train on, %d to evaluate", data.source, train_source.num_examples, eval_source.num_examples)

    def batches_from(step):
        def of_worker(shard, shards):
            return train_batches(
                train_source,
                data.pp_train,
                batch_size=data.batch_size,
                seed=recipe.seed,
                start_step=step,
                shard_index=shard,
                num_shards=shards,
                mixup=data.mixup,
                cutmix=data.cutmix,
                shuffle_buffer=data.shuffle_buffer,
                on_bad_image=data.on_bad_image,
            )

        return distribute.distribute_batches(strategy, of_worker)

    def eval_batches_of_worker(shard, shards):
        return eval_batches(eval_source, data.pp_eval, batch_size=eval_batch_size, shard_index=shard, num_shards=shards)

    # Model, and everything else that a checkpoint holds
    channels = inputs.check_images(recipe, train_source, eval_source)
    with strategy.scope():
        model = network.create_network(recipe, classes, channels)
        state = TrainState(model, recipe)
    store = CheckpointStore(
        state.variables(), os.path.join(workdir, run_directory.CHECKPOINTS), recipe.keep_checkpoints, writes=chief
    )
    step = store.restore()
    if step is not None:
        logging.info("Going on from the checkpoint of step %d", step)
    elif recipe.model.checkpoint:
        checkpoints_of_the_field.load_checkpoint(model, recipe.model.checkpoint, head=recipe.model.head)
        state.reset_averages()
    logging.info("%s: %s weights", recipe.model.variant, f"{model.count_params():,}")

    # Training
    train_step = TrainStep(
        state,
        recipe,
        inputs.training_inputs(recipe, classes),
        data.batch_size,
        xla=distribute.use_xla(recipe.jit, strategy),
    )
    evaluation = Evaluation(
        state,
        recipe,
        strategy,
        distribute.distribute_batches(strategy, eval_batches_of_worker),
        inputs.evaluation_inputs(recipe, classes),
        classes,
        multi_label=train_source.multi_label,
    )
    if chief:
        os.makedirs(workdir, exist_ok=True)
        run_directory.write_config(
            workdir,
            recipe,
            {
                "name": train_source.name,
                "class_names": list(train_source.class_names),
                "num_classes": classes,
                "num_train": train_source.num_examples,
                "num_eval": eval_source.num_examples,
                "multi_label": train_source.multi_label,
            },
        )
    scheduled = None
    if recipe.evaluators:
        scheduled = scheduled_evaluators(recipe, state, strategy, eval_batch_size)
    loop = Loop(
        recipe,
        strategy,
        state,
        train_step,
        batches_from,
        evaluation,
        store,
        directory=workdir if chief else None,
        profile=flags.FLAGS.profile,
        evaluators=scheduled,
    )
    results = loop.run()

    # What is left behind
    if chief:
        state.use_averages()
        run_directory.save_model(model, workdir)
        draw_figure(recipe, workdir, evaluation, train_source.class_names, results)
        logging.info("%s", report.report_text(workdir, results, evaluation, train_source.class_names))
        if scheduled and scheduled.last:
            logging.info("\n%s", evaluators.report.table(scheduled.last))


def scheduled_evaluators(recipe: recipes.Recipe, state, strategy, batch_size) -> evaluators.Scheduled:
    """The evaluators of the recipe, on the weights as they are when one is due; opens all their data first."""
    forward = Forward(state, strategy)
    open_split = evaluators.opener(batch_size)

    def subject():
        return evaluators.Subject(
            forward.predict,
            forward.features,
            open_split,
            recipe.data.source,
            recipe.data.train_split,
            recipe.data.eval_split,
            recipe.data.pp_eval,
            output=recipe.loss,
        )

    return evaluators.Scheduled(evaluators.Suite(recipe.evaluators), subject, recipe.total_steps, recipe.eval_every)


def draw_figure(recipe: recipes.Recipe, workdir, evaluation, class_names, results):
    """Draws report.png, or says what to install for it."""
    examples = evaluation.examples
    shares = report.probabilities(examples["logits"], recipe.loss)
    labels = examples["label"]
    true_classes = labels if labels.ndim == 1 else labels.argmax(axis=-1)
    try:
        plots.draw_report(
            os.path.join(workdir, run_directory.REPORT),
            read_metrics(os.path.join(workdir, run_directory.METRICS)),
            examples["image"],
            [class_names[index] for index in true_classes],
            [class_names[index] for index in shares.argmax(axis=-1)],
            shares.max(axis=-1),
            title=f"{recipe.model.variant} on {recipe.data.source}: {results['eval_accuracy']:.2%}",
        )
    except ImportError as error:
        logging.warning("No %s: %s", run_directory.REPORT, error)


def run():
    program.run(main)


if __name__ == "__main__":
    run()
