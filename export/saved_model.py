"""Exports a trained model for TensorFlow Serving, and checks that it answers as the model does.

    python -m export.saved_model --model=runs/digits --output=served/digits

Writes the next free version, `served/digits/1` at first: it appears under its number only when it is complete and
verified on real pictures, and no version is ever overwritten. Files that start a server on it lie in
`served/digits/deployment`.
"""

import os

from absl import flags, logging

from keras_vit import program, training
from keras_vit.serving import decoding, deployment, latency, outputs, pictures, runs, saved_model, signatures, verify

flags.DEFINE_string("model", None, "Directory of a run, or a .keras file in one.")
flags.DEFINE_string("output", None, "Where to write.")
flags.DEFINE_integer("version", None, "Version number; the next free one if not given.", 1)
flags.DEFINE_enum("compute", "float32", ["float32", "mixed_bfloat16"], "Precision that the server computes in.")
flags.DEFINE_integer("top_k", outputs.TOP_K, "How many labels an answer holds.", 1)
flags.DEFINE_integer("max_pixels", decoding.MAX_PIXELS, "Larger pictures are refused before they are decoded.", 1)
flags.DEFINE_multi_enum(
    "signature", ["features"], list(signatures.EXTRA_SIGNATURES), "Also offer this signature; may be repeated."
)
flags.DEFINE_string("name", None, "Name of the model on the server; the name of --output if not given.")
flags.DEFINE_list(
    "batch_sizes",
    ["1", "4", "8"],
    "Batch sizes that the server may run; warmed up. Empty: no warm-up.",
)
flags.DEFINE_list("images", [], "Pictures to verify with; some of the run's data if not given.")
flags.DEFINE_integer("verify_examples", 64, "How many pictures to verify with.", 1)


def main(argv):
    del argv
    options = flags.FLAGS
    if not options.model or not options.output:
        raise ValueError("--model (the directory of a run) and --output (the directory for the versions) are needed.")
    name = deployment.check_name(options.name or os.path.basename(os.path.normpath(options.output)).lower())
    batch_sizes = [int(size) for size in options.batch_sizes if size]
    loaded = training.load_run(options.model)
    description = runs.describe(loaded)
    preprocess = runs.preprocess_function(description)
    examples = runs.verification_pictures(loaded, options.verify_examples, options.images)
    try:
        path, comparison = saved_model.export_saved_model(
            loaded.model,
            options.output,
            preprocess=preprocess,
            description=description,
            examples=pictures.keep_readable(examples, preprocess),
            version=options.version,
            dtype=options.compute,
            top_k=options.top_k,
            max_pixels=options.max_pixels,
            extra_signatures=tuple(dict.fromkeys(options.signature)),
            name=name,
            batch_sizes=batch_sizes,
        )
    except (verify.VerificationError, FileExistsError) as error:
        logging.error("%s", error)
        return 1
    folder = deployment.write(options.output, name, batch_sizes or [1], latency.size_of(path))
    logging.info("Verified: %s", comparison.summary())
    logging.info("%s (%.1f MB)", path, latency.size_of(path) / 1e6)
    logging.info("Configuration of the server, Docker Compose and Kubernetes: %s", folder)
    return 0


def run():
    program.run(main)


if __name__ == "__main__":
    run()
