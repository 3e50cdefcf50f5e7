"""The golden masked autoencoder and its training run, and ours set up in the same way."""

import numpy as np
import tensorflow as tf

from keras_vit import checkpoints, tasks
from keras_vit import recipe as recipes
from keras_vit.checkpoints.checkpoint import Layout
from keras_vit.checkpoints.families import mae
from keras_vit.checkpoints.rules import bind_stored
from keras_vit.training.tf.state import TrainState
from keras_vit.training.tf.step import TrainStep
from tests import golden_data
from tests.training.trajectories import error, strategy_on


def load():
    """The golden arrays with their description under "meta"."""
    return golden_data.load("mae_io")


def create_model(meta, mask_ratio=None):
    """The golden model, at its start."""
    return checkpoints.model_from_checkpoint(
        golden_data.path("mae.safetensors"),
        decoder=True,
        num_heads=meta["num_heads"],
        decoder_num_heads=meta["decoder_num_heads"],
        mask_ratio=mask_ratio or meta["traj"]["mask_ratio"],
    )


def to_order(noise):
    """Patches of each image by ascending noise, as the reference masks them."""
    return np.argsort(noise, axis=1, kind="stable").astype(np.int32)


def ratios(data):
    """The golden mask ratios by the prefix of their entries."""
    prefixes = sorted({name.split("/")[0] for name in data if name.startswith("ratio")})
    return {prefix: int(prefix.removeprefix("ratio")) / 100 for prefix in prefixes}


def to_variables(tensors, meta):
    """Arrays under the reference's names as arrays under the names of our variables."""
    rules = mae.rules(Layout("mae", decoder_heads=meta["decoder_num_heads"]))
    bindings, left_over = bind_stored(rules, tensors)
    assert not left_over
    found = {}
    for binding in bindings:
        arrays = binding.transform.read(tuple(tensors[name] for name in binding.stored), meta["num_heads"])
        found |= dict(zip(binding.variables, arrays, strict=True))
    return found


def recipe(meta, **optim):
    """The recipe that the golden training run states."""
    traj = meta["traj"]
    return recipes.Recipe(
        total_steps=traj["steps"],
        task=f"mae(mask_ratio={traj['mask_ratio']}, normalize_pixels={traj['norm_pix_loss']}, "
        f"decoder_hidden_size={meta['decoder_embed_dim']}, decoder_num_layers={meta['decoder_depth']}, "
        f"decoder_num_heads={meta['decoder_num_heads']})",
        model=recipes.Model(
            "ViT-B/16",
            image_size=meta["img_size"],
            arguments={
                "patch_size": meta["patch_size"],
                "hidden_size": meta["embed_dim"],
                "num_layers": meta["depth"],
                "num_heads": meta["num_heads"],
                "mlp_dim": int(meta["embed_dim"] * meta["mlp_ratio"]),
            },
        ),
        optim=recipes.Optim(
            "adamw",
            learning_rate=traj["peak"],
            schedule=recipes.Schedule("cosine", warmup_steps=traj["warmup"]),
            beta1=0.9,
            beta2=0.95,
            weight_decay=0.05,
            weight_decay_mask="kernel$|cls$|mask_token$",
            clip_norm=0.0,
            **optim,
        ),
    )


def task(meta):
    """The task of `recipe`."""
    return tasks.bind(recipe(meta))


def task_of(model, normalize):
    """The task of a model, whatever the recipe's sizes."""
    task = tasks.bind(recipes.Recipe(task=f"mae(normalize_pixels={normalize})"))
    task.config = model.config
    return task


def follow(devices, micro_batches):
    """Trains as the reference did and returns the relative errors."""
    data = load()
    run_recipe = recipe(data["meta"], accumulation_steps=micro_batches)
    strategy = strategy_on(devices)
    with strategy.scope():
        state = TrainState(create_model(data["meta"]), run_recipe)
    orders = np.stack([to_order(noise) for noise in data["traj/noise"]])
    steps, batch_size = data["traj/images"].shape[:2]
    step = TrainStep(state, run_recipe, lambda batch, step, replica: (batch["image"], batch["order"]), batch_size)

    @tf.function(autograph=False)
    def run(batch, index):
        values = strategy.run(step, args=(batch, index))
        return {name: strategy.experimental_local_results(value)[0] for name, value in values.items()}

    def share(context, index):
        rows = np.split(np.arange(batch_size), devices)[context.replica_id_in_sync_group]
        return {"image": tf.constant(data["traj/images"][index][rows]), "order": tf.constant(orders[index][rows])}

    history = []
    for index in range(steps):
        batch = strategy.experimental_distribute_values_from_function(lambda c, i=index: share(c, i))
        history.append({name: value.numpy() for name, value in run(batch, tf.constant(index, tf.int64)).items()})
    history = {name: np.array([values[name] for values in history]) for name in history[0]}
    final = {name.removeprefix("traj/final/"): value for name, value in data.items() if name.startswith("traj/final/")}
    end = to_variables(final, data["meta"])
    return {
        "loss": error(history["loss"], data["traj/losses"]),
        "rate": error(history["learning_rate"], data["traj/rates"]),
        "weights": {weight.path: error(weight.numpy(), end[weight.path]) for weight in state.model.variables},
    }
