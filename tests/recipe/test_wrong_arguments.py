"""Recipes and overrides on the command line: accepted values, and one line for each mistake."""

import pathlib

import pytest

from keras_vit import cli
from keras_vit import recipe as recipes
from keras_vit.cli import command_line
from keras_vit.runs import recipe_file
from tests import programs

ROOT = pathlib.Path(__file__).parents[2]
WRONG_ARGUMENTS = {
    "finetune.py:ViT_B17": "'ViT_B16'",
    "finetune.py:ViT_B16,mnist": "cifar100",
    "finetune.py:ViT_B16,vtab:mnist": "'mnist'",
    "vit_i1k.py:ViT_B16,heavy": "'medium2'",
    "vit_i1k.py:BiT_R50x1": "ViT_S32",
    "bit_i1k.py:ViT_B16": "BiT_R50x3",
    "vit_s16_i1k.py:abc": "'abc'",
    "vit_s16_i1k.py:0": "'0'",
    "vtab.py:ViT_B16,mnist": "'mnist'",
    "vit_paper.py:a,b,c": ":a,b,c",
    "digits.py:abc": "no arguments",
    "digit": "Did you mean 'digits'?",
    "mine/digits2.py": "mine/digits2.py'",
}


@pytest.mark.parametrize("config", WRONG_ARGUMENTS)
def test_wrong_arguments_of_recipes_are_reported(config):
    with pytest.raises(ValueError, match="--config") as wrong:
        recipe_file.load(f"train/configs/{config}" if config.partition(":")[0].endswith(".py") else config)
    message = str(wrong.value)
    assert WRONG_ARGUMENTS[config] in message and "\n" not in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def get_config(name=''):\n    return len(5)\n", "mine.py:2: TypeError"),
        (
            "from keras_vit import recipe\n\ndef get_config():\n    return recipe.Recipe(sede=1)\n",
            "mine.py:4: TypeError",
        ),
        ("def made():\n    return len(5)\n\ndef get_config():\n    return made()\n", "mine.py:2: TypeError"),
        ("def get_config():\n    return Recipe()\n", "mine.py:2: NameError: name 'Recipe'"),
        ("def get_config(:\n", "mine.py:1: SyntaxError"),
        ("import keras_vit.recipes\n", "keras_vit.recipes"),
        ("def get_confg():\n    pass\n", "get_config"),
        ("def get_config():\n    return {}\n", "It returned: {}"),
        ("def get_config(model):\n    pass\n", "takes an argument"),
    ],
)
def test_mistakes_in_a_recipe_name_its_file_and_line(tmp_path, text, said):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises((ValueError, ImportError)) as wrong:
        recipe_file.load(str(tmp_path / "mine.py"))
    assert said in str(wrong.value) and "\n" not in str(wrong.value)


def test_error_of_a_recipe_file_is_shown_unchanged(tmp_path):
    """The user has not written --config in this case."""
    (tmp_path / "mine.py").write_text(
        "def get_config(*, model=None):\n    raise ValueError(f'unknown model {model}')\n"
    )
    path = str(tmp_path / "mine.py")
    for chosen, start in (({"model": "x"}, ""), ({"adapt": "head"}, f"--config={path}: ")):
        with pytest.raises(ValueError) as wrong:
            recipe_file.load(path, chosen)
        assert str(wrong.value) == f"{start}unknown model {chosen.get('model')}"


def overridden(*arguments):
    plan = programs.load("train.plan")
    command_line.parse(["plan", "--config=digits", *arguments])
    return plan.cli.recipe_from_flags()


def test_fields_are_overridden_by_flags():
    recipe = overridden(
        *("--config.seed=3", "--config.total_steps=1_000", "--config.deterministic=False"),
        *("--config.optim.learning_rate=1e-2", "--config.optim.schedule.boundaries=(1, 2)"),
        *("--config.model.weights=123", "--config.evaluators=knn", "-config.data.eval_batch_size=None"),
        *("--override=data.source=npz:a=b.npz", "--config.optim.nesterov=1"),
    )
    assert (recipe.seed, recipe.total_steps, recipe.deterministic) == (3, 1000, False)
    assert (recipe.optim.learning_rate, recipe.optim.schedule.boundaries) == (0.01, (1, 2))
    assert (recipe.model.weights, recipe.evaluators, recipe.data.eval_batch_size) == ("123", ("knn",), None)
    assert (recipe.data.source, recipe.optim.nesterov) == ("npz:a=b.npz", True)
    assert overridden("--config.model.weights=").model.weights is None


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("--config.optim.learning_rat=1", "optim.learning_rate"),
        ("--config.optim=sgd", "optim.name"),
        ("--config.seed.x=1", "seed.x"),
        ("--config.seed=x", "seed='x'"),
        ("--config.deterministic=maybe", "deterministic='maybe'"),
    ],
)
def test_wrong_overrides_are_refused(override, said):
    with pytest.raises(ValueError, match=said):
        overridden(override)


@pytest.mark.parametrize("flag", ["--config.optim.nesterov", "--noconfig.deterministic"])
def test_override_without_a_value_is_refused(flag, capsys):
    with pytest.raises(SystemExit) as ended:
        overridden(flag, "3")
    assert ended.value.code == cli.WRONG_USAGE and f"{flag} needs a value" in capsys.readouterr().err


def test_recipe_file_in_a_package_may_import_its_neighbors(tmp_path):
    package = tmp_path / "mine"
    package.mkdir()
    for name, text in {
        "__init__": "",
        "shared": "STEPS = 7\n",
        "run": "from keras_vit import recipe\nfrom . import shared\n\n"
        "def get_config():\n    return recipe.Recipe(total_steps=shared.STEPS)\n",
    }.items():
        (package / f"{name}.py").write_text(text)
    assert recipe_file.load(str(package / "run.py"))[0] == recipes.Recipe(total_steps=7)


@pytest.mark.parametrize("flag", ["--config=digits:x", "--config=digits --devises=8", "--config=digits --config.sed=1"])
def test_wrong_flags_exit_with_the_usage_code(flag):
    code, output = programs.run("train.plan", *flag.split())
    assert code == cli.WRONG_USAGE
    assert "Traceback" not in output
