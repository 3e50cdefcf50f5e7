"""Export of models to SavedModel, TFLite, ONNX and OpenVINO, each verified on real images."""

from keras_vit.exporting.export import export
from keras_vit.exporting.onnx_openvino import export_onnx_openvino
from keras_vit.exporting.saved_model import export_saved_model
from keras_vit.exporting.single_file import ConversionError
from keras_vit.exporting.tflite import export_tflite
from keras_vit.exporting.verify import Comparison, Tolerance, VerificationError

__all__ = [
    "Comparison",
    "ConversionError",
    "Tolerance",
    "VerificationError",
    "export",
    "export_onnx_openvino",
    "export_saved_model",
    "export_tflite",
]
