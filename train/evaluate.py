"""Measure a trained model, or an artifact exported from it, on labeled images.

    keras-vit evaluate --model=runs/digits
    keras-vit evaluate --model=runs/digits --checkpoint=best
    keras-vit evaluate --model=runs/digits folder:/images --split=test --json
    keras-vit evaluate --model=digits.tflite
    keras-vit evaluate --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' folder:/images
    keras-vit evaluate --model=runs/digits --evaluators=knn --evaluators="fewshot(shots=(1, 10))"
    keras-vit evaluate --model=runs/ages

The model is the directory of a run, a `.keras` file, a checkpoint, or an artifact: a SavedModel, or a TFLite, ONNX or
OpenVINO file. By default, the program uses the data set and the evaluation split of the run. Every example counts
exactly once. --evaluators selects the evaluators, see docs/evaluation.md. By default, models of classes are measured
with `classification`, models of values with `regression`, and models of masks with `segmentation`. If an evaluator
needs features and the artifact does not return them, it is listed as not measured, and the exit code is 1.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_model_flags()
common_flags.define_data_flag()
flags.DEFINE_string("split", None, "Split of the data set; by default the run's evaluation split.")
flags.DEFINE_multi_string("evaluators", [], "Evaluator, such as 'knn' or 'fewshot(shots=(1, 10))'. May be repeated.")
flags.DEFINE_integer("batch_size", 64, "Images per call of the model.", 1)
common_flags.define_on_bad_image_flag()
common_flags.define_json_flag()

with cli.imports(__name__):
    import numpy as np

    from keras_vit import evaluators
    from keras_vit.evaluators import results_table
    from keras_vit.inference import open_predictor, sample_images
    from keras_vit.training import run_summary
    from keras_vit.util.formatting import percent


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    suite = evaluators.Suite(options.evaluators)
    predictor = open_predictor(options.model, **common_flags.model_options())
    if not options.evaluators:
        suite = evaluators.Suite([predictor.card.kind.evaluator])
    recipe = predictor.card.recipe_data
    given = common_flags.data_argument(argv[1:])
    source, split = given or sample_images.source_of(predictor.card), options.split or predictor.card.reported_split
    if not source:
        raise ValueError("--data is missing: the data set that the model was trained on is not known.")

    def compare(name, opened):
        if name == source and not given:
            sample_images.warn_of_changes(predictor.card, opened)

    open_split = evaluators.split_opener(
        options.batch_size, options.on_bad_image or recipe.get("on_bad_image", "error"), compare
    )
    context = evaluators.Context(predictor, open_split, source, recipe.get("train_split", "train"), split)
    logging.info("%s, on %s[%s]", predictor.kind, source, split)
    suite.check(context)
    predictor.prepare_for_many()
    results = suite.run(context)
    if options.json:
        # Without --evaluators, the output is one object that also names the model and the data.
        origin = {"model": predictor.path, "model_sha256": predictor.card.sha256, "kind": predictor.kind}
        origin |= {"data": source, "split": split}
        alone = {**origin, **results[0].details, **results[0].metrics}
        output = results_table.to_json(results) if options.evaluators else results_table.json_text(alone)
    else:
        output = results_table.table(results)
        if not options.evaluators:
            details = results[0].details
            if "per_value" in details:
                lines = table("Errors per value", results[0], details["per_value"], details["value_names"])
            elif isinstance(details["per_class"], Mapping):
                lines = table("Scores per class", results[0], details["per_class"], details["class_names"])
            else:
                lines = per_class(details, predictor.class_names)
            remark = details.get("remark")
            output = "\n".join([output, *([remark] if remark else []), "", *lines])
    sys.stdout.write(f"{output}\n")
    return 0 if all(result.measured for result in results) else 1


def table(title: str, result: evaluators.Result, numbers: Mapping[str, np.ndarray], names: Sequence[str]) -> list[str]:
    """Return a table as lines of text. `numbers` maps the name of a column to a number for each value or class."""
    lines = [title, f"  {'':<24}{''.join(f'{key:>12}' for key in numbers)}"]
    for index, name in enumerate(names):
        meanings = (result.meanings.get(key, evaluators.Metric(key, unit="%")) for key in numbers)
        texts = (meaning.text(float(values[index])) for meaning, values in zip(meanings, numbers.values(), strict=True))
        lines.append(f"  {name:<24}{''.join(f'{text:>12}' for text in texts)}")
    return lines


def per_class(details: Mapping[str, Any], class_names: Sequence[str]) -> list[str]:
    """Return the lowest accuracies of classes and the confusion matrix as lines of text."""
    accuracies, confusion = details["per_class"], details["confusion"]
    order = np.argsort(accuracies, kind="stable")[: np.isfinite(accuracies).sum()]  # omit classes without images
    lines = ["Accuracy per class" if confusion is not None else "Recall per class"]
    lines += [f"  {class_names[index]:<24}{percent(accuracies[index], 2):>12}" for index in order[:20]]
    if len(order) > 20:
        lines.append(f"  (the 20 lowest of {len(order)})")
    return lines if confusion is None else [*lines, "", *run_summary.confusion_lines(confusion, class_names)]


if __name__ == "__main__":
    cli.run(main)
