"""Parts of arrays that are computed once."""

import numpy as np
import pytest

from keras_vit.inference.feature_store import FeatureStore


def test_part_is_computed_once_per_description(tmp_path):
    folder, calls = str(tmp_path / "features"), []

    def compute():
        calls.append(1)
        return {"features": np.full([2, 3], len(calls))}

    def value(about, number=0, **options):
        return FeatureStore(folder, about, **options).part(number, compute)["features"][0, 0]

    assert [value({"weights": 1}), value({"weights": 1}), value({"weights": 1}, 1)] == [1, 1, 2]
    assert value({"weights": 2}) == 3  # other weights replace the part
    (tmp_path / "features" / "000000000.npz").write_bytes(b"PK damaged")
    assert [value({"weights": 2}), value({"weights": 2})] == [4, 4]
    with pytest.raises(ValueError, match=r"values of: weights\."):
        value({"weights": 1}, replaces=False)
    assert value({"weights": 2}, replaces=False) == 4
    assert FeatureStore(None, {}).part(0, compute)["features"][0, 0] == 5
