"""Fashion-MNIST from scratch, designed for an hour on two cores: a BiT ResNet, a hybrid, or a plain ViT.

Papers: "An Image is Worth 16x16 Words", https://arxiv.org/abs/2010.11929, and "Big Transfer (BiT)",
https://arxiv.org/abs/1912.11370; the sizes are our own. The optimizer is Muon,
https://kellerjordan.github.io/posts/muon/, and the augmentation includes random erasing,
https://arxiv.org/abs/1708.04896

    apt-get install dataset-fashion-mnist
    keras-vit train --config=fashion_mnist_hour:bit --workdir=runs/hour_bit
    keras-vit train --config=fashion_mnist_hour:hybrid --workdir=runs/hour_hybrid
    keras-vit train --config=fashion_mnist_hour:vit --workdir=runs/hour_vit

A folder with the four IDX files can follow: `:bit,/my/folder`. A ResNet root reduces height and width to a quarter, so
images are enlarged to 56 pixels for the BiT and the hybrid. Choose settings on held-out images:

    keras-vit sweep --config=fashion_mnist_hour:vit --workdir=runs/hour_sweep --seeds=2 \
        --config.data.train_split='train[:90%]' --config.data.eval_split='train[90%:]' \
        --grid=model.arguments.drop_path_rate=0,0.1 --grid=optim.learning_rate=2e-3,5e-3

`python -m benchmarks.results --only=hour_bit --workdir=runs/results` trains three seeds and replaces their row in
docs/results.md.
A ViT can learn from the BiT instead of the labels: `:vit`, `--config.task="distillation('runs/hour_bit')"` and
`--config.label_smoothing=0`. The result of a short run is in docs/results.md.
Published, with far more compute: ViT-Lite 95.2% and CVT 95.3% ("Escaping the Big Data Paradigm with Compact
Transformers", https://arxiv.org/abs/2104.05704). Test accuracy here, with three seeds: bit 94.20 +- 0.06%, vit 93.62
+- 0.23%; with one seed: hybrid 93.37%. See docs/results.md for all figures and for other settings.
Cost on two cores: bit takes 33 minutes on an AMD EPYC with `avx512_bf16`, and vit takes 53 minutes on an Intel Xeon
with `amx_bf16`. According to `keras-vit plan`, bit, hybrid and vit take 2.7e14, 1.5e14 and 3.0e14 operations. On
processors without bfloat16 instructions, add `--config.precision=float32`, which makes the steps of bit twice as fast.
Smaller machines: `--steps=936` for vit, and 1874 for bit and hybrid (2 epochs).
"""

from keras_vit import recipe

from . import common

EPOCHS = {"bit": 11, "hybrid": 11, "vit": 34}


def get_config(arguments: str = "") -> recipe.Recipe:
    """Return the recipe. The arguments are "bit", "hybrid" or "vit", and the folder of the files."""
    kind, folder = common.arguments(arguments, "vit", "")
    if kind not in EPOCHS:
        raise ValueError(f'The model must be "bit", "hybrid" or "vit". Received: {kind!r}')
    enlarged = "" if kind == "vit" else "resize(56)|"
    batch = 128 if kind == "vit" else 64
    epoch = 60_000 // batch
    return recipe.Recipe(
        total_steps=EPOCHS[kind] * epoch,
        precision="mixed_bfloat16",
        log_every=100,
        eval_every=2 * epoch,
        checkpoint_every=epoch,
        model=model(kind),
        data=recipe.Data(
            source=common.fashion_mnist(folder),
            pp_train=f"pad(1)|random_crop(28)|flip_lr|random_erasing(0.25)|{enlarged}value_range(-1, 1)",
            pp_eval=f"{enlarged}value_range(-1, 1)",
            batch_size=batch,
            eval_batch_size=500,
        ),
        optim=recipe.Optim(
            "muon",
            learning_rate=5e-3,
            momentum=0.95,
            nesterov=True,
            schedule=recipe.Schedule("cosine", warmup_steps=epoch),
            weight_decay=0.1,
            ema_momentum=0.999,
        ),
        label_smoothing=0.1,
    )


def model(kind: str) -> recipe.Model:
    """Return the model "bit", "hybrid" or "vit"."""
    if kind == "bit":
        return recipe.Model("BiT-R50x1", image_size=56, arguments={"block_sizes": (1, 3)})
    encoder = {"num_heads": 4, "pooling": "gap", "position_embedding": "sincos2d"}
    if kind == "hybrid":  # 7 x 7 patches of 2 x 2 cells of the ResNet's feature map
        resnet = {"patch_size": 2, "resnet_blocks": (2,), "hidden_size": 64, "num_layers": 2, "mlp_dim": 128}
        return recipe.Model("R+ViT-Ti/16", image_size=56, arguments={**resnet, **encoder})
    plain = {"patch_size": 4, "hidden_size": 96, "num_layers": 6, "mlp_dim": 192}
    return recipe.Model("ViT-Ti/16", image_size=28, arguments={**plain, **encoder})
