"""Export a trained model as an OpenVINO model, and verify it on real images.

    python -m export.openvino --model=runs/digits --output=digits.xml
    python -m export.openvino --model=ViT-B_16.npz --preprocess='value_range(-1, 1)' --images='*.jpg' --output=vit.xml

NAME.xml and NAME.bin compute probabilities of preprocessed images, in float32. The labels (OUTPUT.labels.txt) and the
model card (OUTPUT.json, with the preprocessing) are written beside them. If --output does not end in .xml it is a
directory, for model.xml. The program needs pip install 'keras-vision-transformers[openvino]'.
"""

from absl import flags

from keras_vit import program
from keras_vit.exporting import command

command.define_model_flags(num_images=64)
command.define_output_flag()
flags.DEFINE_integer("batch_size", None, "Images per call; any number if not given.", 1)


def main(argv):
    del argv
    return command.run_onnx_openvino("openvino")


def run():
    program.run(main)


if __name__ == "__main__":
    run()
