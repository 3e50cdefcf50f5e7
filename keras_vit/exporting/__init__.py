"""Export of models to SavedModel, TFLite, ONNX and OpenVINO, each verified on real images."""
