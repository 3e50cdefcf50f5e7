"""Exports a trained model as an OpenVINO model, and checks that it answers as the model does.

    python -m export.openvino --model=runs/digits --output=digits.xml

NAME.xml and NAME.bin hold the network, from prepared images to probabilities, in float32. Its labels
(OUTPUT.labels.txt) and its card (OUTPUT.json, with the preprocessing) lie beside them. Where --output does not end in
.xml it is a directory, for model.xml. It needs pip install 'keras-vision-transformers[openvino]'.
"""

import os

from absl import flags, logging

from keras_vit import program, training
from keras_vit.serving import files, interchange, latency, pictures, runs, verify

flags.DEFINE_string("model", None, "Directory of a run, or a .keras file in one.")
flags.DEFINE_string("output", None, "Where to write.")
flags.DEFINE_integer("batch_size", None, "Pictures in one call; any number of them if not given.", 1)
flags.DEFINE_list("images", [], "Pictures to verify with; some of the run's data if not given.")
flags.DEFINE_integer("verify_examples", 64, "How many pictures to verify with.", 1)


def main(argv):
    del argv
    options = flags.FLAGS
    if not options.model or not options.output:
        raise ValueError("--model (the directory of a run) and --output (the .xml file to write) are needed.")
    path = options.output if options.output.endswith(".xml") else os.path.join(options.output, "model.xml")
    interchange.check("openvino", path)
    loaded = training.load_run(options.model)
    description = runs.describe(loaded)
    preprocess = runs.preprocess_function(description)
    examples = runs.verification_pictures(loaded, options.verify_examples, options.images)
    try:
        comparison = interchange.export_interchange(
            loaded.model,
            path,
            "openvino",
            preprocess=preprocess,
            description=description,
            examples=pictures.keep_readable(examples, preprocess),
            batch_size=options.batch_size,
        )
    except (verify.VerificationError, files.ConversionError) as error:
        logging.error("%s", error)
        return 1
    logging.info("Verified: %s", comparison.summary())
    logging.info("%s (%.1f MB)", path, latency.size_of(path) / 1e6)
    return 0


def run():
    program.run(main)


if __name__ == "__main__":
    run()
