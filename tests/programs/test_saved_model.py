"""`export.main` to a SavedModel on a finished run."""

import json
import os
import types

import pytest

from keras_vit.exporting import verify
from keras_vit.inference import formats
from keras_vit.inference.opening import open_artifact
from tests import tiny
from tests.programs import call, load


@pytest.mark.slow
def test_a_second_export_writes_the_next_version(run, saved_model):
    assert call("export.main", f"--model={run}", f"--output={saved_model}", "--version=1") == 1
    assert os.listdir(saved_model) == ["1"]


@pytest.mark.parametrize(
    ("arguments", "path", "format"),
    [
        (["--output=a.onnx"], "a.onnx", "onnx"),
        (["--output=served"], "served", "saved_model"),
        (["--output=a", "--format=saved_model"], "a", "saved_model"),
        (["--output=a", "--format=onnx"], "a/model.onnx", "onnx"),
        (["--output=a", "--format=openvino"], "a/model.xml", "openvino"),
        (["--output=a", "--format=tflite"], "a/model_float32.tflite", "tflite"),
        (["--output=a", "--format=tflite", "--precision=int8"], "a/model_int8.tflite", "tflite"),
        (["--output=b.tflite", "--format=tflite"], "b.tflite", "tflite"),
    ],
)
def test_format_follows_from_the_output_path(arguments, path, format):
    program = load("export.main")
    program.flags.FLAGS(["export", *arguments])
    assert program.output() == (path, format)


def test_a_registered_format_is_a_value_of_format(monkeypatch):
    monkeypatch.setitem(formats.FORMATS, "stub", formats.Format("stub", ".stub", "StubPredictor", "stub"))
    program = load("export.main")
    program.flags.FLAGS(["export", "--output=a", "--format=stub"])
    assert program.output() == ("a/model.stub", "stub")
    with pytest.raises(program.flags.IllegalFlagValueError, match="format.*stub"):
        program.flags.FLAGS(["export", "--output=a", "--format=coreml"])


@pytest.mark.parametrize(
    ("flag", "owner"),
    [
        *((flag, "saved_model") for flag in ("signature=features", "batch_sizes=1")),
        *((flag, "tflite") for flag in ("calibration=a", "calibration_images=1", "max_accuracy_drop=0.1")),
    ],
)
def test_flags_of_another_format_are_refused(flag, owner):
    program = load("export.main")
    program.flags.FLAGS(["export", f"--{flag}"])
    program.check_flags(owner)
    for other in {"saved_model", "tflite", "onnx", "openvino"} - {owner}:
        message = f"--{flag.partition('=')[0]} is a flag of --format={owner}. Received: .* with --format={other}"
        with pytest.raises(ValueError, match=message):
            program.check_flags(other)


@pytest.fixture
def exported(monkeypatch, caplog):
    """Runs the program with a model that is not read, and returns what the writer and the choice of images got."""

    def run_with(*arguments, features=True):
        program, calls = load("export.main"), {}
        card = tiny.card()
        predictor = types.SimpleNamespace(model=None, card=card, class_names=card.class_names)
        monkeypatch.setattr(program.trained_model, "open_model", lambda: predictor)
        monkeypatch.setattr(program, "head_input", lambda model: features or None)
        monkeypatch.setattr(program.model_card, "size_of", lambda path: 1_260_000)

        def for_model(card, count, **options):
            calls.setdefault("images", []).append((count, options))
            return tiny.images(1)

        def write(predictor, path, format, images, **options):
            calls["options"] = options
            return path, verify.Comparison(1, 0.0, 0.0)

        monkeypatch.setattr(program.sample_images, "for_model", for_model)
        monkeypatch.setattr(program, "write", write)
        program.flags.FLAGS(["export", "--model=run", *arguments])
        caplog.set_level("INFO", "absl")
        assert program.main([]) == 0
        return calls["options"], calls["images"]

    return run_with


def test_flags_of_a_saved_model_become_options(exported, caplog, capsys):
    options, images = exported("--output=served", "--top_k=3", "--max_pixels=9", "--version=3")
    assert options.pop("tolerance") == verify.tolerance_of("float32")
    assert options == {
        "top_k": 3,
        "max_pixels": 9,
        "version": 3,
        "extra_signatures": ("features",),
        "warm_up": [1, 4, 8],
    }
    assert [count for count, _ in images] == [64]
    assert "1.3 MB" in caplog.messages and capsys.readouterr().out == "served\n"
    assert exported("--output=served", features=False)[0]["extra_signatures"] == ()
    given = ("--signature=attention", "--signature=features", "--signature=attention", "--batch_sizes=")
    options, images = exported("--output=served", *given, "--num_images=7", features=False)
    assert options.keys() == {"extra_signatures", "warm_up", "tolerance"}
    assert (options["extra_signatures"], options["warm_up"]) == (("attention", "features"), [])
    assert [count for count, _ in images] == [7]


