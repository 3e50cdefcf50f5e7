"""The notebooks of `examples/` run from top to bottom, and are committed with their outputs."""

import json
import re

import pytest

from tests.docs import pages, snippets

NOTEBOOKS = sorted((pages.ROOT / "examples").glob("*.ipynb"))


def test_example_folder_contains_notebooks():
    assert [path.name for path in NOTEBOOKS] == ["fine_tune_own_images.ipynb", "inspect_a_model.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_committed(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"display_data", "execute_result", "stream"}
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert path.stat().st_size < 300_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_links_of_notebooks_resolve(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            for link in pages.links("".join(cell["source"])):
                assert (path.parent / link.partition("#")[0]).exists(), link


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_run(path, tmp_path, monkeypatch):
    """From top to bottom in one namespace, with a few steps instead of hundreds, without commands of the notebook."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pyplot, "show", lambda: None)
    pages.compile_for_a_few_steps(monkeypatch)
    names = {"__name__": path.stem}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            code = re.sub(r"(?m)^%.*$", "", "".join(cell["source"]))
            code = re.sub(r"\bsteps( ?= ?)\d{2,}\b", r"steps\g<1>10", code)
            with snippets.warnings_are_errors("`compile\\(\\)` was not called"):  # it is not Keras' own here
                exec(compile(code, f"{path.name}, cell {number}", "exec"), names)
    assert pyplot.get_fignums()
    pyplot.close("all")
