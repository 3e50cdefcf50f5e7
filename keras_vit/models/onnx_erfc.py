"""Conversion of TensorFlow's `Erfc`, the complementary error function in the exact GELU, to ONNX."""

import functools

import numpy as np


@functools.cache
def register_erfc() -> None:
    """Register a conversion of `Erfc`, which ONNX lacks. Otherwise tf2onnx writes a file that no runtime can open."""
    try:
        from tf2onnx.handler import tf_op
    except ImportError:
        return  # Keras raises an error that names the missing package

    def erfc(graph, node, **_):
        shape, dtype = graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
        negative = graph.make_node("Neg", [node.input[0]]).output[0]
        erf = graph.make_node("Erf", [negative]).output[0]
        one = graph.make_const(f"{node.name}/one", np.ones((), np.float32)).output[0]
        graph.remove_node(node.name)
        # erfc(x) = 1 + erf(-x)
        graph.make_node("Add", [erf, one], name=node.name, outputs=node.output, dtypes=[dtype], shapes=[shape])

    tf_op("Erfc").register_compat_handler(erfc, 9)  # the first opset with Erf
