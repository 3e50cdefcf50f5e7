"""Reading and writing of TFLite files as objects of TensorFlow's schema, in order to change them."""

from typing import Any

_ALIGNMENT = 16  # bytes, for weights, as TFLite's schema requires


def read(content: bytes) -> Any:
    """Parse a file into a `ModelT`."""
    from tensorflow.lite.python import schema_py_generated as schema

    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))


def add_code(model: Any, operator: int, version: int = 1) -> int:
    """Add an operator code, a value of `BuiltinOperator`, and return its index."""
    from tensorflow.lite.python import schema_py_generated as schema

    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = operator
    code.version = version
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def pack(model: Any) -> bytes:
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
