"""Measure and draw the figures of the documentation, with small models trained on the embedded digits.

    python -m docs.figures              # train everything and draw (about 20 minutes on two idle cores)
    python -m docs.figures --draw_only  # draw again from docs/figures/measured.json

Writes `measured.json` and, for each figure, a light and a dark SVG to `docs/figures/`, and replaces the table between
`<!-- figures: NAME -->` and `<!-- /figures: NAME -->` in docs/concepts/NAME.md.

A digit has 8 x 8 pixels. Inductive bias: nearest-neighbor enlargement to 16 x 16 and patches of 4 give the ViT 4 x 4
tokens of 2 x 2 digit pixels; the ResNet root of the hybrid reduces the same image to 4 x 4 tokens as well. Both run the
same encoder. Attention: digits at random places of 16 x 16 scenes, with patches of 2 x 2 pixels.
"""

import json
import pathlib
import sys

import keras
import numpy as np
from absl import app, flags, logging

import keras_vit
from benchmarks.tables import write_between
from keras_vit import data, inspection
from keras_vit.inspection import plots
from keras_vit.inspection.plots import _matplotlib
from keras_vit.util import file_io, formatting

FOLDER = pathlib.Path(__file__).resolve().parent / "figures"
MEASURED = FOLDER / "measured.json"
PAGES = FOLDER.parent

SIZES = (100, 400, 1437)
SEEDS = (0, 1, 2)
BATCH, STEPS, RATE = 64, 400, 4e-3
ATTENTION_STEPS, ATTENTION_RATE = 2000, 2e-3
ENCODER = {
    "hidden_size": 64,
    "num_heads": 4,
    "mlp_dim": 128,
    "pooling": "gap",
    "classes": 10,
    "channels": 1,
}
MODELS = {
    "ViT": {"patch_size": 4},
    "hybrid": {"patch_size": 1, "resnet_blocks": ()},
}
SCHEMES = {
    "light": {"text": "#1f2328", "grid": "#d0d7de", "ViT": "#0072B2", "hybrid": "#D55E00", "faint": "#8c959f"},
    "dark": {"text": "#e6edf3", "grid": "#3d444d", "ViT": "#56B4E9", "hybrid": "#E69F00", "faint": "#9198a1"},
}

DRAW_ONLY = flags.DEFINE_bool("draw_only", False, "Draw from measured.json without training.")


# --- data and training ------------------------------------------------------------------------------------------------


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the digits as float32 `[n, 8, 8, 1]` in [-1, 1] and their labels, in a fixed random order."""
    source = data.open_source("digits", split=split)
    order = np.random.default_rng(0).permutation(source.num_examples)
    pixels = source.images[order].astype("float32") / 127.5 - 1
    return pixels, source.labels()[order]


def enlarge(pixels: np.ndarray, factor: int = 2) -> np.ndarray:
    """Repeat each pixel `factor` times in both directions."""
    return pixels.repeat(factor, axis=1).repeat(factor, axis=2)


def shuffle(pixels: np.ndarray, block: int) -> np.ndarray:
    """Move the blocks of `block` x `block` pixels by one fixed permutation, the same for all digits."""
    side = 8 // block
    blocks = pixels.reshape(-1, side, block, side, block).swapaxes(2, 3).reshape(-1, side * side, block, block)
    blocks = blocks[:, np.random.default_rng(1).permutation(side * side)]
    return blocks.reshape(-1, side, side, block, block).swapaxes(2, 3).reshape(pixels.shape)


ARRANGEMENTS = {
    "in order": lambda pixels: pixels,
    "patches shuffled": lambda pixels: shuffle(pixels, 2),
    "pixels shuffled": lambda pixels: shuffle(pixels, 1),
}


def build(kind: str, num_layers: int, image_size: int) -> keras.Model:
    """Build one of the two models."""
    return keras_vit.VisionTransformer(num_layers=num_layers, image_size=image_size, **MODELS[kind], **ENCODER)


def train(
    model: keras.Model, images: np.ndarray, labels: np.ndarray, seed: int, steps: int = STEPS, rate: float = RATE
) -> None:
    """Train with AdamW, a cosine schedule and no augmentation."""
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=rate, warmup_steps=steps // 10)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.05, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        chosen = rng.choice(len(images), BATCH, replace=len(images) < BATCH)
        model.train_on_batch(images[chosen], labels[chosen])


def accuracy(model: keras.Model, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of correct predictions."""
    return float(np.mean(model.predict(images, batch_size=120, verbose=0).argmax(axis=-1) == labels))


