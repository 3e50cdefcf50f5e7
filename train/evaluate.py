"""Measure a trained model, or an artifact exported from it, on labeled images.

    keras-vit evaluate --model=runs/digits
    keras-vit evaluate --model=runs/digits --checkpoint=best
    keras-vit evaluate --model=runs/digits folder:/images --split=test --json
    keras-vit evaluate --model=digits.tflite
    keras-vit evaluate --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' folder:/images
    keras-vit evaluate --model=runs/digits --evaluators=knn --evaluators="fewshot(shots=(1, 10))" --markdown

The model is the directory of a run, a `.keras` file, a checkpoint, or an artifact: a SavedModel, or a TFLite, ONNX or
OpenVINO file. Without a data set it takes the one and the evaluation split of the run. Every example counts exactly
once. --evaluators selects what is measured, see docs/recipes.md. An evaluator that needs features, of an artifact
without them, is listed as not measured, and the exit code is 1.
"""

import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_model_flags()
common_flags.define_data_flag()
flags.DEFINE_string("split", None, "Split of the data set; the evaluation split of the run if not given.")
flags.DEFINE_multi_string("evaluators", [], "Evaluator, such as 'knn' or 'fewshot(shots=(1, 10))'. May be repeated.")
flags.DEFINE_integer("batch_size", 64, "Images per call of the model.", 1)
common_flags.define_on_bad_image_flag()
common_flags.define_json_flag()
flags.DEFINE_bool("markdown", False, "Write a row of a Markdown table.")

with program.imports(__name__):
    import numpy as np

    from keras_vit import evaluators
    from keras_vit.inference import open_classifier, sample_images
    from keras_vit.training import run_summary


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if not options.model:
        raise ValueError("--model is missing: the directory of a run, a .keras file, or an exported artifact.")
    if options.json and options.markdown:
        raise ValueError("Expected one form of output. Received: --json and --markdown.")
    suite = evaluators.Suite(options.evaluators or ["classification"])
    classifier = open_classifier(
        options.model, preprocess=options.preprocess, labels=options.labels, checkpoint=options.checkpoint
    )
    recipe = classifier.card.recipe_data
    given = common_flags.data_argument(argv[1:])
    source, split = given or sample_images.source_of(classifier.card), options.split or recipe.get("eval_split", "test")
    if not source:
        raise ValueError("--data is missing: the data set that the model was trained on is not known.")

    def compare(name, opened):
        if name == source and not given:
            sample_images.warn_of_changes(classifier.card, opened)

    open_split = evaluators.opener(
        options.batch_size, options.on_bad_image or recipe.get("on_bad_image", "error"), compare
    )
    context = evaluators.Context(classifier, open_split, source, recipe.get("train_split", "train"), split)
    logging.info("%s, on %s[%s]", classifier.kind, source, split)
    suite.check(context)
    results = suite.run(context)
    if options.markdown:
        output = evaluators.results_table.markdown_row(classifier.path, results)
    elif options.evaluators:
        output = evaluators.results_table.to_json(results) if options.json else evaluators.results_table.table(results)
    else:
        content = details(context, results[0])
        output = evaluators.results_table.json_text(content) if options.json else table(content, classifier.class_names)
    sys.stdout.write(f"{output}\n")
    return 0 if all(result.measured for result in results) else 1


def details(context: evaluators.Context, result: evaluators.Result) -> dict[str, Any]:
    """Return everything that is measured of a classification, and of what."""
    origin: dict[str, Any] = {"model": context.classifier.path, "kind": context.classifier.kind}
    origin |= {"data": context.source, "split": context.eval_split, "mean_average_precision": None}
    return {**origin, **result.details, **result.metrics}


def table(content: dict[str, Any], class_names: Sequence[str]) -> str:
    """Return the classification as a table, with the accuracy per class and the confusions."""
    rows = [
        ("examples", f"{content['examples']:,}"),
        ("accuracy", f"{content['accuracy']:.4%}"),
        ("top-5 accuracy", f"{content['top5']:.4%}"),
        ("loss", f"{content['loss']:.4f}"),
        ("calibration error", f"{content['ece']:.4f}"),
    ]
    if content["mean_average_precision"] is not None:
        rows.append(("mean average precision", f"{content['mean_average_precision']:.4f}"))
    if content["non_finite"]:
        rows.append(("scores not finite", f"{content['non_finite']:,}"))
    lines = [f"{content['model']} on {content['data']}[{content['split']}]"]
    lines += [f"  {name:<24}{value:>12}" for name, value in rows]
    lines += ["", "Accuracy per class" if content["confusion"] is not None else "Recall per class"]
    accuracies = content["per_class"]
    order = np.argsort(np.nan_to_num(accuracies, nan=2.0), kind="stable")
    shown = order[:20]
    lines += [f"  {class_names[index]:<24}{accuracies[index]:>12.2%}" for index in shown]
    if len(order) > len(shown):
        lines.append(f"  (the {len(shown)} lowest of {len(order)})")
    if content["confusion"] is not None:
        lines += ["", *run_summary.confusion_lines(content["confusion"], class_names)]
    return "\n".join(lines)


if __name__ == "__main__":
    program.run(main)
