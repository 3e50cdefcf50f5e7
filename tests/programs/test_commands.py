"""The command `keras-vit`, its help, and the flags of the programs."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
from absl import flags

from keras_vit import outputs, recipe
from keras_vit.cli import command_line, commands, common_flags
from keras_vit.exporting import graph_ops, signatures
from keras_vit.inference import formats
from keras_vit.training import chosen_recipe, distribute
from keras_vit.training.planning import plan
from keras_vit.util import foreign_names
from keras_vit.version import __version__
from tests import programs
from tests.experiments.test_comparison import write_run

ROOT = pathlib.Path(__file__).parents[2]
HEAVY = {"tensorflow", "keras", "numpy", "jax"}


def start(*arguments):
    """Run Python with these arguments; return its exit code, its output and the packages that it imported."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    imported = re.findall(r"^import time:[\s\d|]+?\| +(\w+)$", done.stderr, re.MULTILINE)
    assert "absl" in imported
    return done.returncode, done.stdout, set(imported)


@pytest.mark.parametrize("name", commands.PROGRAMS)
def test_help_imports_nothing_heavy(name):
    code, output, imported = start("-m", "keras_vit", name, "--help")
    assert code == 0 and not imported & HEAVY
    assert f"keras-vit {name} " in output and "\nflags:\n" in output


def test_help_shows_the_most_used_flags_first(monkeypatch):
    programs.load("train.main")
    monkeypatch.setattr(sys, "argv", ["train.main"])
    shown = re.findall(r"^  --(\w+):", command_line.help_text(""), re.MULTILINE)
    used = ["workdir", "data", "model", "weights", "adapt", "epochs", "steps", "time", "batch_size", "learning_rate"]
    assert shown[:12] == [*used, "image_size", "seed"]


def test_help_of_the_command_and_of_a_module():
    code, output, imported = start("-m", "train.evaluate", "--helpshort")
    assert code == 0 and not imported & HEAVY and "--checkpoint" in output and "keras-vit evaluate" in output
    code, output, imported = start("-m", "keras_vit", "--help")
    assert code == 0 and not imported & HEAVY
    assert set(re.findall(r"^  ([a-z-]+) +\S", output, re.MULTILINE)) == set(commands.PROGRAMS)