# --- measurements -----------------------------------------------------------------------------------------------------


def measure_inductive_bias() -> dict:
    """Measure test accuracy over the number of training digits, and with shuffled patches and pixels."""
    (pixels, labels), (test_pixels, test_labels) = digits("train"), digits("test")
    found = {"parameters": {kind: build(kind, 3, 16).count_params() for kind in MODELS}, "size": {}, "arrangement": {}}

    def reached(kind: str, size: int, arrangement: str) -> list[float]:
        arrange, runs = ARRANGEMENTS[arrangement], []
        for seed in SEEDS:
            keras.utils.set_random_seed(seed)
            model = build(kind, 3, 16)
            train(model, enlarge(arrange(pixels[:size])), labels[:size], seed)
            runs.append(accuracy(model, enlarge(arrange(test_pixels)), test_labels))
        logging.info("%s, %d digits, %s: %s", kind, size, arrangement, runs)
        return runs

    for kind in MODELS:
        found["size"][kind] = {str(size): reached(kind, size, "in order") for size in SIZES}
        found["arrangement"][kind] = {
            name: reached(kind, max(SIZES), name) for name in ARRANGEMENTS if name != "in order"
        }
        found["arrangement"][kind]["in order"] = found["size"][kind][str(max(SIZES))]
    return found