def test_number_of_images_follows_from_the_limits(exported):
    options, images = exported("--output=a.tflite", "--precision=dynamic_int8", "--max_difference=0.1")
    assert images[0][0] == 381 and options["tolerance"] == verify.Tolerance(0.1, 0.99)
    given = ("--images=a.png", "--images=b", "--on_bad_image=skip")
    options, images = exported("--output=a.tflite", "--precision=dynamic_int8", "--min_agreement=0.9", *given)
    assert images[0][0] == 64 and options["tolerance"] == verify.Tolerance(0.5, 0.9)
    assert images[0][1] == {"patterns": ["a.png", "b"], "split": None, "on_bad_image": "skip"}


def test_flags_of_a_file_become_options(exported):
    options, _ = exported("--output=a.tflite", "--input_dtype=uint8", "--features", "--batch_size=2")
    assert options.pop("tolerance") == verify.tolerance_of("float32")
    assert options == {"input_dtype": "uint8", "features": True, "batch_size": 2}


def test_calibration_flags_become_options(exported):
    options, (verified, calibrated) = exported("--output=a.tflite", "--precision=int8", "--on_bad_image=skip")
    assert verified[0] == 512 and calibrated[0] == 256
    assert calibrated[1] == {"patterns": [], "split": "train", "on_bad_image": "skip"}
    assert options.pop("tolerance") == verify.tolerance_of("int8")
    assert options.keys() == {"precision", "calibration"}
    arguments = ("--max_accuracy_drop=0.5", "--calibration=a.png", "--calibration_images=9", "--precision=int16x8")
    options, (_, calibrated) = exported("--output=a.tflite", *arguments)
    assert (calibrated[0], calibrated[1]["patterns"], options["tolerance"].accuracy_drop) == (9, ["a.png"], 0.5)


def test_an_artifact_cannot_be_exported_again(tmp_path):
    (tmp_path / "digits.tflite").write_bytes(b"")
    with pytest.raises(ValueError, match="--model must be a run"):
        call("export.main", f"--model={tmp_path / 'digits.tflite'}", f"--output={tmp_path / 'served'}")


@pytest.mark.slow
def test_the_card_names_the_origin_of_the_artifact(saved_model):
    card = open_artifact(str(saved_model)).card
    assert card.class_names == tuple(str(i) for i in range(10))
    assert card.metrics["eval_accuracy"] == 0.5
    assert card.data["num_train"] == 1437
    assert card.recipe["data"]["source"] == "digits"
    assert len(card.model_sha256) == 64


@pytest.mark.slow
def test_the_path_of_the_artifact_is_printed(run, tmp_path, capsys):
    arguments = (f"--model={run}", f"--output={tmp_path / 'a.tflite'}", "--num_images=8")
    assert call("export.main", "--format=tflite", *arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a.tflite'}\n"
    assert call("export.main", "--format=tflite", *arguments, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["path"] == str(tmp_path / "a.tflite")
    assert answer["bytes"] == (tmp_path / "a.tflite").stat().st_size
    assert (answer["examples"], answer["top1_agreement"]) == (8, 1.0)


@pytest.mark.slow
def test_files_that_are_not_part_of_a_run_are_exported(run, tmp_path):
    model = tiny.model()
    model.save(tmp_path / "model.keras")
    (tmp_path / "names.txt").write_text("\n".join(tiny.CLASS_NAMES), encoding="utf-8")
    for index, content in enumerate(tiny.images(3).contents):
        (tmp_path / f"{index}, pink.png").write_bytes(content)  # a comma in a name is no separator
    arguments = [f"--model={tmp_path / 'model.keras'}", f"--output={tmp_path / 'a.tflite'}"]
    arguments += [f"--class_names={tmp_path / 'names.txt'}"]
    with pytest.raises(ValueError, match="--images="):
        call("export.main", "--format=tflite", *arguments)
    arguments += [f"--images={tmp_path}/[01], pink.png", f"--images={tmp_path / '2, pink.png'}"]
    assert call("export.main", "--format=tflite", *arguments) == 0
    assert open_artifact(str(tmp_path / "a.tflite")).class_names == tiny.CLASS_NAMES
    verify = [argument for argument in arguments if not argument.startswith("--output")]
    assert call("export.verify", *verify, f"--artifact={tmp_path / 'a.tflite'}") == 0
