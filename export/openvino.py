"""Export a trained model as an OpenVINO model, and verify it on real images.

    keras-vit export-openvino --model=runs/digits --output=digits.xml
    keras-vit export-openvino --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' --images='*.jpg' --output=vit.xml

NAME.xml and NAME.bin compute probabilities of preprocessed images, in float32. The labels (OUTPUT.labels.txt) and the
model card (OUTPUT.json, with the preprocessing) are written beside them. If --output does not end in .xml it is a
directory, for model.xml. The program needs pip install 'keras-vision-transformers[openvino]'.
"""

from collections.abc import Sequence

from absl import flags

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_export_flags()
common_flags.define_output_flag()
flags.DEFINE_integer("batch_size", None, "Images per call; any number if not given.", 1)

with program.imports(__name__, backend="tensorflow"):
    from keras_vit.exporting import command


def main(argv: Sequence[str]) -> int:
    del argv
    return command.run_onnx_openvino("openvino")


if __name__ == "__main__":
    program.run(main)
