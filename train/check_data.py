"""Looks through a data set before it is trained on.

    python -m train.check_data --source=folder:/pictures
    python -m train.check_data --source=folder:/pictures --sheet=sheet.png \
        --pp='decode_jpeg_and_inception_crop(224)|flip_lr|randaug(2, 10)|value_range(-1, 1)'

Tells how many pictures each class has and how large they are, names unreadable pictures and those that occur twice, and
draws what the network will see. The exit code is 1 when there are unreadable pictures or pictures in several splits.
"""

import json
import sys

import keras
import numpy as np
from absl import flags, logging

from keras_vit import _io, data, program
from keras_vit.data import check

flags.DEFINE_string("source", None, "Data set, such as folder:/pictures.")
flags.DEFINE_list("splits", [], "Splits to look at; all that the data set has if not given.")
flags.DEFINE_string("pp", None, "Preprocessing to draw the contact sheet with.")
flags.DEFINE_string("sheet", None, "PNG file for the contact sheet; none is drawn if not given.")
flags.DEFINE_integer("sheet_count", 64, "Pictures on the contact sheet.", 1)
flags.DEFINE_integer("threads", 0, "Threads to decode with; one for each core if 0.", 0)
flags.DEFINE_bool("json", False, "Write one JSON object instead of a table.")

LISTED = 20  # of each kind of problem
DEFAULT_PP = "decode|resize(128)|value_range(-1, 1)"


def main(argv):
    del argv
    options = flags.FLAGS
    if not options.source:
        raise ValueError("--source is missing: the data set, such as folder:/pictures.")
    names = options.splits or [name for name in data.split_sizes(options.source) if name != "all"]
    sources = {name: data.open_source(options.source, split=name) for name in names}
    pictures = {}
    for name, source in sources.items():
        logging.info("Looking at %s", source)
        bar = keras.utils.Progbar(source.num_examples, unit_name="image", verbose=0 if options.json else 1)
        pictures[name] = check.look(source, options.threads, bar.update)
    results = summarize(sources, pictures)
    if options.sheet:
        pp = options.pp or DEFAULT_PP
        sheet, results["sheet"] = check.contact_sheet(next(iter(sources.values())), pp, options.sheet_count)
        with _io.atomic_file(options.sheet) as temporary, open(temporary, "wb") as file:
            file.write(sheet)
        logging.info("%s shows %s after %s", options.sheet, names[0], pp)
    sys.stdout.write(json.dumps(results) + "\n" if options.json else as_text(results))
    return 1 if results["unreadable"] or results["in_several_splits"] else 0


def summarize(sources, pictures):
    """All findings, as a dictionary that can be written as JSON."""
    first = next(iter(sources.values()))
    groups = check.duplicates(pictures)
    as_lists = [[f"{split}: {picture.origin}" for split, picture in group] for group in groups]
    crossing = [len({split for split, _ in group}) > 1 for group in groups]
    conflicting = [len({picture.classes for _, picture in group}) > 1 for group in groups]
    return {
        "source": first.name,
        "class_names": list(first.class_names),
        "splits": {
            name: {
                "examples": len(found),
                "per_class": check.count_classes(found, first.num_classes),
                "heights": spread([picture.size[0] for picture in found if picture.size]),
                "widths": spread([picture.size[1] for picture in found if picture.size]),
            }
            for name, found in pictures.items()
        },
        "unreadable": {p.origin: p.problem for found in pictures.values() for p in found if p.problem},
        "in_several_splits": [names for names, crosses in zip(as_lists, crossing, strict=True) if crosses],
        "twice_in_a_split": [names for names, crosses in zip(as_lists, crossing, strict=True) if not crosses],
        "same_picture_other_class": [names for names, differ in zip(as_lists, conflicting, strict=True) if differ],
    }


def spread(values):
    """Least, middle and largest."""
    return [int(min(values)), int(np.median(values)), int(max(values))] if values else []


def as_text(results):
    splits = results["splits"]
    width = max([len(name) for name in results["class_names"]] + [10])
    lines = [results["source"], " ".join(["class".ljust(width)] + [name.rjust(12) for name in splits])]
    for number, name in enumerate(results["class_names"]):
        counts = [split["per_class"][number] for split in splits.values()]
        mark = "   no example" if not counts[0] else ""
        lines.append(" ".join([name.ljust(width)] + [f"{count:12,}" for count in counts]) + mark)
    lines.append(" ".join(["all".ljust(width)] + [f"{split['examples']:12,}" for split in splits.values()]))
    for name, split in splits.items():
        if split["heights"]:
            low, middle, high = (f"{w} x {h}" for w, h in zip(split["widths"], split["heights"], strict=True))
            lines.append(f"{name}: least {low}, median {middle}, largest {high} pixels (widths and heights apart)")
    unreadable = [f"{origin}: {problem}" for origin, problem in results["unreadable"].items()]
    lines += listing("unreadable", unreadable)
    lines += listing("in several splits", [", ".join(names) for names in results["in_several_splits"]])
    lines += listing("twice in a split", [", ".join(names) for names in results["twice_in_a_split"]])
    lines += listing("same picture in other class", [", ".join(names) for names in results["same_picture_other_class"]])
    if "sheet" in results:
        lines.append("classes on the sheet, row by row:")
        lines += [f"  {', '.join(row)}" for row in results["sheet"]]
    return "\n".join(lines) + "\n"


def listing(title, entries):
    more = [f"  and {len(entries) - LISTED:,} more (--json lists all)"] if len(entries) > LISTED else []
    return [f"{title}: {len(entries):,}"] + [f"  {entry}" for entry in entries[:LISTED]] + more


def run():
    program.run(main)


if __name__ == "__main__":
    run()
