"""Train a model as a recipe says.

    python -m train.main --config=train/configs/digits.py --workdir=runs/digits
    python -m train.main --config=train/configs/digits.py --workdir=W --config.total_steps=200 --config.seed=1

Leaves in the working directory: config.json, metrics.jsonl, tensorboard/, checkpoints/, model.keras and report.png.
Started again with the same working directory, it resumes from its last checkpoint. A directory that another recipe has
trained in is refused, unless only fields differ that do not decide what is learned; --change_recipe continues from its
last checkpoint with the new recipe and keeps the old record. Exit codes are those of `keras_vit.program`; 75 means:
stopped on request after saving, start again.

Under KERAS_BACKEND=jax it trains the same recipes on JAX (--distribute=data_parallel or fsdp).
"""

import contextlib
import os

import keras
from absl import flags, logging

import keras_vit.checkpoints as checkpoints_of_the_field
from keras_vit import distribute, evaluators, program
from keras_vit import recipe as recipes
from keras_vit.data import eval_batches, open_source, train_batches
from keras_vit.inference import FunctionClassifier, ModelCard
from keras_vit.inspection import plots
from keras_vit.training import engine as engines
from keras_vit.training import errors, inputs, lock, preemption, record, report, run_directory
from keras_vit.training.progress import read_metrics

program.define_config_flag()
program.define_distribution_flags()
flags.DEFINE_string("workdir", None, "Directory for all files of the run; a stopped run there is resumed.")
flags.DEFINE_bool("change_recipe", False, "Resume even if the recipe of the run was another one.")
flags.DEFINE_bool("profile", False, "Write a profile of a few steps for TensorBoard.")
flags.DEFINE_bool("several_hosts", False, "On JAX: train with the other hosts of this TPU pod or cluster job.")


def main(argv):
    del argv
    recipe = program.recipe_from_flags()
    workdir = flags.FLAGS.workdir
    if not workdir:
        raise ValueError("--workdir is missing: the directory for all files of the run.")
    engine, options = engines.of_backend(), flags.FLAGS
    with preemption.StopRequest() as stop:
        strategy = engine.create_strategy(
            recipe, options.distribute, options.tpu, options.virtual_devices, options.several_hosts
        )
        with lock.locked(workdir) if engine.is_chief(strategy) else contextlib.nullcontext():
            train(recipe, workdir, engine, strategy, stop)


def train(recipe: recipes.Recipe, workdir: str, engine, strategy, stop: preemption.StopRequest) -> None:
    """Train to the end of the recipe, from the last checkpoint in the working directory if there is one."""
    if recipe.deterministic:
        keras.utils.set_random_seed(recipe.seed)
        engine.make_deterministic(strategy)
    chief = engine.is_chief(strategy)
    data, optim = recipe.data, recipe.optim
    distribute.check_batch_size("data.batch_size", data.batch_size, strategy, optim.accumulation_steps)
    eval_batch_size = data.eval_batch_size or data.batch_size
    distribute.check_batch_size("data.eval_batch_size", eval_batch_size, strategy)
    logging.info("%s; %s", engine.describe(strategy), recipe.precision)

    # Data: the batches of a step depend on the recipe and the step alone
    train_source = open_source(data.source, split=data.train_split)
    eval_source = open_source(data.source, split=data.eval_split)
    classes = train_source.num_classes
    logging.info("%s: %d to train on, %d to evaluate", data.source, train_source.num_examples, eval_source.num_examples)
    about_data = {
        "name": train_source.name,
        "class_names": list(train_source.class_names),
        "num_classes": classes,
        "num_train": train_source.num_examples,
        "num_eval": eval_source.num_examples,
        "multi_label": train_source.multi_label,
    }
    record.check(workdir, recipe, about_data, flags.FLAGS.change_recipe)

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

        return engine.batches(strategy, of_worker)

    def eval_batches_of_worker(shard, shards):
        return eval_batches(
            eval_source,
            data.pp_eval,
            batch_size=eval_batch_size,
            shard_index=shard,
            num_shards=shards,
            on_bad_image=data.on_bad_image,
        )

    # Model, and everything else that a checkpoint holds
    channels = inputs.check_images(recipe, train_source, eval_source)
    state = engine.create_state(recipe, classes, channels, strategy)
    model = state.model
    store = engine.CheckpointStore(
        state.variables(), os.path.join(workdir, run_directory.CHECKPOINTS), recipe.keep_checkpoints, writes=chief
    )
    step = store.restore()
    if step is not None:
        logging.info("Resuming from the checkpoint of step %d", step)
    elif recipe.model.checkpoint:
        checkpoints_of_the_field.load_checkpoint(model, recipe.model.checkpoint, head=recipe.model.head)
        state.reset_averages()
    logging.info("%s: %s weights", recipe.model.variant, f"{model.count_params():,}")

    # Training
    evaluation = engine.Evaluation(
        state,
        recipe,
        strategy,
        engine.batches(strategy, eval_batches_of_worker),
        inputs.evaluation_inputs(recipe, classes),
        classes,
        multi_label=train_source.multi_label,
    )
    if chief:
        run_directory.write_config(workdir, recipe, about_data, step)
    scheduled = None
    if recipe.evaluators:
        forward = engine.Forward(state, strategy)
        scheduled = scheduled_evaluators(recipe, forward, eval_batch_size, train_source.class_names)
    loop = engine.Loop(
        recipe,
        strategy,
        state,
        engine.create_step(state, recipe, classes, strategy),
        batches_from,
        evaluation,
        store,
        directory=workdir if chief else None,
        profile=flags.FLAGS.profile,
        evaluators=scheduled,
    )
    results = loop.run(stop)

    # What is left behind
    state.use_averages()
    if chief:
        run_directory.save_model(model, workdir)
        draw_figure(recipe, workdir, evaluation, train_source.class_names, results)
        logging.info("%s", report.report_text(workdir, results, evaluation, train_source.class_names))
        if scheduled and scheduled.last:
            logging.info("\n%s", evaluators.report.table(scheduled.last))
    if scheduled and scheduled.failed:
        raise errors.EvaluatorFailed(
            f"The training is done and its model saved, but evaluators failed: {', '.join(scheduled.failed)}. The log "
            f"has their errors. Once they are mended: python -m train.evaluate --model={workdir} --evaluators=..."
        )


def scheduled_evaluators(recipe: recipes.Recipe, forward, batch_size, class_names) -> evaluators.Scheduled:
    """The evaluators of the recipe, on the weights as they are when one is due; opens all their data first."""
    card = ModelCard(tuple(class_names), recipe.data.pp_eval, recipe.loss, forward.state.model.input_shape[1:])
    context = evaluators.Context(
        FunctionClassifier(card, forward.predict, forward.features),
        evaluators.opener(batch_size, recipe.data.on_bad_image),
        recipe.data.source,
        recipe.data.train_split,
        recipe.data.eval_split,
    )
    return evaluators.Scheduled(evaluators.Suite(recipe.evaluators), context, recipe.total_steps, recipe.eval_every)


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
