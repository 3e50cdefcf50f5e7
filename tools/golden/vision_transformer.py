"""Golden files of google-research/vision_transformer (`vit_jax`, its checkout on PYTHONPATH), and of optax."""

from typing import Any

import numpy as np

from tools.golden import remake

PACKAGES = ("flax", "jax", "optax")


def _model(meta: dict[str, Any]) -> Any:
    import ml_collections
    from vit_jax import models_vit

    resnet = meta.get("resnet")
    return models_vit.VisionTransformer(
        num_classes=meta["classes"],
        patches=ml_collections.ConfigDict({"size": tuple(meta["patch"])}),
        transformer={
            "num_layers": meta["num_layers"],
            "mlp_dim": meta["mlp_dim"],
            "num_heads": meta["num_heads"],
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
        },
        hidden_size=meta["hidden_size"],
        resnet=None if resnet is None else ml_collections.ConfigDict({"num_layers": resnet, "width_factor": 1}),
        representation_size=meta["representation_size"],
        classifier=meta["classifier"],
    )


def _weights(stored: remake.Arrays) -> dict[str, Any]:
    """Return the weights by their current names. Files with the naming "legacy" use older names."""
    from vit_jax import checkpoint

    return checkpoint.convert_pre_linen(remake.tree(stored, "params/"))


def model(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the output of the encoder and the logits."""
    stored, meta = remake.read(name)
    logits, state = _model(meta).apply(
        {"params": _weights(stored)}, stored["image"], train=False, capture_intermediates=True
    )
    encoded = state["intermediates"]["Transformer"]["__call__"][0]
    return {**stored, "encoded": np.asarray(encoded), "logits": np.asarray(logits)}, meta


def positions(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute position embeddings at other resolutions."""
    from vit_jax import checkpoint

    stored, meta = remake.read(name)
    for old, new in meta["pairs"]:
        for slots in (1, 0):
            table = stored[f"old_{old}_{slots}"]
            resized = checkpoint.interpolate_posembed(table, new * new + slots, True, bool(slots))
            stored[f"new_{old}_{new}_{slots}"] = np.asarray(resized)
    return stored, meta


def trajectory(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Train eight steps from the weights of traj_model.

    The optimizer is vit_jax's momentum, or optax's AdamW with weight decay and moving averages.
    """
    import jax
    import jax.numpy as jnp
    import optax

    stored, meta = remake.read(name)
    first, shape = remake.read("traj_model")
    model, weights = _model(shape), _weights(first)
    steps, warmup, base = meta["total_steps"], meta["warmup_steps"], meta["base_lr"]
    end = 0.0 if meta["decay"] == "cosine" else 1e-5

    def rate(step: Any) -> Any:
        progress = jnp.clip((step - warmup) / (steps - warmup), 0.0, 1.0)
        decayed = base * 0.5 * (1 + jnp.cos(jnp.pi * progress)) if end == 0 else end + (base - end) * (1 - progress)
        return decayed * jnp.minimum(1.0, step / warmup)

    momentum = meta["optimizer"].startswith("sgd")
    if momentum:
        update = optax.sgd(rate, momentum=0.9, accumulator_dtype=meta["accumulator"])
    else:
        kernels = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", weights)
        update = optax.adamw(rate, 0.9, 0.999, 1e-8, weight_decay=meta["weight_decay"], mask=kernels)
    optimizer = optax.chain(optax.clip_by_global_norm(meta["clip"]), update)

    @jax.jit
    def step(weights: Any, state: Any, images: Any, labels: Any) -> Any:
        def loss(weights: Any) -> Any:
            logits = model.apply({"params": weights}, images, train=False)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradients = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value, optax.global_norm(gradients)

    state, averages, losses, norms = optimizer.init(weights), weights, [], []
    for images, labels in zip(stored["images"], stored["labels"], strict=True):
        weights, state, value, norm = step(weights, state, images, labels)
        losses.append(value)
        norms.append(norm)
        if not momentum:
            averages = optax.incremental_update(weights, averages, 1 - meta["ema_momentum"])
    arrays = {"images": stored["images"], "labels": stored["labels"], "losses": np.array(losses)}
    arrays["lrs"] = np.array([rate(index) for index in range(len(losses))])
    arrays |= {"grad_norms": np.array(norms)} if momentum else remake.flat(averages, "params/ema/")
    return {**arrays, **remake.flat(weights, "params/")}, meta


FILES = {
    **dict.fromkeys(("vit_token_legacy", "vit_token_linen", "vit_gap", "vit_prelogits", "traj_model"), model),
    **dict.fromkeys(("hybrid_stem", "hybrid_blocks"), model),
    "posemb_resize": positions,
    **dict.fromkeys(("traj_sgd_float32", "traj_sgd_bfloat16", "traj_adamw"), trajectory),
}

if __name__ == "__main__":
    remake.main(FILES, PACKAGES)
