"""The benchmark of the input pipeline."""

import json

import pytest

from tests.data import example_images
from tests.programs import call


@pytest.mark.slow
def test_every_stage_is_measured(tmp_path, capsys):
    jpegs = example_images.folder(tmp_path / "p", suffixes=("jpg",))
    code = call(
        "benchmarks.input_pipeline",
        source=f"folder:{jpegs}",
        batch_size=4,
        size=8,
        rounds=1,
        seconds=0.1,
        step_seconds=0.01,
        augment=["randaug(1, 5)"],
        json=True,
    )
    assert code == 0
    results = json.loads(capsys.readouterr().out)
    stages = ["read only", "decode only", "crop, flip, batch", "the same, scaled", "+ randaug(1, 5)"]
    assert list(results["images_per_second"]) == stages
    assert all(rate > 0 for rate in results["images_per_second"].values())
    assert all(0 <= share <= 1 for share in results["waiting_share"].values())
