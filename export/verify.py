"""Compares an exported artefact with the model that it came from, on real pictures.

    python -m export.verify --model=runs/digits --artefact=served/digits
    python -m export.verify --model=runs/digits --artefact=digits.tflite --examples=1000 --min_agreement=0.99

Each goes its own way from the picture to the answer, with the preprocessing that it carries. The exit code is 1 if
they differ by more than the precision of the artefact explains, or than the flags allow.
"""

import dataclasses
import json
import sys

import numpy as np
from absl import flags, logging

from keras_vit import program, training
from keras_vit.serving import artefacts, pictures, runs, verify

BATCH_SIZE = 16

flags.DEFINE_string("model", None, "Directory of a run, or a .keras file in one.")
flags.DEFINE_string("artefact", None, "SavedModel, TFLite, ONNX or OpenVINO file to check.")
flags.DEFINE_list("images", [], "Pictures to compare on; some of the run's data if not given.")
flags.DEFINE_string("split", None, "Split of the data; the run's evaluation split if not given.")
flags.DEFINE_integer("examples", 256, "How many pictures to compare on.", 1)
flags.DEFINE_float("max_difference", None, "Largest allowed difference of a probability; by precision if not given.")
flags.DEFINE_float("min_agreement", None, "Smallest allowed share of equal answers; by precision if not given.")
flags.DEFINE_float("max_accuracy_drop", None, "Largest allowed loss of accuracy.")
flags.DEFINE_bool("json", False, "Write one JSON object instead of a table.")


def main(argv):
    del argv
    options = flags.FLAGS
    if not options.model or not options.artefact:
        raise ValueError("--model (the directory of a run) and --artefact (what was exported) are needed.")
    run = training.load_run(options.model)
    model = artefacts.KerasArtefact(run.model, runs.describe(run), run.path)
    artefact = artefacts.open_artefact(options.artefact)
    if artefact.class_names != model.class_names:
        raise ValueError(
            f"The artefact must have the model's classes {model.class_names[:5]}. Received: {artefact.class_names[:5]}."
        )
    examples = runs.verification_pictures(run, options.examples, options.images, options.split)
    examples = pictures.keep_readable(examples, runs.preprocess_function(model.card))
    comparison = verify.compare(
        predict(model, examples.contents), predict(artefact, examples.contents), examples.labels
    )
    tolerance = choose_tolerance(artefact)
    problems = verify.failures(comparison, tolerance)
    report(artefact, comparison, tolerance, problems)
    for problem in problems:
        logging.error("%s", problem)
    return 1 if problems else 0


def predict(classifier, contents):
    preprocess = runs.preprocess_function(classifier.card)
    batches = [contents[start : start + BATCH_SIZE] for start in range(0, len(contents), BATCH_SIZE)]
    return np.concatenate([classifier.predict(pictures.prepare(batch, preprocess)) for batch in batches])


def choose_tolerance(artefact):
    """That of the artefact's precision, with what the flags change."""
    options = flags.FLAGS
    tolerance = verify.tolerance_of(artefact.card.get("precision", "float32"))
    chosen = {
        "max_difference": options.max_difference,
        "top1_agreement": options.min_agreement,
        "accuracy_drop": options.max_accuracy_drop,
    }
    return dataclasses.replace(tolerance, **{name: value for name, value in chosen.items() if value is not None})


def report(artefact, comparison, tolerance, problems):
    if flags.FLAGS.json:
        content = {"artefact": artefact.path, "kind": artefact.kind, **dataclasses.asdict(comparison)}
        content |= {"tolerance": dataclasses.asdict(tolerance), "passed": not problems}
        sys.stdout.write(json.dumps(content) + "\n")
        return
    rows = [
        ("pictures", f"{comparison.examples:,}", ""),
        ("largest difference", f"{comparison.max_difference:.2e}", f"at most {tolerance.max_difference:.2e}"),
        ("mean difference", f"{comparison.mean_difference:.2e}", ""),
        ("top-1 agreement", f"{comparison.top1_agreement:.2%}", f"at least {tolerance.top1_agreement:.2%}"),
    ]
    if comparison.accuracy is not None:
        drop = "" if tolerance.accuracy_drop is None else f"at most {tolerance.accuracy_drop:.2%} less"
        rows.append(("accuracy of the model", f"{comparison.reference_accuracy:.2%}", ""))
        rows.append(("accuracy of the artefact", f"{comparison.accuracy:.2%}", drop))
    lines = [f"{artefact.path} ({artefact.kind}, {artefact.card.get('precision', 'float32')})"]
    lines += [f"  {name:<26}{value:>12}  {limit}".rstrip() for name, value, limit in rows]
    lines.append("differs" if problems else "agrees")
    sys.stdout.write("\n".join(lines) + "\n")


def run():
    program.run(main)


if __name__ == "__main__":
    run()
