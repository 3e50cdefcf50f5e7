"""What `make demo` wrote is checked: a missing file or a low accuracy is an error."""

import pytest

from tools import check_demo


@pytest.fixture
def demo(tmp_path):
    for name in (*check_demo.PAGES, *check_demo.MODELS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("name", ["report/report.html", "digits.tflite"])
def test_missing_file_fails_the_check(demo, monkeypatch, name):
    monkeypatch.setattr(check_demo, "evaluate", lambda model: 1.0)
    check_demo.check(demo)
    (demo / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        check_demo.check(demo)


def test_low_accuracy_fails_the_check(demo, monkeypatch):
    monkeypatch.setattr(check_demo, "evaluate", lambda model: 0.97 if model.endswith(".tflite") else 0.975)
    with pytest.raises(ValueError, match="digits.tflite .* 97.5%. Received: 97.00%"):
        check_demo.check(demo)
