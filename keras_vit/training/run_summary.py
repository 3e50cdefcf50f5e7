"""The report at the end of a run: a text and a figure."""

import os
from collections.abc import Sequence

import numpy as np
from absl import logging

from keras_vit import recipe as recipes
from keras_vit.data import preprocess
from keras_vit.evaluators import confidence
from keras_vit.inference import masks
from keras_vit.inspection import examples, plots
from keras_vit.inspection.headings import run_title, stamp
from keras_vit.runs.run_directory import METRICS, MODEL, REPORT, TENSORBOARD, last_evaluation, read_metrics
from keras_vit.training.validation import Validation
from keras_vit.util.formatting import percent
from keras_vit.util.metrics import Metric

_WIDEST_TABLE = 20  # classes; with more classes, only the most frequent confusions are printed


def report_text(directory: str, results: dict, validation: Validation) -> str:
    """Return the report: score, confusion matrix and list of files.

    `results` and `validation` are of the chosen weights: of the split that chooses them, and of the reported split.
    """
    task = validation.task
    _, score, *others = task.metrics
    reported, chosen_by = (
        f"{each['split']} {score.name} {score.text(each[f'eval_{score.name}'])} on {each['examples']} examples"
        for each in (validation.results, results)
    )
    lines = ["", reported]
    lines += [f"{each.name} {each.text(validation.results[f'eval_{each.name}'])}" for each in others]
    if validation.tally is not None and score.name == "accuracy":
        lines += confidence.lines(validation.tally)
    if chosen_by != reported:
        lines.append(f"{chosen_by}, used to choose the best checkpoint")
    lines += best_line(directory, score)
    if validation.tally is not None:
        lines += ["", *(task.lines(validation.tally) or confusion_lines(validation.tally, task.class_names))]
    files = [name for name in (MODEL, METRICS, TENSORBOARD, REPORT) if os.path.exists(os.path.join(directory, name))]
    lines += ["", f"In {directory}: {', '.join(files)}"]
    lines += [f"To visualize attention: keras-vit visualize --model={directory} --output={directory}/inspection"]
    return "\n".join(lines)


def best_line(directory: str, score: Metric) -> list[str]:
    """Return a line about the choice of the weights in `model.keras`; empty if there was no choice."""
    name, step = f"eval_{score.name}", last_evaluation(directory).get("step")
    scores = {line["step"]: line[name] for line in read_metrics(directory) if name in line}
    if step not in scores or len(scores) < 2:
        return []
    last, text = max(scores), f"{MODEL} has the weights of step {step}, the best of {len(scores)} evaluations"
    return [text if step == last else f"{text}; --checkpoint=last: {score.text(scores[last])} at step {last}"]


def confusion_lines(confusion: np.ndarray, class_names: Sequence[str]) -> list[str]:
    """Return the confusion matrix as a table or, with many classes, only the most frequent confusions."""
    if len(class_names) <= _WIDEST_TABLE:
        width = max(4, *(len(str(count)) + 1 for count in confusion.flat))
        label = max(len(name) for name in class_names)
        head = "".join(f"{name[: width - 1]:>{width}}" for name in class_names)
        rows = [
            f"  {name:>{label}} {''.join(f'{count or chr(0xB7):>{width}}' for count in row)}"
            for name, row in zip(class_names, confusion.tolist(), strict=True)
        ]
        return ["Confusion (rows: true class, columns: predicted)", f"  {'':>{label}} {head}", *rows]
    wrong = confusion - np.diag(np.diag(confusion))
    most = np.argsort(-wrong, axis=None, kind="stable")[:10]
    pairs = [np.unravel_index(index, wrong.shape) for index in most]
    rows = [f"  {class_names[t]} taken for {class_names[p]}: {wrong[t, p]}" for t, p in pairs if wrong[t, p]]
    return ["Most frequent confusions", *rows]


def draw_figure(recipe: recipes.Recipe, directory: str, validation: Validation) -> None:
    """Draw report.png, or log the package to install if it cannot be drawn."""
    path, history, results = os.path.join(directory, REPORT), read_metrics(directory), validation.results
    quantities, score, name = recipe.task.metrics[:2], recipe.task.score, run_title(recipes.to_dict(recipe))
    headline = f"{score.name} {score.text(results[f'eval_{score.name}'])}"
    if validation.tally is not None and score.name == "accuracy":
        headline += f" (largest class {percent(validation.tally.sum(axis=1).max() / validation.tally.sum(), 2)})"
    shown = validation.task.show(validation.examples or {}, preprocess.device_function(recipe.data.pp_eval))
    try:
        if not shown.captions:
            title = f"{name}: {headline}"
            overlaid = {name: masks.overlay(shown.images["image"], mask) for name, mask in shown.masks.items()}
            drawn = plots.reconstructions({**shown.images, **overlaid}, title, plots.MAX_IMAGES, history, quantities)
            plots.save(drawn, path)
            return
        (images,) = shown.images.values()
        chosen = examples.choose(plots.MAX_IMAGES, shown.right, shown.confidence, len(images))
        plots.draw_report(
            path,
            history,
            images[chosen],
            [shown.captions[index] for index in chosen],
            None if shown.right is None else shown.right[chosen],
            quantities,
            title=headline,
            subtitle=f"{name} · {results['examples']:,} images, {results['split']} split · {stamp()}",
        )
    except ImportError as error:
        logging.warning("%s was not written: %s", REPORT, error)