def scenes(
    pixels: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Put a digit at a random place of a black 16 x 16 image, with two fragments of other digits beside it.

    Returns:
        Images `[count, 16, 16, 1]`, labels `[count]`, and the upper left corners of the digits `[count, 2]`.
    """
    chosen, corners = rng.integers(0, len(pixels), count), rng.integers(0, 9, (count, 2))
    images = np.full((count, 16, 16, 1), -1, "float32")
    for image, index, (top, left) in zip(images, chosen, corners, strict=True):
        for _ in range(2):
            other, (y, x), (v, u) = rng.integers(len(pixels)), rng.integers(0, 13, 2), rng.integers(1, 5, 2)
            image[y : y + 3, x : x + 3] = pixels[other, v : v + 3, u : u + 3]
        image[top : top + 8, left : left + 8] = pixels[index]
    return images, labels[chosen], corners


def measure_attention() -> dict:
    """Train a ViT to name a digit anywhere in a scene; measure how far its heads attend, before and after."""
    train_digits, test_digits = digits("train"), digits("test")
    test_images, test_labels, corners = scenes(*test_digits, 500, np.random.default_rng(2))
    keras.utils.set_random_seed(0)
    model = keras_vit.VisionTransformer(
        num_layers=4, image_size=16, patch_size=2, position_embedding="sincos2d", **ENCODER
    )
    before = inspection.attention_distance(model, test_images[:128], batch_size=32)
    images, labels, _ = scenes(*train_digits, 40_000, np.random.default_rng(1))
    train(model, images, labels, 0, ATTENTION_STEPS, ATTENTION_RATE)
    shown = [int(np.flatnonzero(test_labels == digit)[0]) for digit in range(10)]
    maps = inspection.attention_maps(model, test_images[shown])
    rollout = maps.output_grid(inspection.attention_rollout(maps))
    found = {
        "accuracy": accuracy(model, test_images, test_labels),
        "before": before.tolist(),
        "after": inspection.attention_distance(model, test_images[:128], batch_size=32).tolist(),
        "uniform": uniform_distance(8) * 2,
        "examples": {
            "pixels": test_images[shown, :, :, 0].round(3).tolist(),
            "labels": test_labels[shown].tolist(),
            "predicted": model.predict(test_images[shown], verbose=0).argmax(axis=-1).tolist(),
            "corners": corners[shown].tolist(),
            "rollout": np.asarray(rollout).round(5).tolist(),
            "relevance": np.asarray(inspection.gradient_attention(model, test_images[shown])).round(5).tolist(),
        },
    }
    logging.info("scenes: %.4f, distances %s", found["accuracy"], np.round(found["after"], 1).tolist())
    return found


def uniform_distance(side: int) -> float:
    """Return the mean distance of two cells of a grid: the attention distance of uniform weights."""
    y, x = np.mgrid[:side, :side].reshape(2, -1)
    return float(np.hypot(y[:, None] - y, x[:, None] - x).mean())


# --- drawing ----------------------------------------------------------------------------------------------------------


def new_axes(scheme: dict, width: float, height: float, columns: int = 1, rows: int = 1):
    """Return a transparent figure and its axes in the colors of a scheme."""
    figure = _matplotlib.new_figure(width, height)
    figure.patch.set_alpha(0)
    axes = figure.subplots(rows, columns, squeeze=False)
    for one in axes.ravel():
        one.patch.set_alpha(0)
        one.tick_params(colors=scheme["text"])
        for spine in one.spines.values():
            spine.set_color(scheme["grid"])
        for text in (one.title, one.xaxis.label, one.yaxis.label):
            text.set_color(scheme["text"])
        one.grid(color=scheme["grid"], alpha=0.6)
        one.set_axisbelow(True)
    return figure, axes


def add_legend(axes, scheme: dict, **arguments) -> None:
    """Draw a legend without a frame."""
    axes.legend(frameon=False, labelcolor=scheme["text"], **arguments)


def draw_training_size(measured: dict, scheme: dict):
    """Draw accuracy over the number of training digits, one line per model and one dot per seed."""
    figure, ((axes,),) = new_axes(scheme, 5.2, 3.2)
    for kind, marker in (("hybrid", "o"), ("ViT", "s")):
        sizes = [int(size) for size in measured["size"][kind]]
        runs = 100 * np.array(list(measured["size"][kind].values()))
        axes.plot(sizes, runs.mean(axis=1), color=scheme[kind], label=kind, linewidth=2)
        axes.plot(np.repeat(sizes, runs.shape[1]), runs.ravel(), marker, color=scheme[kind], markersize=4, alpha=0.7)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("training digits")
    axes.set_ylabel("test accuracy (%)")
    add_legend(axes, scheme, loc="lower right")
    return figure


def draw_shuffled(measured: dict, scheme: dict):
    """Draw the accuracy per arrangement of the pixels, one bar per model and one dot per seed."""
    figure, ((axes,),) = new_axes(scheme, 5.2, 3.2)
    for kind, offset in (("hybrid", -0.2), ("ViT", 0.2)):
        runs = 100 * np.array([measured["arrangement"][kind][name] for name in ARRANGEMENTS])
        place = np.arange(len(ARRANGEMENTS)) + offset
        axes.bar(place, runs.mean(axis=1), 0.36, color=scheme[kind], label=kind)
        axes.plot(np.repeat(place, runs.shape[1]), runs.ravel(), "o", color=scheme["text"], markersize=3)
    axes.set_xticks(range(len(ARRANGEMENTS)), list(ARRANGEMENTS))
    lowest = 100 * min(min(runs) for by_name in measured["arrangement"].values() for runs in by_name.values())
    axes.set_ylim(np.floor(lowest / 5) * 5 - 5, 100)
    axes.set_ylabel("test accuracy (%)")
    axes.grid(axis="x", visible=False)
    add_legend(axes, scheme, loc="upper right")
    return figure


def draw_distance(measured: dict, scheme: dict):
    """Draw the attention distance of each head by depth, before and after training."""
    figure, (row,) = new_axes(scheme, 7.2, 3.2, columns=2)
    for axes, key, title in zip(row, ("before", "after"), ("random weights", "trained"), strict=True):
        distances = np.array(measured[key])
        layers, heads = distances.shape
        depth = np.arange(1, layers + 1)
        axes.axhline(measured["uniform"], color=scheme["faint"], linestyle="--", label="uniform attention")
        axes.plot(depth, distances.mean(axis=1), color=scheme["hybrid"], linewidth=2, label="mean of heads")
        axes.plot(np.repeat(depth, heads), distances.ravel(), "o", color=scheme["ViT"], markersize=4, label="head")
        axes.set_ylim(5, 9)
        axes.set_xticks(depth)
        axes.set_xlabel("block")
        axes.set_title(title)
    row[0].set_ylabel("attention distance (pixels)")
    add_legend(row[0], scheme, loc="lower left")
    return figure


def draw_attention(measured: dict, scheme: dict):
    """Draw ten scenes with the model's predictions, and below each the patches that the prediction relies on."""
    examples = measured["examples"]
    figure, axes = new_axes(scheme, 9.0, 2.15, columns=10, rows=2)
    for column in range(10):
        image = (np.array(examples["pixels"][column]) + 1) / 2
        answer, label = examples["predicted"][column], examples["labels"][column]
        relevance = np.maximum(np.array(examples["relevance"][column]), 0)
        weights = np.kron(relevance / relevance.max(), np.ones((2, 2)))[..., None]
        shade = np.array([1.0, 0.62, 0.1])  # orange where the prediction comes from
        overlaid = np.clip((1 - 0.7 * weights) * image[..., None] + 0.7 * weights * shade, 0, 1)
        axes[0, column].imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes[1, column].imshow(overlaid, interpolation="nearest")
        said = f"{answer}" if answer == label else f"{answer}, not {label}"
        axes[0, column].set_title(said, fontsize=10)
        for one in axes[:, column]:
            one.grid(visible=False)
            one.set_xticks([])
            one.set_yticks([])
            for spine in one.spines.values():
                spine.set_visible(False)
    return figure


FIGURES = {
    "training_size": (draw_training_size, "inductive_bias"),
    "shuffled_pixels": (draw_shuffled, "inductive_bias"),
    "attention_distance": (draw_distance, "attention"),
    "attention": (draw_attention, "attention"),
}


def draw(measured: dict) -> None:
    """Write every figure in both color schemes."""
    for name, (function, part) in FIGURES.items():
        for scheme, colors in SCHEMES.items():
            with _matplotlib.styled():
                plots.save(function(measured[part], colors), str(FOLDER / f"{name}_{scheme}.svg"))


# --- tables in the pages ----------------------------------------------------------------------------------------------


def percent(runs) -> str:
    """Return mean and sample standard deviation in percent."""
    runs = 100 * np.array(runs)
    return f"{runs.mean():.1f} ± {runs.std(ddof=1):.1f}"


def tables(measured: dict) -> dict[str, str]:
    """Return the tables that the pages quote, by name."""
    bias, attention = measured["inductive_bias"], measured["attention"]
    names = [name for name in ARRANGEMENTS if name != "in order"]
    header = ["model", "parameters:", *(f"{size:,} digits:" for size in SIZES), *(f"{name}:" for name in names)]
    rows = [
        [
            kind,
            f"{bias['parameters'][kind]:,}",
            *(percent(bias["size"][kind][str(size)]) for size in SIZES),
            *(percent(bias["arrangement"][kind][name]) for name in names),
        ]
        for kind in ("hybrid", "ViT")
    ]
    before, after = np.array(attention["before"]), np.array(attention["after"])
    depth = [
        [
            str(block + 1),
            *(f"{distances[block].mean():.2f}" for distances in (before, after)),
            f"{after[block].min():.2f} to {after[block].max():.2f}",
        ]
        for block in range(len(before))
    ]
    return {
        "inductive_bias": formatting.markdown_table(header, rows),
        "attention_distance": formatting.markdown_table(
            ["block", "mean, random weights:", "mean, trained:", "heads, trained:"], depth
        ),
    }


def write_tables(measured: dict) -> None:
    """Replace the tables in the pages."""
    for name, table in tables(measured).items():
        write_between(PAGES / "concepts" / f"{name}.md", f"figures: {name}", f"\n{table.strip()}\n")


def main(argv):
    """Measure and draw."""
    del argv
    if not DRAW_ONLY.value:
        keras.utils.disable_interactive_logging()
        measured = {"attention": measure_attention()}
        file_io.write_text(MEASURED, json.dumps(measured, separators=(",", ":")) + "\n")
        measured["inductive_bias"] = measure_inductive_bias()
        file_io.write_text(MEASURED, json.dumps(measured, separators=(",", ":")) + "\n")
    measured = file_io.read_json(MEASURED)
    draw(measured)
    write_tables(measured)
    sys.stdout.write(f"{FOLDER}\n")


if __name__ == "__main__":
    app.run(main)
