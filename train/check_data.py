"""Check a data set before training.

    keras-vit check-data folder:/images
    keras-vit check-data folder:/images --model=hf:facebook/dinov2-small --output=review
    keras-vit check-data folder:/images --sheet=sheet.png \
        --preprocess='decode_jpeg_and_inception_crop(224)|flip_lr|randaug(2, 10)|value_range(-1, 1)'

The program counts the images of each class or describes the values, and measures the sizes of the images. It lists
unreadable images and duplicates, and draws augmented training images. For masks, the program also measures the share of
the pixels of each class and lists masks that do not fit their images. For a folder, the program also lists unused
files, folders and links, and classes without test images.

With --model, the program computes the features of all images once, and lists labels that may be wrong, classes that
overlap, near duplicates (resized, cropped or saved again) and outliers. --output sets a folder for a page with these
images, review.html, and for the list of all images, images.csv, the most suspicious labels first. To leave out images
or to correct labels, edit the list and train with manifest:OUTPUT/images.csv. The features are kept in
OUTPUT/features.parts, and are reused if the model, the preprocessing and the images are unchanged.

The exit code is 1 if an image is unreadable, or if an image or a near duplicate occurs in several splits.
"""

import itertools
import json
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_data_flag()
flags.DEFINE_list("splits", [], "Splits to check. All splits of the data set if empty.")
common_flags.define_model_flags(
    "Run, .keras file, checkpoint or artifact whose features are compared.",
    ", for the contact sheet, and for a model that has none",
    class_names=False,
)
common_flags.define_output_flag("Folder for the page and the list of images; needs --model.")
common_flags.define_written_flag("sheet", "PNG file for the contact sheet; not drawn if empty.")
flags.DEFINE_integer("sheet_count", 64, "Number of images on the contact sheet.", 1)
flags.DEFINE_integer("threads", 0, "Number of decoding threads. 0 uses one per core.", 0)
common_flags.define_json_flag()

FEATURES = "features.parts"  # in --output; with this extension, a copy of a bucket contains the files
LISTED = 20  # maximum number of entries per kind of problem
LINES = {  # findings of a comparison of features, and the lines that list them
    "suspicious_labels": "{split}: {path}: {label}, predicted {predicted}",
    "near_duplicates": "{split}: {path}, {near_split}: {near_duplicate}",
    "outliers": "{split}: {path}",
}
DEFAULT_PP = "decode|resize(128)|value_range(-1, 1)"

with cli.imports(__name__):
    import numpy as np

    from keras_vit import data
    from keras_vit.inference import open_predictor, tables
    from keras_vit.inference.masks import palette
    from keras_vit.util import checks, file_io
    from keras_vit.util.formatting import percent
    from keras_vit.util.progress import Progress

    from .datasets import audit, review, review_files


@cli.published("sheet")
@cli.published("output")
def main(argv: Sequence[str]) -> int:
    options, given = flags.FLAGS, common_flags.data_argument(argv[1:])
    if not given:
        raise ValueError("The data set is missing. Name it first, such as folder:images.")
    if options.output and not options.model:
        raise ValueError("--output needs --model, whose features the review compares.")
    if os.path.isfile(options.output or ""):
        raise ValueError(f"--output must be a folder. Received: --output={options.output}, a file.")
    names = options.splits or [name for name in data.split_sizes(given) if name != "all"]
    sources = {name: data.open_source(given, split=name) for name in names}
    reports = {}
    for name, source in sources.items():
        logging.info("Checking %s[%s]", given, name)
        with Progress(name, source.num_examples) as bar:
            reports[name] = audit.audit(source, options.threads, bar.update)
    results = summarize(sources, reports)
    if options.model:
        results |= compare_features(given, sources, reports)
    if options.sheet:
        pp = options.preprocess or DEFAULT_PP
        with Progress("Drawing the contact sheet"):
            sheet, results["sheet"] = audit.contact_sheet(next(iter(sources.values())), pp, options.sheet_count)
        with file_io.atomic_file(options.sheet) as temporary, open(temporary, "wb") as file:
            file.write(sheet)
        logging.info("%s shows %s after %s", options.sheet, names[0], pp)
    sys.stdout.write(json.dumps(results) + "\n" if options.json else as_text(results))
    crossing = any(row["split"] != row["near_split"] for row in results.get("near_duplicates", []))
    return 1 if results["unreadable"] or results["in_several_splits"] or crossing else 0


def compare_features(given: str, sources: dict[str, data.Source], reports: review.Reports) -> dict[str, Any]:
    """Review the images by their features, write the files, and return the findings."""
    options = flags.FLAGS
    for report in itertools.chain.from_iterable(reports.values()):
        tables.check_name(report.origin)
    predictor = open_predictor(options.model, **common_flags.model_options())
    folder = os.path.join(options.output, FEATURES) if options.output else None
    found = review.review(predictor, given, sources, reports, folder)
    if options.output:
        review_files.write_list(os.path.join(options.output, review_files.LIST), found)
        review_files.write_page(os.path.join(options.output, review_files.PAGE), found, sources, options.model)
    return {**found.findings, "confusion": found.confusion.tolist()}


