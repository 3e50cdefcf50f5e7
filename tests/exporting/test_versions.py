"""Numbers of versions, by hand."""

import pytest

from keras_vit.exporting import versions


@pytest.mark.parametrize(
    ("there", "expected"), [((), 1), (("1", "2"), 3), (("3",), 4), (("1", "10"), 11), (("2", "new", ".tmp"), 3)]
)
def test_the_next_version_is_after_the_largest(there, expected, tmp_path):
    """Serving takes the largest number: a new version that fills a gap would never be served."""
    for name in there:
        (tmp_path / name).mkdir()
    with versions.new_version(str(tmp_path)) as draft:
        pass
    assert draft.version == expected
    assert (tmp_path / str(expected)).is_dir()


def test_a_version_that_exists_is_not_written(tmp_path):
    (tmp_path / "2").mkdir()
    with pytest.raises(FileExistsError, match="Version 2 exists"), versions.new_version(str(tmp_path), 2):
        pytest.fail("A draft was begun.")
    with versions.new_version(str(tmp_path), 1) as draft:
        pass
    assert draft.version == 1
    with pytest.raises(ValueError, match="version must be at least 1"), versions.new_version(str(tmp_path), 0):
        pass


def test_a_failed_export_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="disk"), versions.new_version(str(tmp_path)):
        raise OSError("disk full")
    assert list(tmp_path.iterdir()) == []
