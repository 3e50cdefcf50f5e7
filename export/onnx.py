"""Export a trained model as an ONNX file, and verify it on real images.

    keras-vit export-onnx --model=runs/digits --output=digits.onnx
    keras-vit export-onnx --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' --images='*.jpg' --output=vit.onnx

The file computes probabilities of preprocessed images, in float32. Its labels (OUTPUT.labels.txt) and its model card
(OUTPUT.json, with the preprocessing) are written beside it. If --output does not end in .onnx it is a directory, for
model.onnx. The program needs pip install 'keras-vision-transformers[onnx]'.
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
    return command.run_onnx_openvino("onnx")


if __name__ == "__main__":
    program.run(main)
