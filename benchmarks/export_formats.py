"""Export models to every format, verify and time the artifacts, and write the table in docs/export_formats.md.

    python -m benchmarks.export_formats --work=/tmp/formats --run=runs/digits --step=export
    python -m benchmarks.export_formats --work=/tmp/formats --run=runs/digits --step=measure
    python -m benchmarks.export_formats --work=/tmp/formats --run=runs/digits --step=write

Models that are given by name have random weights and are verified on the digits. The classes of an untrained model are
nearly tied, so the top-1 agreement of 16-bit and integer files is reported but not required; the probabilities must
agree. Existing results in --work are kept. Measure on an idle machine: each artifact is timed in a separate process,
one image at a time.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags, logging

from benchmarks import tables
from keras_vit import cli, create_model, recipe
from keras_vit.exporting import onnx_openvino, saved_model, tflite, verified_file, verify
from keras_vit.inference import formats, keras_model, model_card, sample_images
from keras_vit.runs import load_run, run_directory
from keras_vit.util import file_io, formatting

FORMATS = ("saved_model", *(f"tflite-{precision}" for precision in formats.TFLITE.precisions), "onnx", "openvino")
HEADER = (
    *("model", "format", "precision", "MB:", "largest difference:", "same prediction:", "accuracy:"),
    *("p50 ms:", "p95 ms:"),
)
PREPROCESS = "decode(3)|resize(224)|value_range(-1, 1)"
TRAINED = "trained run"
VERIFIED, TIMED = "verified.json", "timed.json"

flags.DEFINE_string("work", None, "Directory for artifacts and results.")
flags.DEFINE_string("run", None, "Directory of a finished run, which gives the first rows.")
flags.DEFINE_list("models", ["ViT-S/16", "ViT-B/16", "R50+ViT-B/16", "BiT-R50x1"], "Models with random weights.")
flags.DEFINE_enum("step", "export", ["export", "measure", "write"], "Step to do.")
flags.DEFINE_list("formats", list(FORMATS), "Formats to export.")
flags.DEFINE_integer("examples", 32, "Images for verification and calibration of untrained models.", 1)
flags.DEFINE_integer("threads", os.cpu_count() or 1, "Number of threads.", 1)
flags.DEFINE_integer("calls", 15, "Timed calls per artifact.", 1)
flags.DEFINE_string("output", "docs/export_formats.md", "Markdown file that contains the markers of the table.")


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.work:
        raise ValueError("--work is missing: the directory for artifacts and results.")
    names = [TRAINED, *options.models] if options.run else options.models
    if options.step == "write":
        tables.write_between(options.output, "formats", table(names))
        return 0
    for name in names:
        {"export": export, "measure": measure}[options.step](name, directory_of(name))
    return 0


def directory_of(name: str) -> str:
    return os.path.join(flags.FLAGS.work, re.sub(r"\W+", "-", name).lower())


def run_of(name: str, directory: str) -> str:
    """Return the run directory of a model, which is created for an untrained model."""
    if name == TRAINED:
        return flags.FLAGS.run
    path = os.path.join(directory, "run")
    if not run_directory.is_finished(path):
        os.makedirs(path, exist_ok=True)
        model = create_model(name, image_size=224, classes=1000)
        head = model.get_layer("head").kernel
        scale = 4.0 / head.shape[0] ** 0.5  # logits of a few units; with a zero head, all classes would be tied
        head.assign(np.random.default_rng(0).normal(size=head.shape) * scale)
        config = recipe.Recipe(data=recipe.Data(source="digits", pp_train=PREPROCESS, pp_eval=PREPROCESS))
        class_names = [str(index) for index in range(1000)]
        about = {"name": "none", "class_names": class_names, "num_classes": 1000, "label_kind": "class"}
        model.class_names = class_names
        run_directory.write_config(path, config, about)
        run_directory.save_model(model, path)
    return path


def export(name: str, directory: str) -> None:
    """Export a model to all formats and store the results of the verification."""
    options = flags.FLAGS
    results = read(directory, VERIFIED)
    wanted = [kind for kind in options.formats if kind not in results]
    if not wanted:
        return
    predictor = keras_model.open_run(load_run(run_of(name, directory)), None, (), None)
    model, card = predictor.model, predictor.card
    count, calibrated = (10_000, 256) if name == TRAINED else (options.examples, options.examples)
    images = sample_images.for_model(card, count)
    calibration = sample_images.for_model(card, calibrated, split=card.recipe_data["train_split"])
    if name != TRAINED:
        images = images._replace(labels=None)
    common: dict[str, Any] = {"card": card, "images": images}
    for kind in wanted:
        logging.info("%s: %s", name, kind)
        path = artifact_path(directory, kind)
        try:
            if kind == "saved_model":
                _, comparison = saved_model.write(model, path, **common)
            elif kind in ("onnx", "openvino"):
                _, comparison = onnx_openvino.write(model, path, **common)
            else:
                precision = kind.removeprefix("tflite-")
                tolerance = verify.tolerance_of(precision)
                if name != TRAINED and precision != "float32":
                    tolerance = dataclasses.replace(tolerance, top1_agreement=0.0)
                _, comparison = tflite.write(
                    model, path, **common, precision=precision, calibration=calibration, tolerance=tolerance
                )
            results[kind] = {"passed": True, "bytes": model_card.size_of(path), **vars(comparison)}
        except (verify.VerificationError, verified_file.ConversionError) as error:
            logging.error("%s", error)
            failed = getattr(error, "comparison", None)
            results[kind] = {"passed": False, "error": str(error), **(vars(failed) if failed else {})}
        file_io.write_json(os.path.join(directory, VERIFIED), results)


def artifact_path(directory: str, kind: str) -> str:
    extension = {"onnx": ".onnx", "openvino": ".xml", "saved_model": ""}.get(kind, ".tflite")
    return os.path.join(directory, kind + extension)


def measure(name: str, directory: str) -> None:
    """Time the model and its artifacts, each in a separate process."""
    options = flags.FLAGS
    verified, timed = read(directory, VERIFIED), read(directory, TIMED)
    for kind in ("keras", *options.formats):
        if kind in timed or (kind != "keras" and not verified.get(kind, {}).get("passed")):
            continue
        path = run_of(name, directory) if kind == "keras" else artifact_path(directory, kind)
        calls = options.calls if name != TRAINED else 10 * options.calls
        command = [sys.executable, "-m", "export.benchmark", f"--artifacts={path}", "--batch_sizes=1", "--json"]
        command += [f"--threads={options.threads}", f"--calls={calls}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        timed[kind] = json.loads(done.stdout)
        file_io.write_json(os.path.join(directory, TIMED), timed)


def table(names: Sequence[str]) -> str:
    """Return the table of all results, followed by a line about the conditions of the measurement."""
    rows, examples, any_timed = [], [], False
    for name in names:
        verified, timed = read(directory_of(name), VERIFIED), read(directory_of(name), TIMED)
        for kind in ("keras", *flags.FLAGS.formats):
            if kind == "keras" or kind in verified:
                rows.append(row(name, kind, verified, timed.get(kind)))
        any_timed = any_timed or bool(timed)
        examples.append(f"{name} {max((result.get('examples', 0) for result in verified.values()), default=0)}")
    width = len(HEADER) if any_timed else len(HEADER) - 2
    note = f"Images for the verification: {', '.join(examples)}."
    if any_timed:
        note += f" Latency of the model from a prepared image to probabilities, {flags.FLAGS.threads} threads."
    return f"\n{formatting.markdown_table(HEADER[:width], [cells[:width] for cells in rows])}\n\n{note}\n"


def row(name: str, kind: str, verified: dict[str, Any], timed: dict[str, Any] | None) -> list[str]:
    result = verified.get(kind, {})
    form, _, precision = kind.partition("-")
    cells = [name, form, precision or "float32"]
    if result.get("passed") is False and "examples" not in result:
        return [*cells, "", "cannot be converted", "", "", "", ""]
    accuracy = result.get("accuracy")
    if kind == "keras":
        accuracy = next(
            (other["reference_accuracy"] for other in verified.values() if "reference_accuracy" in other), None
        )
    size = (timed or result).get("bytes")
    size = "" if size is None else f"{size / 1e6:.1f}"
    cells.append(size if result.get("passed", True) else "refused")
    cells += [f"{result['max_difference']:.1e}", f"{result['top1_agreement']:.1%}"] if result else ["", ""]
    cells.append("" if accuracy is None else f"{accuracy:.2%}")
    return cells + ([f"{timed[key]:.2f}" for key in ("p50_ms", "p95_ms")] if timed else ["", ""])


def read(directory: str, name: str) -> dict[str, Any]:
    path = os.path.join(directory, name)
    return file_io.read_json(path) if os.path.exists(path) else {}


if __name__ == "__main__":
    cli.run(main)
