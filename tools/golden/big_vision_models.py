"""Golden files of google-research/big_vision (its checkout on PYTHONPATH): ViT, BiT, preprocessing, few-shot probes."""

from typing import Any

import numpy as np

from tools.golden import remake

PACKAGES = ("flax", "jax", "tensorflow")


def vit(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the encoded tokens, the input of the head, and the logits."""
    from big_vision.models import vit as project

    stored, meta = remake.read(name)
    model = project._Model(
        num_classes=meta["classes"],
        patch_size=tuple(meta["patch"]),
        width=meta["hidden_size"],
        depth=meta["num_layers"],
        mlp_dim=meta["mlp_dim"],
        num_heads=meta["num_heads"],
        posemb=meta["posemb"],
        rep_size=meta["rep_size"],
        pool_type=meta["pool"],
        scan=meta["scan"],
    )
    logits, out = model.apply({"params": remake.tree(stored, "params/")}, stored["image"])
    found = {"encoded": out["encoded"], "pre_logits": out["pre_logits"], "logits": logits}
    return {**stored, **{key: np.asarray(value) for key, value in found.items()}}, meta


def bit(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the input of the head and the logits. Both files have the same weights; one uses BiT's own names."""
    from big_vision.models import bit_paper as project

    stored, meta = remake.read(name)
    weights, _ = remake.read("bit_big_vision")
    model = project.Model(num_classes=meta["classes"], width=meta["width"], depth=tuple(meta["depth"]))
    logits, out = model.apply({"params": remake.tree(weights, "params/")}, stored["image"])
    return {**stored, "pre_logits": np.asarray(out["pre_logits"]), "logits": np.asarray(logits)}, meta


def preprocessing(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the output of each pipeline for the images in tests/golden/images."""
    import big_vision.pp.ops_image  # noqa: F401  registers the operations
    import tensorflow as tf
    from big_vision.pp import builder

    _, meta = remake.read(name)
    found = {}
    for kind, text in meta["pp"].items():
        function = builder.get_preprocess_fn(text, log_data=False)
        for path in sorted((remake.GOLDEN / "images").iterdir()):
            found[f"{kind}/{path.name}"] = function({"image": tf.constant(path.read_bytes())})["image"].numpy()
    return found, meta


def few_shot(name: str) -> tuple[remake.Arrays, dict[str, Any]]:
    """Compute the accuracy of the linear probe for each regularization strength."""
    from big_vision.evaluators import fewshot_lsr as project

    stored, meta = remake.read(name)
    classes = int(stored["y_train"].max()) + 1
    cache = project._precompute_cache(stored["x_train"], stored["y_train"], classes)
    accuracies = [
        project._eig_fewshot_acc_fn(cache, stored["x_test"], stored["y_test"], strength) for strength in stored["l2"]
    ]
    return {**stored, "accuracy": np.array(accuracies, np.float32)}, meta


FILES = {
    **dict.fromkeys(("bv_tok", "bv_map", "bv_gap_sincos", "bv_gap_rep_scan"), vit),
    **dict.fromkeys(("bit_big_vision", "bit_big_transfer"), bit),
    "preprocess": preprocessing,
    "fewshot": few_shot,
}

if __name__ == "__main__":
    remake.main(FILES, PACKAGES)
