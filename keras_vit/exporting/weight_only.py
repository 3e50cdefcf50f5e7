"""Weights in 8 bits in ONNX, OpenVINO and TFLite files that compute in float32.

Kernels of matrix products and convolutions become integers from -127 to 127, with one scale for each output channel.
Each format has an operator that multiplies the integers by their scales. The existing tools are not used: AI Edge
Quantizer pins one version of LiteRT, NNCF requires many packages, and ONNX Runtime quantizes only the weights of its
own operators.
"""

import itertools
import os
from typing import Any

import numpy as np

from keras_vit.exporting import tflite_files
from keras_vit.inference import onnx, openvino

NAME = "weight_only_int8"
_OF_PIXELS = 1  # first kernels that stay in float32: 1% of a ViT, but their rounding would affect all other layers
SMALLEST = 1024  # weights; in a smaller kernel, the scales cost more than the integers save


def quantize(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantize weights to int8.

    Returns the integers, and the scales of the channels on the given axis, float32 `[channels]`.
    """
    axis %= weights.ndim
    others = tuple(index for index in range(weights.ndim) if index != axis)
    largest = np.abs(weights).max(axis=others)
    scales = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    return np.rint(weights / np.expand_dims(scales, others)).astype(np.int8), scales


def in_onnx_file(path: str) -> None:
    """Replace the kernels of an ONNX file with integers and `DequantizeLinear` operators."""
    library = onnx.import_onnx()
    helper, numpy_helper = library.helper, library.numpy_helper
    model = library.load(path)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    for node in [node for node in nodes if node.input[1] in constants][_OF_PIXELS:]:
        tensor = constants.pop(node.input[1], None)  # None if the kernel was replaced for another node
        if tensor is None or np.prod(tensor.dims) < SMALLEST:
            continue
        is_transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        axis = 0 if is_transposed or node.op_type == "Conv" else 1
        integers, scales = quantize(numpy_helper.to_array(tensor), axis)
        names = [f"{tensor.name}/int8", f"{tensor.name}/scale"]
        model.graph.initializer.remove(tensor)
        model.graph.initializer.extend(map(numpy_helper.from_array, (integers, scales), names))
        # The output gets the name of the kernel, so that every node that used the kernel now uses this output.
        model.graph.node.insert(0, helper.make_node("DequantizeLinear", names, [tensor.name], axis=axis))
    library.save(model, path)


def in_openvino_file(path: str) -> None:
    """Replace the kernels of an OpenVINO file with integers that are converted to float32 and multiplied by scales."""
    runtime = openvino.import_openvino()
    opset, model = runtime.opset13, runtime.Core().read_model(path)
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() in ("MatMul", "Convolution")]
    constants = [node.input_value(1).get_node().get_type_name() == "Constant" for node in nodes]
    for node in list(itertools.compress(nodes, constants))[_OF_PIXELS:]:
        source = node.input_value(1)
        constant: Any = source.get_node()
        if constant.get_type_name() != "Constant" or np.prod(constant.shape) < SMALLEST:
            continue  # already replaced, or small
        weights = constant.data
        is_product = node.get_type_name() == "MatMul"
        axis = weights.ndim - 1 if is_product and not node.get_attributes()["transpose_b"] else 0
        integers, scales = quantize(weights, axis)
        shape = [-1 if index == axis else 1 for index in range(weights.ndim)]
        floats = opset.convert(opset.constant(integers), "f32")
        kernel = opset.multiply(floats, opset.constant(scales.reshape(shape)), name=constant.get_friendly_name())
        for target in source.get_target_inputs():
            target.replace_source_output(kernel.output(0))
    draft = f"{os.path.splitext(path)[0]}_int8.xml"  # saving still reads weights from the original file
    runtime.save_model(model, draft, compress_to_fp16=False)
    del model
    for extension in (".xml", ".bin"):
        os.replace(os.path.splitext(draft)[0] + extension, os.path.splitext(path)[0] + extension)


def in_tflite_file(content: bytes) -> bytes:
    """Replace the kernels of a TFLite file with integers and `DEQUANTIZE` operators."""
    from tensorflow.lite.python import schema_py_generated as schema

    model = tflite_files.read(content)
    kinds = schema.BuiltinOperator
    code = tflite_files.add_code(model, kinds.DEQUANTIZE, version=5)  # supports scales per channel
    # Index of a kernel's buffer -> index of the buffer of its integers, and scales. Graphs share buffers.
    done: dict[int, tuple[int, np.ndarray]] = {}
    for graph in model.subgraphs:
        added = []
        codes = [model.operatorCodes[operator.opcodeIndex].builtinCode for operator in graph.operators]
        products = [code in (kinds.FULLY_CONNECTED, kinds.CONV_2D) for code in codes]
        for operator in list(itertools.compress(graph.operators, products))[_OF_PIXELS:]:
            index = operator.inputs[1]
            kernel = graph.tensors[index]
            data = model.buffers[kernel.buffer].data
            if kernel.type != schema.TensorType.FLOAT32 or data is None or np.prod(kernel.shape) < SMALLEST:
                continue
            if kernel.buffer not in done:
                integers, scales = quantize(np.frombuffer(data.tobytes(), np.float32).reshape(kernel.shape), 0)
                done[kernel.buffer] = len(model.buffers), scales
                model.buffers.append(schema.BufferT())
                model.buffers[-1].data = integers.reshape(-1).view(np.uint8)
            stored = schema.TensorT()
            stored.quantization = schema.QuantizationParametersT()
            stored.name, stored.shape, stored.type = kernel.name + b"/int8", kernel.shape, schema.TensorType.INT8
            stored.buffer, stored.quantization.scale = done[kernel.buffer]
            stored.quantization.zeroPoint = np.zeros(len(stored.quantization.scale), np.int64)
            graph.tensors.append(stored)
            kernel.buffer = 0
            dequantize = schema.OperatorT()
            dequantize.opcodeIndex, dequantize.inputs, dequantize.outputs = code, [len(graph.tensors) - 1], [index]
            added.append(dequantize)
        graph.operators = added + graph.operators
    used = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    for index in done.keys() - used:
        model.buffers[index].data = None
    return tflite_files.pack(model)
