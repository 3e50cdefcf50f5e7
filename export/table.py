"""Write the table of docs/export_formats.md: every format and precision, verified, with size and latency.

    python -m export.table --work=/tmp/table --demo=runs/digits --step=export
    python -m export.table --work=/tmp/table --demo=runs/digits --step=measure
    python -m export.table --work=/tmp/table --demo=runs/digits --step=write --output=docs/export_formats.md

Models by name get random weights and are verified on pictures of the digits. To a model that nobody trained all of them
look much alike, and its best classes nearly tie: answers of 16-bit and integer files are counted but not refused, their
probabilities are. What exists in --work is not made again. Measure on a machine that does nothing else: each artifact
is timed in a process of its own, on one picture at a time.
"""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys

import numpy as np
from absl import flags, logging

from keras_vit import _io, models, program, recipe
from keras_vit.exporting import onnx_openvino, quantization, saved_model, single_file, tflite, verify
from keras_vit.inference import keras_model, latency, sample_images
from keras_vit.training import run_directory

STEPS = ("export", "measure", "write")
FORMATS = ("saved_model", *(f"tflite-{precision}" for precision in quantization.PRECISIONS), *onnx_openvino.FORMATS)
BEGIN, END = "<!-- table: export.table -->", "<!-- end of table -->"

flags.DEFINE_string("work", None, "Directory for the artifacts and what is measured.")
flags.DEFINE_string("demo", None, "Directory of a run that was trained, for the first rows.")
flags.DEFINE_list("models", ["ViT-S/16", "ViT-B/16", "R50+ViT-B/16", "BiT-R50x1"], "Models with random weights to try.")
flags.DEFINE_enum("step", "export", STEPS, "What to do.")
flags.DEFINE_list("formats", list(FORMATS), "Which artifacts.")
flags.DEFINE_integer("examples", 32, "Pictures to verify with, and to calibrate with; for the demo all and 256.", 1)
flags.DEFINE_integer("threads", os.cpu_count() or 1, "Threads of the kernels.", 1)
flags.DEFINE_integer("calls", 15, "Timed calls for each artifact.", 1)
flags.DEFINE_string("output", None, "Markdown file with the two marks that the table goes between.")


def main(argv):
    del argv
    options = flags.FLAGS
    if not options.work:
        raise ValueError("--work (a directory for the artifacts) is needed.")
    for name in ("demo", *options.models) if options.demo else options.models:
        folder = folder_of(name)
        if options.step == "export":
            export(name, folder)
        elif options.step == "measure":
            measure(name, folder)
    if options.step == "write":
        if not options.output:
            raise ValueError("--output (a Markdown file with the marks of the table) is needed.")
        write(options.output)
    return 0


def folder_of(name):
    return os.path.join(flags.FLAGS.work, re.sub(r"\W+", "-", name).lower())


def run_of(name, folder):
    """The directory of the run of a model; one with random weights is made."""
    if name == "demo":
        return flags.FLAGS.demo
    directory = os.path.join(folder, "run")
    if not os.path.exists(os.path.join(directory, run_directory.MODEL)):
        os.makedirs(directory, exist_ok=True)
        network = models.create_model(name, image_size=224, classes=1000)
        head = network.get_layer("head").kernel
        scale = 4.0 / head.shape[0] ** 0.5  # logits of a few units; a new head is zero, and all classes would tie
        head.assign(np.random.default_rng(0).normal(size=head.shape) * scale)
        preprocess = "decode(3)|resize(224)|value_range(-1, 1)"
        used = recipe.Recipe(data=recipe.Data(source="digits", pp_train=preprocess, pp_eval=preprocess))
        names = [str(index) for index in range(1000)]
        about = {"name": "none", "class_names": names, "num_classes": 1000, "multi_label": False}
        run_directory.write_config(directory, used, about)
        run_directory.save_model(network, directory)
    return directory


