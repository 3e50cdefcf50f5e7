"""Types of signatures."""

from typing import Any, TypeAlias

Shape: TypeAlias = tuple[Any, ...]  # sizes of a tensor, None for those that are unknown
