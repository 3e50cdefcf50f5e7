"""Export of models to SavedModel, TFLite, ONNX and OpenVINO, each verified on real images."""

from keras_vit.exporting.verified_export import export
from keras_vit.exporting.verified_file import ConversionError
from keras_vit.exporting.verify import Comparison, Tolerance, VerificationError

__all__ = ["Comparison", "ConversionError", "Tolerance", "VerificationError", "export"]