def export(name, folder):
    """Exports a model to all formats, and keeps what the verification found."""
    options = flags.FLAGS
    results = read_json(os.path.join(folder, "verified.json"))
    wanted = [kind for kind in options.formats if kind not in results]
    if not wanted:
        return
    classifier = keras_model.open_model(run_of(name, folder))
    model, card = classifier.model, classifier.card
    count, calibrated = (10_000, 256) if name == "demo" else (options.examples, options.examples)
    images = sample_images.for_model(card, count)
    calibration = sample_images.for_model(card, calibrated, split=card.recipe_data["train_split"])
    if name != "demo":
        images = images._replace(labels=None)
    common = {"card": card, "images": images}
    for kind in wanted:
        logging.info("%s: %s", name, kind)
        path = artifact_path(folder, kind)
        try:
            if kind == "saved_model":
                _, comparison = saved_model.export_saved_model(model, path, **common)
            elif kind in onnx_openvino.FORMATS:
                comparison = onnx_openvino.export_onnx_openvino(model, path, kind, **common)
            else:
                precision = kind.removeprefix("tflite-")
                tolerance = verify.tolerance_of(precision)
                if name != "demo" and precision != "float32":
                    tolerance = dataclasses.replace(tolerance, top1_agreement=0.0)
                comparison = tflite.export_tflite(
                    model, path, **common, precision=precision, calibration=calibration, tolerance=tolerance
                )
            results[kind] = {"passed": True, "bytes": latency.size_of(path), **vars(comparison)}
        except (verify.VerificationError, single_file.ConversionError) as error:
            logging.error("%s", error)
            results[kind] = {"passed": False, "error": str(error)}
            if getattr(error, "comparison", None):
                results[kind] |= vars(error.comparison)
        _io.write_json(os.path.join(folder, "verified.json"), results)


def artifact_path(folder, kind):
    extension = {"onnx": ".onnx", "openvino": ".xml", "saved_model": ""}.get(kind, ".tflite")
    return os.path.join(folder, kind + extension)


def measure(name, folder):
    """Times the model and its artifacts, each in another process."""
    options = flags.FLAGS
    module = sys.modules[main.__module__].__spec__.name.rpartition(".")[0] + ".benchmark"
    verified = read_json(os.path.join(folder, "verified.json"))
    timed = read_json(os.path.join(folder, "timed.json"))
    for kind in ("keras", *options.formats):
        if kind in timed or (kind != "keras" and not verified.get(kind, {}).get("passed")):
            continue
        path = run_of(name, folder) if kind == "keras" else artifact_path(folder, kind)
        calls = options.calls if name != "demo" else 10 * options.calls
        command = [sys.executable, "-m", module, f"--artifacts={path}", "--batch_sizes=1", "--json"]
        command += [f"--threads={options.threads}", f"--calls={calls}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        timed[kind] = json.loads(done.stdout)
        _io.write_json(os.path.join(folder, "timed.json"), timed)


def write(output):
    """Puts the table between its marks."""
    options = flags.FLAGS
    head = ["model", "format", "precision", "MB", "largest difference", "same answer", "accuracy", "p50 ms", "p95 ms"]
    rows, examples, any_timed = [], {}, False
    for name in ("demo", *options.models) if options.demo else options.models:
        verified = read_json(os.path.join(folder_of(name), "verified.json"))
        timed = read_json(os.path.join(folder_of(name), "timed.json"))
        for kind in ("keras", *options.formats):
            if kind == "keras" or kind in verified:
                rows.append(row(name, kind, verified, timed.get(kind)))
        any_timed = any_timed or bool(timed)
        examples[name] = max((result.get("examples", 0) for result in verified.values()), default=0)
    counts = ", ".join(f"{title(name)} {count}" for name, count in examples.items())
    note = f"Pictures verified on: {counts}."
    if any_timed:
        note += f" Latency of the network from a prepared picture to probabilities, {options.threads} threads."
    width = len(head) if any_timed else len(head) - 2  # nothing was timed, nothing is shown
    lines = [f"| {' | '.join(cells[:width])} |" for cells in [head, *rows]]
    lines.insert(1, f"|---|---|---{'|--:' * (width - 3)}|")
    with open(output, encoding="utf-8") as file:
        text = file.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{output!r} must hold the lines {BEGIN!r} and {END!r}, each once.")
    before, _, rest = text.partition(BEGIN)
    table = "\n".join([BEGIN, "", *lines, "", note, "", END])
    _io.write_text(output, before + table + rest.partition(END)[2])


def row(name, kind, verified, timed):
    """The cells of a line: what was found for an artifact."""
    result = verified.get(kind, {})
    form, _, precision = kind.partition("-")
    cells = [title(name), form, precision or "float32"]
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
    cells.append(f"{result['max_difference']:.1e}" if result else "")
    cells.append(f"{result['top1_agreement']:.1%}" if result else "")
    cells.append("" if accuracy is None else f"{accuracy:.2%}")
    return cells + ([f"{timed[key]:.2f}" for key in ("p50_ms", "p95_ms")] if timed else ["", ""])


def title(name):
    return "digits (trained)" if name == "demo" else name


def read_json(path):
    with contextlib.suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        return json.load(file)
    return {}


def run():
    program.run(main)


if __name__ == "__main__":
    run()
