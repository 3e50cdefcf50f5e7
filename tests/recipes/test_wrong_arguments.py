"""What a user reads who gives a recipe an argument that it does not take."""

import pathlib
import subprocess
import sys

import pytest

from keras_vit import program
from tests import programs

WRONG_ARGUMENTS = {
    "finetune.py:ViT_B17": "There is no model 'ViT_B17'. Did you mean 'ViT_B16'? There are: ViT_Ti16",
    "finetune.py:ViT_B16,mnist": "must be one of imagenet2012, cifar10, cifar100, pets, flowers or vtab:TASK",
    "finetune.py:ViT_B16,vtab:mnist": "There is no task 'mnist' in VTAB.",
    "vit_i1k.py:ViT_B16,heavy": "must be one of 'none', 'light1', 'light2', 'medium1', 'medium2', 'strong1', 'strong2'",
    "vit_i1k.py:BiT_R50x1": "This recipe is not for 'BiT_R50x1'. It takes: ViT_Ti16, ViT_S32",
    "bit_i1k.py:ViT_B16": "This recipe is not for 'ViT_B16'. It takes: BiT_R50x1, BiT_R50x3",
    "vit_s16_i1k.py:abc": "a number of epochs: 90, 150 and 300 are published. Received: 'abc'",
    "vit_s16_i1k.py:0": "Received: '0'",
    "vtab.py:ViT_B16,mnist": "There is no task 'mnist' in VTAB.",
    "vit_paper.py:a,b,c": "This recipe takes 2 arguments, such as :ViT_B16,imagenet21k. Received: :a,b,c",
    "digits.py:abc": "this recipe takes no arguments, nothing may stand behind a colon.",
}


@pytest.mark.parametrize("config", WRONG_ARGUMENTS)
def test_wrong_arguments_of_recipes_end_in_one_line(config, capsys):
    plan = programs.load("train.plan")
    with pytest.raises(SystemExit) as ended:
        plan.program._parse_flags(["plan", f"--config=train/configs/{config}"])
    assert ended.value.code == program.WRONG_USAGE
    first, message, _ = capsys.readouterr().err.splitlines()
    assert first == "FATAL Flags parsing error:"
    assert message.startswith("  flag --config=") and config in message and WRONG_ARGUMENTS[config] in message


def test_mistakes_in_a_recipe_are_shown_where_they_are(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def get_config(name=''):\n    return len(5)\n")
    plan = programs.load("train.plan")
    with pytest.raises(SystemExit) as ended:
        plan.program._parse_flags(["plan", f"--config={tmp_path / 'mine.py'}:x"])
    assert ended.value.code == program.WRONG_USAGE
    assert 'mine.py", line 2, in get_config' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--config=digits:x", "--config=digits --devises=8"])
def test_exit_code_of_wrong_flags(flag):
    command = [sys.executable, "-m", "train.plan", *flag.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parents[2])
    assert done.returncode == program.WRONG_USAGE
    assert "Traceback" not in done.stderr
