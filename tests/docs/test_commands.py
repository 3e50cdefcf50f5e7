"""Every documented command has an existing program, existing flags, and valid values."""

import re

import pytest

from keras_vit.cli.commands import PROGRAMS
from tests.docs import pages
from tests.docs.command_lines import check, check_mention, commands, known_flags, mentions, strings, texts

FOLDERS = ("keras_vit", "train", "export", "benchmarks", "tools", "docs", "examples", ".github")
KINDS = (".py", ".md", ".ipynb", ".yml", ".js", ".html", ".toml")
FILES = [
    path
    for folder in FOLDERS
    for path in sorted((pages.ROOT / folder).rglob("*"))
    if path.suffix in KINDS and path.name != "mutants.toml"
]
FILES += [path for path in sorted(pages.ROOT.iterdir()) if path.name == "Makefile" or path.suffix in KINDS]
LIBRARY = ("keras_vit/", "train/", "export/")
# Flags of absl, of other programs and of `benchmarks`, and a variable of the page's style, in the library's strings.
OTHERS = {
    "help",
    "helpshort",
    "helpfull",
    "dereference",  # of tar
    "query",
    "target",  # of tools.compile_plan
    "only",
    "tint",
    "xla_gpu_deterministic_ops",
    "tf_xla_auto_jit",
    "tf_mlir_enable_mlir_bridge",
}


@pytest.mark.parametrize("page", [page for page in pages.PAGES if commands(page.read_text("utf-8"))], ids=pages.name_of)
def test_programs_and_flags_exist(page):
    wrong = []
    for command in commands(page.read_text(encoding="utf-8")):
        try:
            check(command)
        except (AssertionError, ValueError) as error:
            wrong.append(f"{command}\n    {str(error).splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "python -m train.nothing",
        "python -m train.main --worksdir=runs",
        "python -m train.main --config=train/configs/digit.py",
        "python -m train.main --config=digits --config.optim.rate=1",
        "keras-vit trian --config=digits",
        "keras-vit train --worksdir=runs",
        "make tests",
        "pip install 'keras-vision-transformers[cpus]'",
    ],
)
def test_wrong_commands_are_detected(wrong):
    with pytest.raises(AssertionError):
        check(wrong)


@pytest.mark.slow
def test_mentioned_programs_and_flags_exist():
    """In the Makefile, workflows, pages, notebooks, docstrings, help texts and messages."""
    wrong, count = [], 0
    for path in FILES:
        for module, arguments in (found for text in texts(path) for found in mentions(text)):
            count += 1
            try:
                check_mention(module, arguments)
            except (AssertionError, ValueError) as error:
                wrong.append(f"{pages.name_of(path)}: {module} {' '.join(arguments)}: {str(error).splitlines()[0]}")
    assert not wrong, "\n".join(wrong)
    assert count > 300


@pytest.mark.slow
def test_flags_in_messages_and_docstrings_exist():
    """Messages name flags without their command: each is a flag of a program."""
    names = OTHERS.union(*(known_flags(module) for module in PROGRAMS.values()))
    wrong = []
    for path in FILES:
        if path.suffix == ".py" and pages.name_of(path).startswith(LIBRARY):
            for flag in (f for text in texts(path) for f in re.findall(r"(?<![\w-])--([a-z][a-z_0-9]+)", text)):
                if not {flag, flag.removeprefix("no")} & names:
                    wrong.append(f"{pages.name_of(path)}: --{flag}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\t$(BIN)/keras-vit export --model=$(DEMO)/run --name=digits", "no flag --name"),
        ("Start `keras-vit trian --config=digits` again.", "no program trian"),
        ("keras-vit export --model=DIR --precision=int9", "precision|should be one of"),
        ("keras-vit serve \\\n    --model=served --port=http", "port|invalid literal"),
        ("python -m benchmarks.nothing", "no program benchmarks.nothing"),
    ],
)
def test_a_wrong_mention_is_found(text, message):
    [(module, arguments)] = mentions(text)
    with pytest.raises((AssertionError, ValueError), match=message):
        check_mention(module, arguments)


def test_flags_belong_to_the_preceding_command():
    text = "`keras-vit plan --config=digits --devices=N`, then keras-vit sweep --seeds=3 -- --distribute=mirrored"
    assert mentions(text) == [("train.plan", ["--config=digits", "--devices=N"]), ("train.sweep", ["--seeds=3"])]
    for module, arguments in mentions(text):
        check_mention(module, arguments)


def test_strings_are_extracted_from_code():
    assert strings("def f(x):\n  'doc'\n  return f'keras-vit train --workdir={x}/run'") == [
        "doc",
        "keras-vit train --workdir=VALUE/run",
    ]
