"""One source for the accuracy of the demo: the file that `benchmarks.demo` writes."""

import json
import re

import pytest
from absl.testing import flagsaver

from keras_vit.util import file_io
from tests import programs
from tests.docs import pages

MEASURED = file_io.read_json(pages.ROOT / "benchmarks" / "demo.json")
QUOTING = [*pages.PAGES, pages.ROOT / "train" / "configs" / "digits.py"]


def shown(accuracy):
    return f"{accuracy:.2%}"


@pytest.fixture
def program():
    return programs.load("benchmarks.demo")


def test_table_in_the_document_matches_the_results_file(program):
    text = (pages.ROOT / program.DOCUMENT).read_text(encoding="utf-8")
    (table,) = re.findall(r"<!-- demo -->\n(.*?)<!-- /demo -->", text, re.DOTALL)
    assert table.strip() == program.table(MEASURED).strip()
    assert shown(MEASURED["tensorflow"]["accuracy"]) in table


def test_table_of_export_formats_has_the_accuracy_of_the_demo_model():
    text = (pages.ROOT / "docs" / "export_formats.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| digits \(trained\) \| keras \|.*", text, re.MULTILINE)
    assert shown(MEASURED["tensorflow"]["accuracy"]) in row.split(" | ")


@pytest.mark.parametrize("page", QUOTING, ids=pages.name_of)
def test_pages_quote_only_measured_accuracies(page):
    text = re.sub(r"<!-- ([\w :]+) -->\n.*?<!-- /\1 -->", "", page.read_text("utf-8"), flags=re.DOTALL)
    known = {shown(found["accuracy"]) for found in MEASURED.values()}
    for sentence in re.split(r"(?<=[.!?])\s|\n\n", text):
        if re.search(r"\b(demo|digits)\b", sentence):
            quoted = re.findall(r"(?<![\d.])9[789]\.\d+ ?%", sentence)
            assert {one.replace(" ", "") for one in quoted} <= known, sentence


def test_demo_measures_the_train_and_evaluate_commands(program, monkeypatch, tmp_path):
    """Fakes replace both commands and write the same files and output."""
    calls = []

    def run_program(backend, arguments):
        calls.append((backend, arguments[0]))
        directory = arguments[-1 if arguments[0] == "train" else 1].partition("=")[2]
        content = {"recipe": {"total_steps": 1_800, "seed": 3}, "versions": {"keras": "3.15.1"}}
        file_io.write_json(f"{directory}/config.json", content)
        return json.dumps({"accuracy": 0.975, "examples": 360}).encode()

    monkeypatch.setattr(program, "run_program", run_program)
    monkeypatch.setattr(program.run_directory, "read_config", lambda path: file_io.read_json(f"{path}/config.json"))
    page, measured = tmp_path / "page.md", tmp_path / "demo.json"
    page.write_text("<!-- demo -->\n<!-- /demo -->\n")
    with flagsaver.flagsaver():
        given = [f"--workdir={tmp_path}", f"--measured={measured}", f"--document={page}", "--backends=tensorflow"]
        program.flags.FLAGS(["demo", *given])
        assert [program.main([]), program.main([])] == [0, 0]
    assert calls == [("tensorflow", "train"), ("tensorflow", "evaluate"), ("tensorflow", "evaluate")]
    assert "| TensorFlow | 1,800 | 3 | 360 | 97.50% |" in page.read_text()
