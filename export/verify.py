"""Compare an exported artifact with its model on real images.

    keras-vit verify --model=runs/digits --artifact=served/digits
    keras-vit verify --model=runs/digits --artifact=digits.tflite --num_images=1000 --min_agreement=0.99

The model and the artifact each use their own preprocessing. All signatures and labels of the artifact are compared. The
exit code is 1 if a difference exceeds the limit of a flag or, without the flag, the tolerance for the data types of the
weights in the file.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

NUM_IMAGES = 256

common_flags.define_export_flags(NUM_IMAGES)
flags.DEFINE_string("artifact", None, "SavedModel, TFLite, ONNX or OpenVINO file to verify.")
flags.DEFINE_string("split", None, "Split of the data; by default the run's evaluation split.")
flags.DEFINE_float("max_accuracy_drop", None, "Largest allowed loss of accuracy, for models with classes.")

with cli.imports(__name__):
    import keras

    from keras_vit.cli import trained_model
    from keras_vit.exporting import artifact_check, verify
    from keras_vit.exporting.inference_model import inference_model, is_half
    from keras_vit.inference import KerasPredictor, Predictor
    from keras_vit.inference.opening import open_artifact
    from keras_vit.util.formatting import percent


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    model = trained_model.open_model("artifact")
    artifact = open_artifact(options.artifact)
    if (artifact.card.names, artifact.card.values) != (model.card.names, model.card.values):
        raise ValueError(
            f"The artifact must have the model's classes or values: {model.card.values or model.card.names[:5]}. "
            f"Received: {artifact.card.values or artifact.card.names[:5]}."
        )
    tolerance = choose_tolerance(artifact)
    images = trained_model.load_images(model.card, tolerance, NUM_IMAGES, options.split)
    if keras.backend.backend() == "tensorflow" and is_half(model.model):  # artifacts have float32 weights
        model = KerasPredictor(inference_model(model.model), model.card, model.path)
    trained_model.check_accuracy_drop(model.card, images)
    comparison, problems = artifact_check.check(artifact, model, images, tolerance)
    report(artifact, comparison, tolerance, problems)
    for problem in problems:
        logging.error("%s", problem)
    return 1 if problems else 0


def choose_tolerance(artifact: Predictor) -> verify.Tolerance:
    """Return the tolerance of the file's precision, with the limits of the flags."""
    precision, of_the_card = artifact.stored_precision, artifact.card.precision
    if precision != of_the_card.removeprefix("mixed_"):
        logging.warning("The file is %s, although its model card has precision=%r.", precision, of_the_card)
    return trained_model.limits(precision, artifact.card.output)


def origin(artifact: Predictor) -> str:
    """Describe the origin of the tolerance."""
    given = [f"--{name}" for name in trained_model.LIMITS if flags.FLAGS[name].present]
    return ", ".join([f"{artifact.stored_precision}, by the types in the file", *given])


def report(
    artifact: Predictor, comparison: verify.Comparison, tolerance: verify.Tolerance, problems: Sequence[str]
) -> None:
    if flags.FLAGS.json:
        content = {"artifact": artifact.path, "kind": artifact.kind, **dataclasses.asdict(comparison)}
        content |= {
            "agreement_low": comparison.agreement_low,
            "tolerance": dataclasses.asdict(tolerance),
            "tolerance_from": origin(artifact),
        }
        content |= {"problems": list(problems), "passed": not problems}
        sys.stdout.write(json.dumps(content) + "\n")
        return
    rows = [
        ("images", f"{comparison.examples:,}", ""),
        ("largest difference", f"{comparison.max_difference:.2e}", f"at most {tolerance.max_difference:.2e}"),
        ("mean difference", f"{comparison.mean_difference:.2e}", comparison.kind.unit.strip()),
    ]
    if comparison.top1_agreement is not None:
        agreement = percent(comparison.top1_agreement, 2)
        rows.append(("top-1 agreement", agreement, f"at least {percent(tolerance.top1_agreement, 2)}"))
    if comparison.agreement_low is not None:
        rows.append(("its 95% interval, from", percent(comparison.agreement_low, 2), ""))
    if comparison.accuracy is not None and comparison.reference_accuracy is not None:
        drop = "" if tolerance.accuracy_drop is None else f"at most {percent(tolerance.accuracy_drop, 2)} less"
        rows.append(("accuracy of the model", percent(comparison.reference_accuracy, 2), ""))
        rows.append(("accuracy of the artifact", percent(comparison.accuracy, 2), drop))
    lines = [f"{artifact.path} ({artifact.kind}, {artifact.stored_precision})"]
    lines += [f"  {name:<26}{value:>12}  {limit}".rstrip() for name, value, limit in rows]
    lines.append(f"  limits: {origin(artifact)}")
    lines.append("differs" if problems else "agrees")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    cli.run(main)
