"""Operators that convert a TFLite file's output to the unit of the data, in float32 for every precision of the file.

The converter would fold the operators into the last layer and lose precision. For example, with a mean of 1950 and a
standard deviation of 10, a step of an 8-bit output would be 10, and a step of a float16 bias would be 1. The operators
are therefore appended to the converted file.
"""

from typing import Any

import numpy as np

from keras_vit.util.values import Values

_ALIGNMENT = 16  # bytes, for weights, as TFLite's schema requires


def append(content: bytes, signature: str, values: Values) -> bytes:
    """Append operators that multiply a signature's only output by the standard deviation and add the mean."""
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    definition = next(item for item in model.signatureDefs if item.signatureKey == signature.encode())
    graph = model.subgraphs[definition.subgraphIndex]
    (output,) = definition.outputs
    raw = result = output.tensorIndex

    def add_tensor(name: str, shape: Any, numbers: Any = ()) -> int:
        """Add a tensor, or a constant with the given numbers; return its index."""
        tensor, buffer = schema.TensorT(), schema.BufferT()
        buffer.data = np.frombuffer(np.float32(numbers).tobytes(), np.uint8) if numbers else None
        tensor.name, tensor.shape, tensor.type = name.encode(), shape, schema.TensorType.FLOAT32
        tensor.buffer = len(model.buffers)
        model.buffers.append(buffer)
        graph.tensors.append(tensor)
        return len(graph.tensors) - 1

    for name, numbers in (("Mul", values.deviation), ("Add", values.mean)):
        code, operator = schema.OperatorCodeT(), schema.OperatorT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, name.upper())
        operator.opcodeIndex = len(model.operatorCodes)
        model.operatorCodes.append(code)
        constant = add_tensor(f"values/{name}/constant", [len(numbers)], numbers)
        operator.inputs = [result, constant]
        result = add_tensor(f"values/{name}", graph.tensors[raw].shape)
        operator.outputs = [result]
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, f"{name}Options")
        operator.builtinOptions = getattr(schema, f"{name}OptionsT")()
        graph.operators.append(operator)
    graph.outputs = [result if index == raw else index for index in graph.outputs]
    output.tensorIndex = result
    # Programs without signatures run the first graph. The converter sorts the graphs by name.
    order = sorted(range(len(model.subgraphs)), key=lambda index: index != definition.subgraphIndex)
    model.subgraphs = [model.subgraphs[index] for index in order]
    for item in model.signatureDefs:
        item.subgraphIndex = order.index(item.subgraphIndex)
    return _pack(model)


def _pack(model: Any) -> bytes:
    """Serialize a `ModelT` to the content of a file."""
    import flatbuffers

    class Builder(flatbuffers.Builder):
        """Builder that aligns bytes as the schema requires, which the generated code does not."""

        def StartVector(self, elemSize, numElems, alignment):  # noqa: N802, N803  the name that is overridden
            alignment = _ALIGNMENT if elemSize == 1 else alignment
            return super().StartVector(elemSize, numElems, alignment)

    size = sum(len(buffer.data) for buffer in model.buffers if buffer.data is not None)
    builder = Builder(size + (1 << 16))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
