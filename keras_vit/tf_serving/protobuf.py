"""Message classes from declarations: fields, numbers and types define the bytes on the wire."""

import types
from collections.abc import Mapping
from typing import Any

Fields = tuple[tuple[str, int, str], ...]
_SCALARS = ("int32", "int64", "uint32", "uint64", "float", "double", "bool", "string", "bytes")


def declare(package: str, messages: Mapping[str, Fields]) -> types.SimpleNamespace:
    """Return message classes by name, in a pool of their own: the real ones may be imported in the same process.

    Args:
        package: Name of the protobuf package.
        messages: Fields of each message: name, number, and the name of a scalar type or of a message. `"map"` is a map
            from string to bytes; `[]` marks repeated fields.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    scalars = {name: getattr(field_type, f"TYPE_{name.upper()}") for name in _SCALARS}
    file = descriptor_pb2.FileDescriptorProto(name="keras_vit/declared.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            repeated = kind.endswith("[]") or kind == "map"
            field = message.field.add(name=field_name, number=number)
            field.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            kind = kind.removesuffix("[]")
            if kind in scalars:
                field.type = scalars[kind]
                continue
            field.type = field_type.TYPE_MESSAGE
            if kind == "map":
                entry = message.nested_type.add(name=field_name.title().replace("_", "") + "Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, type=scalars["string"], label=field_type.LABEL_OPTIONAL)
                entry.field.add(name="value", number=2, type=scalars["bytes"], label=field_type.LABEL_OPTIONAL)
                kind = f"{name}.{entry.name}"
            field.type_name = f".{package}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return types.SimpleNamespace(
        **{name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
    )


def to_dict(message: Any) -> dict[str, Any]:
    """Return a message as REST APIs write it in JSON."""
    from google.protobuf import json_format

    return json_format.MessageToDict(message, preserving_proto_field_name=True)