def summarize(sources: dict[str, data.Source], reports: review.Reports) -> dict[str, Any]:
    """Return all findings as a JSON-serializable dictionary."""
    first = next(iter(sources.values()))
    groups = audit.duplicates(reports)
    as_lists = [[f"{split}: {report.origin}" for split, report in group] for group in groups]
    crossing = [len({split for split, _ in group}) > 1 for group in groups]
    conflicting = [len({report.label for _, report in group}) > 1 for group in groups]
    return {
        "source": first.name,
        "class_names": list(first.class_names),
        "value_names": list(first.value_names),
        "notes": [*first.notes, *about_masks(reports)],
        "splits": {
            name: {
                "examples": len(found),
                "per_class": audit.count_classes(found, first.num_classes),
                "pixels": audit.pixel_shares(found, first.num_classes),
                "per_value": audit.describe_values(found, first.value_names),
                "heights": spread([report.size[0] for report in found if report.size]),
                "widths": spread([report.size[1] for report in found if report.size]),
            }
            for name, found in reports.items()
        },
        "unreadable": {p.origin: p.problem for found in reports.values() for p in found if p.problem},
        "in_several_splits": [names for names, crosses in zip(as_lists, crossing, strict=True) if crosses],
        "twice_in_a_split": [names for names, crosses in zip(as_lists, crossing, strict=True) if not crosses],
        "same_image_other_label": [names for names, differ in zip(as_lists, conflicting, strict=True) if differ],
    }


def about_masks(reports: review.Reports) -> list[str]:
    """Return notes about masks whose pixels are all ignored."""
    ignored = [report.origin for found in reports.values() for report in found if report.pixels and not report.label]
    return [f"Images whose mask has only ignored pixels: {checks.listed(ignored)}."] if ignored else []


def spread(values: Sequence[int]) -> list[int]:
    """Return minimum, median and maximum."""
    return [int(min(values)), int(np.median(values)), int(max(values))] if values else []


def as_text(results: dict[str, Any]) -> str:
    splits = results["splits"]
    width = max([len(name) for name in results["class_names"]] + [10])
    title = "" if results["value_names"] else "class"
    lines = [results["source"], " ".join([title.ljust(width)] + [name.rjust(12) for name in splits])]
    for number, name in enumerate(results["class_names"]):
        counts = [split["per_class"][number] for split in splits.values()]
        mark = "   no examples" if not counts[0] else ""
        lines.append(" ".join([name.ljust(width)] + [f"{count:12,}" for count in counts]) + mark)
    lines.append(" ".join(["all".ljust(width)] + [f"{split['examples']:12,}" for split in splits.values()]))
    if any(split["pixels"] for split in splits.values()):
        lines.append("share of the pixels:")
        for number, name in enumerate([*results["class_names"], "(ignored)"]):
            shares = [split["pixels"][number] if split["pixels"] else 0 for split in splits.values()]
            lines.append(" ".join([name.ljust(width)] + [f"{percent(share, 2):>12}" for share in shares]))
    for name, split in splits.items():
        lines += [
            f"{name}: {value} of {found['count']:,} images, mean {found['mean']:.6g}, "
            f"standard deviation {found['deviation']:.6g}, minimum {found['min']:.6g}, maximum {found['max']:.6g}"
            for value, found in split["per_value"].items()
        ]
        if split["heights"]:
            low, middle, high = (f"{w} x {h}" for w, h in zip(split["widths"], split["heights"], strict=True))
            lines.append(f"{name}: minimum {low}, median {middle}, maximum {high} pixels, each side on its own")
    lines += listing("about the folder", results["notes"]) if results["notes"] else []
    unreadable = [f"{origin}: {problem}" for origin, problem in results["unreadable"].items()]
    lines += listing("unreadable", unreadable)
    lines += listing("in several splits", [", ".join(names) for names in results["in_several_splits"]])
    lines += listing("twice in a split", [", ".join(names) for names in results["twice_in_a_split"]])
    lines += listing("same image, another label", [", ".join(names) for names in results["same_image_other_label"]])
    lines += about_features(results, flags.FLAGS.output) if "near_duplicates" in results else []
    if "sheet" in results:
        lines.append("labels on the sheet, row by row:")
        lines += [f"  {', '.join(row)}" for row in results["sheet"]]
    if "sheet" in results and any(split["pixels"] for split in splits.values()):
        colors = [bytes(color).hex() for color in palette(len(results["class_names"])).tolist()]
        pairs = [f"{name} #{color}" for name, color in zip(results["class_names"], colors, strict=True)]
        lines.append(f"colors of the classes on the sheet: {', '.join(pairs)}")
    return "\n".join(lines) + "\n"


def about_features(results: dict[str, Any], output: str | None) -> list[str]:
    """Return the findings of `compare_features` as lines of text, and how to use the list of images."""
    lines = []
    for key, form in LINES.items():
        lines += listing(key.replace("_", " "), [form.format(**row) for row in results[key]])
    wrong = results["suspicious_labels"]
    if output:
        page, images, kept = (os.path.join(output, name) for name in (review_files.PAGE, review_files.LIST, "kept.csv"))
        lines.append(f"{page} shows them; {images} lists all images, the most suspicious labels first.")
        split = next(iter(results["splits"]))  # without difficult test images, the accuracy would be too high
        if any(row["split"] == split for row in wrong) and os.path.isfile(wrong[0]["path"]):
            lines.append(f"To train without these labels of the split {split} (or correct them in the list first):")
            command = shlex.quote(f"2,{len(wrong) + 1}{{/,{split},/d;}}")
            lines.append(f"  sed {command} {shlex.quote(images)} > {shlex.quote(kept)}")
            names = results["class_names"]
            are_numbers = all(name.replace(".", "", 1).isdecimal() for name in names)
            options = f"#class_names={names}" if are_numbers and names != list(map(str, range(len(names)))) else ""
            lines.append(f"  keras-vit train {shlex.quote(f'manifest:{kept}{options}')}")
    return lines


def listing(title: str, entries: Sequence[str]) -> list[str]:
    more = [f"  and {len(entries) - LISTED:,} more (--json lists all)"] if len(entries) > LISTED else []
    return [f"{title}: {len(entries):,}"] + [f"  {entry}" for entry in entries[:LISTED]] + more


if __name__ == "__main__":
    cli.run(main)
