"""Every command in the documentation names a program that exists and flags that it has."""

import dataclasses
import importlib
import os
import pathlib
import re
import runpy
import shlex
import sys
from unittest import mock

import pytest
from absl import flags

from keras_vit import recipe
from keras_vit.program import commands as commands_of_package
from tests.docs import pages

OURS = ("train", "export", "benchmarks", "keras_vit")
# Programs of the machine. Their arguments are not checked, except those of make and pip.
OTHERS = {
    "apt-get",
    "cd",
    "curl",
    "docker",
    "export",
    "gcloud",
    "git",
    "kill",
    "kubectl",
    "ls",
    "mkdir",
    "nvidia-smi",
    "pre-commit",
}
OTHERS |= {
    "source",
    "tensorboard",
    "unzip",
    "wget",
    "sudo",
    "cat",
    "tail",
    "echo",
    "for",
    "until",
    "while",
    "done",
    "do",
}


def commands(text: str) -> list[str]:
    """Return the commands of a page, one per element, with continued lines joined."""
    found = []
    for block in pages.blocks(text):
        if block.language in pages.COMMANDS and block.needs != "another package":
            joined = re.sub(r"\\\n\s*", " ", block.code)
            joined = re.sub(r"(?m)^\$ ", "", joined)
            waiting = ""
            for line in joined.splitlines():
                waiting = f"{waiting} {line}".strip()
                try:
                    words = shlex.split(waiting, comments=True)
                except ValueError:  # a quotation that ends on a later line
                    continue
                if words:
                    found.append(waiting)
                waiting = ""
            assert not waiting, f"open quotation: {waiting}"
    return found


def setup_file() -> dict:
    """Return the names that setup.py defines."""
    with mock.patch("setuptools.setup"):
        before = os.getcwd()
        os.chdir(pages.ROOT)
        try:
            return runpy.run_path("setup.py")
        finally:
            os.chdir(before)


def flags_of(module: str) -> flags.FlagValues:
    """Import a program anew and return its flags."""
    for flag in set(flags.FLAGS):
        if flags.FLAGS.find_module_defining_flag(flag).partition(".")[0] in OURS:
            delattr(flags.FLAGS, flag)
    sys.modules.pop(module, None)
    importlib.import_module(module)
    return flags.FLAGS


def program_of(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the program of a subcommand of `keras-vit`, and the rest of its arguments."""
    assert arguments and arguments[0] in commands_of_package.PROGRAMS, f"no command {arguments[:1]}"
    return commands_of_package.PROGRAMS[arguments[0]], arguments[1:]


def check_flag(argument: str, known: flags.FlagValues) -> None:
    """Check one flag of one of our programs."""
    name = argument.lstrip("-").partition("=")[0]
    if name.startswith("config."):
        check_field(name.removeprefix("config."))
    else:
        assert name in known or name.removeprefix("no") in known, f"no flag {argument}"


def check_field(path: str) -> None:
    """Check that recipes have a field."""
    value = recipe.Recipe()
    for part in path.split("."):
        if not dataclasses.is_dataclass(value):
            return  # a key of a dictionary, such as model.arguments.layer_scale
        assert part in {field.name for field in dataclasses.fields(value)}, f"recipes have no field {path}"
        value = getattr(value, part)


def check_config(value: str) -> None:
    """Check that a recipe of the package exists; paths of one's own are not checked."""
    path = value.partition(":")[0]
    if "/" not in path or path.startswith("train/"):
        name = pathlib.Path(path).name.removesuffix(".py")
        if not re.search(r"[A-Z]|^my_|\.\.\.", name):
            assert (pages.ROOT / "train" / "configs" / f"{name}.py").exists(), f"no recipe {value}"


def check(command: str) -> None:
    """Check one command line."""
    words = shlex.split(command.split(" | ")[0].split(" && ")[0].rstrip("& "), comments=True)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words.pop(0)
    if not words:
        return
    program, arguments = words[0], words[1:]
    if "/bin/" in program and not program.startswith("/usr"):  # a virtual environment
        program = pathlib.Path(program).name
    if re.fullmatch(r"(\S*/)?python3?", program) and arguments[:1] == ["-m"]:
        module, arguments = arguments[1], arguments[2:]
        if module in ("pip", "pytest", "venv"):
            return
        if module == "keras_vit":
            module, arguments = program_of(arguments)
        assert (pages.ROOT / (module.replace(".", "/") + ".py")).exists(), f"no program {module}"
    elif re.fullmatch(r"(\S*/)?python3?", program):
        assert not arguments or arguments[0].startswith("-") or (pages.ROOT / arguments[0]).exists(), arguments[0]
        return
    elif program.startswith("keras-vit"):
        assert program == "keras-vit", f"no command {program}"
        if arguments == ["--help"]:
            return
        module, arguments = program_of(arguments)
    elif program == "make":
        makefile = (pages.ROOT / "Makefile").read_text(encoding="utf-8")
        for target in arguments:
            assert "=" in target or re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"
        return
    elif program == "pip":
        extras = setup_file()["EXTRAS"]
        for named in re.findall(r"(?:keras-vision-transformers|\.)\[([\w,]+)\]", command):
            assert set(named.split(",")) <= set(extras), f"no extra in [{named}]"
        return
    else:
        assert (
            pathlib.Path(program).name in OTHERS or (pages.ROOT / program).exists() or program.startswith(".venv/")
        ), f"unknown program {program}"
        return
    if not (pages.ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8").count("absl"):
        return
    known = flags_of(module)
    for argument in arguments:
        if argument.startswith("-"):
            check_flag(argument, known)
            if re.match(r"--?config=", argument) and known.find_module_defining_flag("config"):
                check_config(argument.partition("=")[2])


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
def test_mistakes_are_found(wrong):
    with pytest.raises(AssertionError):
        check(wrong)