WITHOUT_KERAS = """
import json, os, sys
sys.argv[0] = sys.modules['__main__'].__file__ = 'keras-vit'
from keras_vit.cli import command_line, commands
from keras_vit import zoo
from keras_vit.zoo import variants
from train import experiments
assert not {'tensorflow', 'keras', 'jax'} & {*sys.modules}
class Missing:
    def find_spec(name, *_):
        if name in ('tensorflow', 'keras', 'jax'):
            raise ImportError(name + ' is imported')
sys.meta_path.insert(0, Missing)
for arguments in json.loads(sys.argv[1]):
    print('---', flush=True)
    if not os.fork():
        sys.argv[1:] = arguments
        os.dup2(1, 2)
        commands.main()
        sys.stdout.flush()
        os._exit(0)
    print('exit code', os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
RUN = "tests/runs/data/run"
MISTAKES = [  # the arguments, and a part of the message
    ("trian", "'train'"),
    ("plan --confg=digits", "config"),
    ("train folder:nonexist --model=ViT_S16", "'nonexist'"),
    ("train nonexist", "'nonexist'"),
    ("train", "folder:images"),
    ("train folder:tests --time=5m --config.total_steps=30", "total_steps"),
    ("train folder:tests --time=abc", "'abc'"),
    ("train folder:tests --model=./no/model", "'./no/model'"),
    ("train folder:tests --weights=no/weights.npz", "'no/weights.npz'"),
    ("train --config=digitz", "'digits'"),
    ("train digits", "--config=digits"),
    ("train folder:a folder:b", "one data set"),
    ("sweep --config=no.py --workdir=a --grid=seed=1", "'no.py'"),
    ("plan npz:no.npz", "'no.npz'"),
    ("plan --target=v5e-8", "no flag --target. --help"),
    ("check-data manifest:no.csv", "'no.csv'"),
    ("check-data tfrecord:/no/folder/train-*", "/no/folder"),
    ("check-data digits --model=no", "'no'"),
    ("make-tfrecords images:no --output=a", "'no'"),
    ("evaluate", "--model is missing"),
    ("export --format=onx", "|".join(formats.FORMATS)),
    ("export --precision=int7", "|".join(formats.PRECISIONS)),
    ("evaluate --model=no", "'no'"),
    ("evaluate folder:no --model=" + RUN, "'no'"),
    ("predict --model=hf:a/.. setup.py", "hf:OWNER/NAME"),
    ("predict --model=" + RUN, "keras-vit predict"),
    ("embed --output=a.npz setup.py", "--model is missing"),
    ("embed --model=no --output=a.npz setup.py", "'no'"),
    ("similar --features=a.npz setup.py", "--model is missing"),
    ("visualize --output=a", "--model is missing"),
    ("visualize --model=no --output=a", "'no'"),
    ("export --model=no --output=a", "'no'"),
    ("export --output=a", "--model is missing"),
    ("verify --model=no", "'no'"),
    ("benchmark --model=no", "'no'"),
    ("serve --model=no.keras", "'no.keras'"),
    ("models no.npz", "'no.npz'"),
    ("runs nowhere", "nowhere"),
    ("runs nowhere --compare", "nowhere"),
    ("train folder:tests --seed=1 --config.seed=2", "seed has two values, 1 and 2"),
    ("train folder:tests --adapt=head --config.adapt=bias", "adapt has two values"),
    ("train folder:tests --time=2m --config.time=60", "time has two values"),
    ("train folder:tests --model=ViT_S16 --config.model.variant=ViT-B/16", "model.variant has two values"),
    ("train folder:tests --config.data.source=folder:no", "data.source has two values"),
    ("train folder:tests --epochs=0", "epochs=0"),
    ("train folder:tests --epochs=5 --time=5m", "epochs or the time"),
    ("train folder:tests --epochs=5 --steps=30", "epochs or the steps"),
    ("train folder:tests --lr=0.1", "no flag --lr. Type --learning_rate=0.1."),
    ("train folder:tests --output=x", "--workdir=x"),
    ("train folder:tests --output_dir=x", "--workdir=x"),
    ("train folder:tests --freeze=10", "--adapt=head"),
    ("train folder:tests --resume", "same --workdir=DIR"),
    ("train folder:tests --pretrained", "--weights=NAME"),
    ("train folder:tests --num_classes=3", "Leave it out"),
    ("train folder:tests --img_size=224", "--image_size=224"),
    ("train folder:tests --device=cpu", "CUDA_VISIBLE_DEVICES=-1"),
    ("train folder:tests --lora", "--adapt=lora"),
    ("train folder:tests --data_dir=p", "--data=p"),
    ("train folder:tests --class_names=f", "Leave it out"),
    ("train folder:tests --batch-size=8", "--batch_size=8"),
    ("train folder:tests --num_epochs=8", "--epochs=8"),
    ("train folder:tests --wd=0.1", "--config.optim.weight_decay=0.1"),
    ("train folder:tests --mixup=0.1", "--config.data.mixup=0.1"),
    ("train folder:tests --weight_decy=0.1", "'--config.optim.weight_decay'"),
    ("train folder:tests --amp", "--config.precision=mixed_bfloat16"),
    ("plan --output=a", "no flag --output. --help"),
    ("predict --bs=8 setup.py", "--batch_size=8"),
    ("predict --lr=8 setup.py", "no flag --lr. --help"),
    ("export --output_dir=x", "'--output'"),
    *((word, f"'{command}'") for word, command in foreign_names.COMMANDS.items()),
]


@pytest.mark.slow
def test_mistakes_are_reported_without_importing_tensorflow_and_keras(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", rate=1e-4, finished=False)
    right = [["runs", str(tmp_path)], ["runs", str(tmp_path), "--compare"], ["models", "ViT_S14:dinov2"]]
    right.append(["client", "--url=http://localhost:1", "--name=x", "--timeout=1", "setup.py"])
    arguments = json.dumps([*(text.split() for text, _ in MISTAKES), *right])
    done = subprocess.run([sys.executable, "-c", WITHOUT_KERAS, arguments], cwd=ROOT, capture_output=True, text=True)
    outputs = done.stdout.split("---\n")[1:]
    assert len(outputs) == len(MISTAKES) + len(right), done.stderr
    for (text, said), output in zip(MISTAKES, outputs, strict=False):
        assert said in output and output.endswith("exit code 2\n") and "Traceback" not in output, (text, output)
    *found, unreachable = outputs[len(MISTAKES) :]
    for output, said in zip(found, ("step 10 of 20", "0.0001", "dinov2"), strict=True):
        assert said in output and output.endswith("exit code 0\n"), output
    assert "localhost:1" in unreachable and unreachable.endswith("exit code 1\n"), unreachable


def test_the_data_set_is_the_first_argument_or_a_flag():
    programs.load("train.check_data")
    command_line.parse(["check-data", "--data=digits"])
    assert common_flags.data_argument([]) == "digits"
    with pytest.raises(ValueError, match="'digits', 'folder:x'"):
        common_flags.data_argument(["folder:x"])
    command_line.parse(["check-data"])


def values(program, flag):
    programs.load(program)
    return list(flags.FLAGS[flag].parser.enum_values)


def test_flags_have_the_values_and_defaults_of_the_library():
    """Flags repeat the values as literals, because the library is imported after the flags are parsed."""
    known = dict.fromkeys([*distribute.STRATEGIES, *distribute.JAX_STRATEGIES])
    assert list(common_flags.STRATEGIES) == list(known)
    assert values("export.main", "signature") == list(signatures.EXTRA_SIGNATURES)
    assert flags.FLAGS["max_pixels"].default == graph_ops.MAX_PIXELS
    assert flags.FLAGS["top_k"].default == outputs.TOP_K
    assert chosen_recipe.OF_TIME == recipe.OF_TIME
    programs.load("train.plan")
    assert flags.FLAGS["utilization"].default == plan.UTILIZATION


def test_one_flag_has_one_meaning():
    shared = "config|preprocess|class_names|images|on_bad_image|data|json|output|distribute"
    for name in commands.PROGRAMS.values():
        text = (ROOT / name.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        assert not re.search(rf'DEFINE_\w+\(\s*"({shared})"', text), f"{name} defines a flag of common_flags.py"


LIMITS = {
    "export.main": {
        **dict.fromkeys(
            ("num_images", "batch_size", "version", "top_k", "max_pixels", "calibration_images"), (1, None)
        ),
        "image_size": (1, None),
    },
    "export.verify": {"num_images": (1, None)},
    "export.benchmark": {"threads": (1, None), "calls": (1, None)},
    "export.client": {"timeout": (0.001, None), "batch_size": (1, None)},
    "export.serve": {"port": (0, 65_535), "grace_seconds": (1.0, None)},
    "export.convert_checkpoint": {"classes": (1, None), "num_heads": (1, None)},
    "train.main": {"image_size": (1, None), "virtual_devices": (0, None)},
}


@pytest.mark.parametrize("program", LIMITS)
def test_numeric_flags_have_limits(program):
    programs.load(program)
    found = {flag: flags.FLAGS[flag].parser for flag in LIMITS[program]}
    assert {flag: (parser.lower_bound, parser.upper_bound) for flag, parser in found.items()} == LIMITS[program]


def test_flags_have_the_documented_defaults():
    expected = {
        "export.main": {"num_images": None, "batch_sizes": ["1", "4", "8"], "calibration_images": 256},
        "export.verify": {"num_images": None, "min_agreement": None, "max_accuracy_drop": None},
        "export.benchmark": {"batch_sizes": ["1", "4", "8"], "calls": 50},
        "export.client": {"url": "http://localhost:8501", "timeout": 60.0, "batch_size": 8},
        "export.serve": {"host": "localhost", "port": 8501, "grace_seconds": 30.0},
        "export.convert_checkpoint": {"checkpoint": None, "dtype": "float32", "check": True, "stacked": None},
    }
    for program, defaults in expected.items():
        programs.load(program)
        assert {name: flags.FLAGS[name].default for name in defaults} == defaults


@pytest.mark.parametrize(
    ("arguments", "said"), [([], "usage:"), (["-h"], "usage:"), (["help"], "usage:"), (["--version"], __version__)]
)
def test_help_and_version_of_the_command(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["keras-vit", *arguments])
    commands.main()
    assert capsys.readouterr().out.startswith(f"{said}" + (" keras-vit COMMAND" if said == "usage:" else "\n"))
