"""Measures a trained model, or an artifact exported from it, on labelled images.

    python -m train.evaluate --model=runs/digits
    python -m train.evaluate --model=runs/digits --data=folder:/pictures --split=test --json
    python -m train.evaluate --model=runs/digits --artifact=digits.tflite
    python -m train.evaluate --model=runs/digits --evaluators=knn --evaluators="fewshot(shots=(1, 10))" --markdown

An artifact is a SavedModel, or a TFLite, ONNX or OpenVINO file. Without --data it takes the data set and the
evaluation split of the run. Every example counts exactly once. --evaluators measures something else instead: see
docs/recipes.md for what there is. What an artifact has no features for is listed as not measured, and the exit status
is 1.
"""

import json
import sys

import numpy as np
from absl import flags, logging

from keras_vit import evaluators, program
from keras_vit.inference import open_classifier
from keras_vit.training import report

flags.DEFINE_string("model", None, "Directory of a run, .keras file, or exported artifact.")
flags.DEFINE_string("artifact", None, "Measure this exported artifact instead of the model.")
flags.DEFINE_string("data", None, "Data set, such as folder:/pictures; the run's own if not given.")
flags.DEFINE_string("split", None, "Split of the data set; the run's evaluation split if not given.")
flags.DEFINE_multi_string("evaluators", [], "Evaluators to run, such as 'knn' or 'fewshot(shots=(1, 10))'.")
flags.DEFINE_bool("markdown", False, "Write a row of a Markdown table.")
flags.DEFINE_integer("batch_size", 64, "Images in one call of the model.", 1)
flags.DEFINE_enum("on_bad_image", None, ["error", "skip"], "Images that cannot be read; the run's recipe if not given.")
flags.DEFINE_bool("json", False, "Write one JSON object instead of a table.")


def main(argv):
    del argv
    options = flags.FLAGS
    if not (options.model or options.artifact):
        raise ValueError("--model is missing: the directory of a run, a .keras file, or an exported artifact.")
    if options.json and options.markdown:
        raise ValueError("Expected one form of output. Received: --json and --markdown.")
    suite = evaluators.Suite(options.evaluators or ["classification"])
    classifier = open_classifier(options.artifact or options.model)
    recipe = classifier.card.recipe_data
    name, split = options.data or recipe.get("source"), options.split or recipe.get("eval_split", "test")
    if not name:
        raise ValueError("--data is missing: the model does not say what it was trained on.")
    on_bad_image = options.on_bad_image or recipe.get("on_bad_image", "error")
    what = subject(classifier, name, split, evaluators.opener(options.batch_size, on_bad_image))
    suite.check(what)
    if not options.evaluators:
        return plain(classifier, suite, what)
    results = suite.run(what)
    if options.json:
        output = evaluators.report.to_json(results)
    elif options.markdown:
        output = evaluators.report.markdown_row(classifier.path, results)
    else:
        output = evaluators.report.table(results)
    sys.stdout.write(f"{output}\n")
    return 0 if all(result.measured for result in results) else 1


def plain(classifier, suite, what):
    """Measures the classification, with the accuracy of each class."""
    options = flags.FLAGS
    logging.info("%s, on %s[%s]", classifier.kind, what.source, what.eval_split)
    (result,) = suite.run(what)
    if options.markdown:
        sys.stdout.write(evaluators.report.markdown_row(classifier.path, [result]) + "\n")
        return 0
    origin = {"model": classifier.path, "kind": classifier.kind, "data": what.source, "split": what.eval_split}
    results = {**origin, "mean_average_precision": None, **result.details, **result.metrics}
    if options.json:
        output = json.dumps(evaluators.report.plain(results), allow_nan=False) + "\n"
    else:
        output = as_table(results, classifier.class_names)
    sys.stdout.write(output)
    return 0


def subject(classifier, name, split, open_split):
    """The classifier as evaluators take it."""
    recipe = classifier.card.recipe_data
    is_model = classifier.kind == "keras"
    return evaluators.Subject(
        classifier.scores,
        None if classifier.features_unavailable else classifier.features,
        open_split,
        name,
        recipe.get("train_split", "train"),
        split,
        classifier.card.preprocess,
        output=classifier.card.output,
        scores_are=classifier.scores_are,
        class_names=classifier.class_names,
        image_shape=classifier.model.input_shape[1:] if is_model else classifier.card.image_shape,
        without_features=classifier.features_unavailable or "",
    )


def as_table(results, class_names):
    rows = [
        ("examples", f"{results['examples']:,}"),
        ("accuracy", f"{results['accuracy']:.4%}"),
        ("top-5 accuracy", f"{results['top5']:.4%}"),
        ("loss", f"{results['loss']:.4f}"),
        ("calibration error", f"{results['ece']:.4f}"),
    ]
    if results["mean_average_precision"] is not None:
        rows.append(("mean average precision", f"{results['mean_average_precision']:.4f}"))
    if results["non_finite"]:
        rows.append(("answers not finite", f"{results['non_finite']:,}"))
    lines = [f"{results['model']} on {results['data']}[{results['split']}]"]
    lines += [f"  {name:<24}{value:>12}" for name, value in rows]
    lines += ["", "Accuracy of each class" if results["confusion"] is not None else "Recall of each class"]
    order = np.argsort(np.nan_to_num(results["per_class"], nan=2.0), kind="stable")
    shown = order[:20]
    lines += [f"  {class_names[index]:<24}{results['per_class'][index]:>12.2%}" for index in shown]
    if len(order) > len(shown):
        lines.append(f"  (the {len(shown)} lowest of {len(order)})")
    if results["confusion"] is not None:
        lines += ["", *report.confusion_lines(results["confusion"], class_names)]
    return "\n".join(lines) + "\n"


def run():
    program.run(main)


if __name__ == "__main__":
    run()
