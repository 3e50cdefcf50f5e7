"""Commands in pages, sources and the Makefile, and the check of one command line against the program that it names."""

import ast
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import re
import runpy
import shlex
import sys
from collections.abc import Mapping
from unittest import mock

from absl import flags

from keras_vit import recipe
from keras_vit.cli import commands as commands_of_package
from tests.docs import pages

OURS = ("train", "export", "benchmarks", "tools", "docs", "keras_vit")
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
    "bash",
    "sbatch",
    "squeue",
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


# What stands for a value of the reader's.
PLACEHOLDER = re.compile(r"^[A-Z]+$|[A-Z]{3,}|\.\.\.|[$<{]")
HELP = ("help", "helpfull")
# A program's name in a text; `keras-vit` in prose is the package.
MENTION = re.compile(
    r"(?:keras-vit +(?!keras)([a-z][a-z-]*)|python -m +((?:train|export|benchmarks|docs|tools)\.[\w.]*\w))([^`\n]*)"
)
# What follows belongs to another command, or to a program that this one starts.
END = re.compile(r" -- | \| | && |;|keras-vit|python -m")


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
    """Import a program anew, with the programs whose flags it takes over, and return its flags."""
    for flag in set(flags.FLAGS):
        defining = flags.FLAGS.find_module_defining_flag(flag)
        if defining.partition(".")[0] in OURS:
            delattr(flags.FLAGS, flag)
            if not defining.startswith("keras_vit."):
                forget(defining)
    forget(module)
    importlib.import_module(module)
    return flags.FLAGS


def forget(module: str) -> None:
    """Let the next import of a module run it again, also `from package import module`."""
    parent, _, name = module.rpartition(".")
    if sys.modules.pop(module, None) is not None:
        vars(sys.modules[parent]).pop(name, None)


def program_of(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the program of a subcommand of `keras-vit`, and the rest of its arguments."""
    assert arguments and arguments[0] in commands_of_package.PROGRAMS, f"no command {arguments[:1]}"
    return commands_of_package.PROGRAMS[arguments[0]], arguments[1:]


def check_flag(argument: str, known: Mapping[str, flags.Flag]) -> None:
    """Check one flag of one of our programs, and its value unless the value is a placeholder such as FILE or "..."."""
    name, _, value = argument.lstrip("-").partition("=")
    if name.startswith("config."):
        check_field(name.removeprefix("config."))
    elif name in known:
        value = value.strip("'\"").rstrip(".,:)")
        if value and not PLACEHOLDER.search(value):
            known[name].parser.parse(value)
    else:
        assert name in HELP or name.removeprefix("no") in known, f"no flag {argument}"


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
        assert file_of(module).exists(), f"no program {module}"
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
    known = known_flags(module)
    for argument in arguments:
        if argument.startswith("-"):
            check_flag(argument, known)
            if re.match(r"--?config=", argument) and "config" in known:
                check_config(argument.partition("=")[2])


def texts(path: pathlib.Path) -> list[str]:
    """Return the strings of a Python file, the cells of a notebook, or the whole content of any other file."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return ["".join(cell["source"]) for cell in json.loads(content)["cells"]]
    return strings(content) if path.suffix == ".py" else [content]


def strings(source: str) -> list[str]:
    """Return the strings of Python code, with VALUE for each expression of an f-string."""
    nodes = list(ast.walk(ast.parse(source)))
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    found = [node.value for node in nodes if isinstance(node, ast.Constant) and node not in parts]
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "VALUE" for part in node.values))
    return [text for text in found if isinstance(text, str)]


def mentions(text: str) -> list[tuple[str, list[str]]]:
    """Return the programs that a text names, each with the flags after its name, up to the end of the line or code."""
    found = []
    for match in MENTION.finditer(re.sub(r"\\\n\s*", " ", text)):
        command, module, rest = match.groups()
        flags_after = re.findall(r"(?<!\S)--?[a-z][\w.]*(?:=(?:'[^']*'|\"[^\"]*\"|\S*))?", END.split(rest)[0])
        found.append((commands_of_package.PROGRAMS.get(command, command) if command else module, flags_after))
    return found


def file_of(module: str) -> pathlib.Path:
    """Return the file that `python -m MODULE` runs."""
    path = pages.ROOT / module.replace(".", "/")
    main = path / "__main__.py"
    return main if main.exists() else path.with_suffix(".py")


@functools.cache
def known_flags(module: str) -> dict[str, flags.Flag]:
    """Return the flags of a program by name, or none where its flags are not absl's."""
    source = file_of(module).read_text(encoding="utf-8")
    if "absl" not in source or "argparse" in source:
        return {}
    found = flags_of(f"{module}.__main__" if file_of(module).name == "__main__.py" else module)
    return {name: found[name] for name in found}


def check_mention(module: str, arguments: list[str]) -> None:
    """Check a program that a text names and the flags after its name."""
    assert file_of(module).exists(), f"no program {module}"
    known = known_flags(module)
    for argument in arguments if known else ():
        check_flag(argument, known)
