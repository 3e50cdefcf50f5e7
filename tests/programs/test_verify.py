"""`export.verify`: artifacts that agree with their model, and artifacts that differ."""

import dataclasses
import json
import types

import pytest

from keras_vit.exporting import verify
from tests import tiny
from tests.programs import call, load


@pytest.mark.slow
def test_verify_reports_agreement_and_differences(run, tflite_file, tmp_path, capsys):
    assert call("export.verify", f"--model={run}", f"--artifact={tflite_file}", "--num_images=40") == 0
    assert capsys.readouterr().out.endswith("agrees\n")
    tiny.write_digits_run(tmp_path / "other", seed=1)
    arguments = (f"--model={tmp_path / 'other'}", f"--artifact={tflite_file}", "--num_images=40")
    assert call("export.verify", "--json", *arguments) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False
    assert report["examples"] == 40
    assert report["top1_agreement"] < 1
    lenient = ("--max_difference=1", "--min_agreement=0", "--max_accuracy_drop=1")
    assert call("export.verify", *arguments, *lenient) == 0


def test_verification_report_is_printed(capsys, caplog):
    program = load("export.verify")
    program.flags.FLAGS(["verify", "--min_agreement=0.5", "--max_accuracy_drop=0.1"])
    card = dataclasses.replace(tiny.card(), precision="mixed_bfloat16")
    artifact = types.SimpleNamespace(path="a.xml", kind="openvino", stored_precision="float16", card=card)
    tolerance = program.choose_tolerance(artifact)
    assert tolerance == verify.Tolerance(0.02, 0.5, 0.1)
    assert caplog.messages == ["The file is float16, although its model card has precision='mixed_bfloat16'."]
    comparison = verify.Comparison(1_000, 0.0123, 0.00045, 0.75, 0.9, 0.85)
    program.report(artifact, comparison, tolerance, ["much"])
    assert capsys.readouterr().out.splitlines() == [
        "a.xml (openvino, float16)",
        "  images                           1,000",
        "  largest difference            1.23e-02  at most 2.00e-02",
        "  mean difference               4.50e-04",
        "  top-1 agreement                 75.00%  at least 50.00%",
        "  its 95% interval, from          72.22%",
        "  accuracy of the model           90.00%",
        "  accuracy of the artifact        85.00%  at most 10.00% less",
        "  limits: float16, by the types in the file, --min_agreement, --max_accuracy_drop",
        "differs",
    ]
    artifact.stored_precision = "bfloat16"  # as a policy of Keras calls it, too
    assert program.choose_tolerance(artifact).max_difference == 0.1 and len(caplog.messages) == 1
    program.report(artifact, verify.Comparison(1, 0.0, 0.0, output="values"), verify.Tolerance(0.1), [])
    lines = capsys.readouterr().out.splitlines()
    assert lines[3] == "  mean difference               0.00e+00  standard deviations" and lines[-1] == "agrees"


@pytest.mark.parametrize("name", ["export.verify", "export.main"])
def test_a_loss_of_accuracy_needs_classes_and_labels(name):
    program = load(name)
    program.flags.FLAGS(["program", "--max_accuracy_drop=0.1"])
    program.trained_model.check_accuracy_drop(tiny.card("sigmoid"), tiny.images(1))
    for output, labels, received in (
        *(("mask", [0], "a model with 'mask'"), ("mask", None, "a model with 'mask'")),
        *(("values", [0], "a model with 'values'"), ("softmax", None, "images without labels")),
    ):
        expected = f"--max_accuracy_drop needs a model of classes and images with labels. Received: {received}. "
        with pytest.raises(ValueError, match=expected):
            program.trained_model.check_accuracy_drop(tiny.card(output), tiny.images(1)._replace(labels=labels))
    program.flags.FLAGS.unparse_flags()
    program.flags.FLAGS(["program"])
    program.trained_model.check_accuracy_drop(tiny.card("mask"), tiny.images(1))
