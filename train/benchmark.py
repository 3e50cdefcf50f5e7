r"""Measures inference and training steps, side by side with other packages.

    python -m train.benchmark --model=ViT-B/16
    python -m train.benchmark --task=training --batch=8 --precision=bfloat16 \
        --peer=keras_hub=/path/to/venv/bin/python --peer=timm=/path/to/venv/bin/python

Every system runs in a process of its own, and the systems take their steps in turn; what is printed is the median of
the ratios, so that a machine that slows down for a while slows all alike. A peer is named with the Python of the
environment that holds it; without one, this environment is taken.
"""

import json

from absl import app, flags, logging

from keras_vit import _checks
from keras_vit.benchmarking import contestants, machine, race

flags.DEFINE_enum("task", "inference", ["inference", "training"], "What a step is.")
flags.DEFINE_string("model", "ViT-B/16", f"One of {', '.join(contestants.MODELS)}.")
flags.DEFINE_integer("batch", 16, "Images a step.", lower_bound=1)
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "Dtype of the computation.")
flags.DEFINE_multi_string(
    "peer", [], "SYSTEM or SYSTEM=PYTHON: keras_hub, vit_keras, timm, timm_compiled, transformers."
)
flags.DEFINE_integer("rounds", 7, "Steps that each system takes.", lower_bound=1)
flags.DEFINE_string("json", None, "File to which the results are appended, one JSON object a line.")


def main(argv):
    del argv
    values = flags.FLAGS
    _checks.choice("model", values.model, list(contestants.MODELS))
    work = {"task": values.task, "model": values.model, "batch": values.batch, "precision": values.precision}
    entrants = [race.entrant("keras_vit", work=work)]
    for peer in values.peer:
        name, _, python = peer.partition("=")
        _checks.choice("peer", name, list(contestants.SYSTEMS))
        entrants.append(race.entrant(name, python or None, work=work, root=None))
    results = race.race(entrants, values.rounds)
    title = f"{values.model} {values.task}, batch {values.batch}, {values.precision}; {machine.describe()}"
    if values.json:
        record = {"title": title, "rounds": values.rounds, "results": [vars(result) for result in results]}
        with open(values.json, "a") as file:
            file.write(json.dumps(record) + "\n")
    logging.info("%s\n%s", title, race.table(results, values.batch))


def run():
    app.run(main)


if __name__ == "__main__":
    run()
