"""Numbers of versions, by hand."""

import pytest

from keras_vit.exporting import saved_model
from tests import tiny


@pytest.mark.parametrize(
    ("there", "expected"), [((), 1), (("1", "2"), 3), (("3",), 4), (("1", "10"), 11), (("2", "new", ".tmp"), 3)]
)
def test_the_next_version_is_after_the_largest(there, expected, tmp_path):
    """Serving takes the largest number: a new version that fills a gap would never be served."""
    for name in there:
        (tmp_path / name).mkdir()
    assert saved_model.version_number(str(tmp_path)) == expected


def test_a_version_that_exists_is_not_written(tmp_path):
    (tmp_path / "2").mkdir()
    with pytest.raises(FileExistsError, match="Version 2 exists"):
        saved_model.version_number(str(tmp_path), 2)
    assert saved_model.version_number(str(tmp_path), 1) == 1
    with pytest.raises(ValueError, match="version must be at least 1"):
        saved_model.version_number(str(tmp_path), 0)


@pytest.mark.slow
def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(saved_model.signatures, "write", fail)
    with pytest.raises(OSError, match="disk"):
        saved_model.write(tiny.model(), str(tmp_path), card=tiny.card(), images=tiny.images(1))
    assert list(tmp_path.iterdir()) == []
