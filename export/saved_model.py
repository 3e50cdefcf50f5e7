"""Export a trained model for TensorFlow Serving, and verify it on real images.

    keras-vit export --model=runs/digits --output=served/digits
    keras-vit export --model=my.keras --preprocess='value_range(-1, 1)' --images='*.jpg' --output=served/my

Writes the next free version, served/digits/1 at first. It appears under its number only when it is complete and
verified, and no version is ever overwritten. Files that start a server on it are written to served/digits/deployment.
"""

import os
from collections.abc import Sequence

from absl import flags, logging

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_export_flags()
common_flags.define_output_flag()
flags.DEFINE_integer("version", None, "Version number; the next free one if not given.", 1)
common_flags.define_precision_flag(["float32", "mixed_bfloat16"])
flags.DEFINE_integer("top_k", 5, "Number of labels in an answer.", 1)
flags.DEFINE_integer("max_pixels", 50_000_000, "Larger images are refused before they are decoded.", 1)
flags.DEFINE_multi_enum(
    "signature", ["features"], ["features", "attention"], "Also offer this signature; may be repeated."
)
flags.DEFINE_string("name", None, "Name of the model on the server; the name of --output if not given.")
flags.DEFINE_list(
    "batch_sizes", ["1", "4", "8"], "Batch sizes that the server may run and warms up; empty for no warm-up."
)

with program.imports(__name__, backend="tensorflow"):
    from keras_vit.exporting import command, saved_model
    from keras_vit.inference import latency
    from keras_vit.tf_serving import deployment, warmup


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    name = options.name or os.path.basename(os.path.normpath(options.output or "")).lower()
    batch_sizes = [int(size) for size in options.batch_sizes if size]
    classifier = command.open_model()
    deployment.check_name(name)
    images = command.load_images(classifier.card)

    def finish(artifact):
        if batch_sizes:
            warmup.write_warmup(artifact, name, images.contents, batch_sizes)
            warmup.replay(artifact)

    def export():
        path, comparison = saved_model.export_saved_model(
            classifier.model,
            options.output,
            card=classifier.card,
            images=images,
            version=options.version,
            precision=options.precision,
            top_k=options.top_k,
            max_pixels=options.max_pixels,
            extra_signatures=tuple(dict.fromkeys(options.signature)),
            finish=finish,
        )
        folder = deployment.write(options.output, name, batch_sizes or [1], latency.size_of(path))
        logging.info("Configuration of the server, Docker Compose and Kubernetes: %s", folder)
        return path, comparison

    return command.run_export(export)


if __name__ == "__main__":
    program.run(main)
