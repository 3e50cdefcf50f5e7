"""Changes of TFLite files: reading them as objects of TensorFlow's schema, and writing them."""

from typing import Any

_ALIGNMENT = 16  # of the weights, by the schema of TFLite


def read(content: bytes) -> Any:
    """Return the `ModelT` of a file."""
    from tensorflow.lite.python import schema_py_generated as schema

    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))


def add_code(model: Any, operator: int, version: int = 1) -> int:
    """Add a kind of operator, of `BuiltinOperator`; return its index."""
    from tensorflow.lite.python import schema_py_generated as schema

    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = operator
    code.version = version
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def pack(model: Any) -> bytes:
    """Return the file of a `ModelT`."""
    import flatbuffers

    class Builder(flatbuffers.Builder):
        """Align bytes as the schema demands; the generated code does not."""

        def StartVector(self, elemSize, numElems, alignment):  # noqa: N802, N803  the name that is overridden
            alignment = _ALIGNMENT if elemSize == 1 else alignment
            return super().StartVector(elemSize, numElems, alignment)

    size = sum(len(buffer.data) for buffer in model.buffers if buffer.data is not None)
    builder = Builder(size + (1 << 16))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
