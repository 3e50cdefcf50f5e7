"""Collects `test_on_jax.py` where JAX is the backend, and of its tests a part if `PART_OF_TESTS` is "1/2" or "2/2"."""

import os

collect_ignore = [] if os.environ.get("KERAS_BACKEND") == "jax" else ["test_on_jax.py"]


def pytest_collection_modifyitems(items):
    part, _, parts = os.environ.get("PART_OF_TESTS", "1/1").partition("/")
    first, last = (len(items) * count // int(parts) for count in (int(part) - 1, int(part)))
    items[:] = items[first:last]
