"""Export a trained model as an ONNX file, and verify it on real images.

    python -m export.onnx --model=runs/digits --output=digits.onnx
    python -m export.onnx --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' --images='*.jpg' --output=vit.onnx

The file computes probabilities of preprocessed images, in float32. Its labels (OUTPUT.labels.txt) and its model card
(OUTPUT.json, with the preprocessing) are written beside it. If --output does not end in .onnx it is a directory, for
model.onnx. The program needs pip install 'keras-vision-transformers[onnx]'.
"""

from absl import flags

from keras_vit import program
from keras_vit.exporting import command

command.define_model_flags(num_images=64)
command.define_output_flag()
flags.DEFINE_integer("batch_size", None, "Images per call; any number if not given.", 1)


def main(argv):
    del argv
    return command.run_onnx_openvino("onnx")


def run():
    program.run(main)


if __name__ == "__main__":
    run()
