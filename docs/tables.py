"""Write the tables of recipe fields, of flags and of the limits of exports: `python -m docs.tables`.

The tables are in `recipe_fields.md`, `commands.md` and `artifacts.md` of `docs/reference`.
"""

import dataclasses
import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Iterable
from typing import Any

from absl import flags

from benchmarks.tables import write_between
from keras_vit import outputs, recipe, tasks
from keras_vit.cli.commands import PROGRAMS
from keras_vit.inference.formats import FORMATS
from keras_vit.util.formatting import percent

FOLDER = pathlib.Path(__file__).resolve().parent / "reference"


# --- fields of recipes ------------------------------------------------------------------------------------------------


def fields() -> str:
    """Return the tables of all fields of a recipe and of all arguments of tasks."""
    found = recipe.Recipe()
    return "\n\n".join([*_sections(found, "", "Run"), _tasks()])


def _sections(part: Any, prefix: str, title: str) -> list[str]:
    """Return a section for a part of a recipe, and one for each part of the part."""
    meanings, rows, parts = attributes(type(part)), [], []
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        path = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, recipe.Task):
            parts += _sections(value, f"{path}.", f"`{path}`")
        else:
            rows.append((f"`{path}`", meanings[field.name], default_text(value), type_name(field.type)))
    return [f"## {title}\n\n{table(('field', 'meaning', 'default', 'type'), rows)}", *parts]


def _tasks() -> str:
    """Return the section of the arguments of tasks."""
    rows = []
    for name, task in tasks.TASKS.items():
        meanings = attributes(task)
        rows += [(f"`{name}`", "", _first_line(task), "", "")]
        for field in dataclasses.fields(task):
            row = (f"`{field.name}`", meanings[field.name], default_text(field.default), type_name(field.type))
            rows.append(("", *row))
    text = 'The field `task` takes a text such as `"mae(mask_ratio=0.5)"`.'
    return f"## Arguments of `task`\n\n{text}\n\n{table(('task', 'argument', 'meaning', 'default', 'type'), rows)}"


def attributes(kind: type) -> dict[str, str]:
    """Return the section `Attributes` of a class by name, each text in one line."""
    section = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].split("\n\n", 1)[0]
    entries = [entry.strip().partition(":") for entry in re.split(r"\n(?= {4}\w)", section)]
    return {name: " ".join(text.split()) for name, _, text in entries}


def type_name(kind: Any) -> str:
    """Return the name of a type, such as `int` or `str or None`."""
    if kind is recipe.Recipe.__annotations__["task"]:
        return "task"
    name = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return (
        re.sub(r"tuple\[(\w+), \.\.\.\]", r"tuple of \1", name).replace("[str, typing.Any]", "").replace(" | ", " or ")
    )


def default_text(value: Any) -> str:
    """Return a default value as code."""
    return f'`"{value}"`' if isinstance(value, str | recipe.Task) else f"`{value!r}`"


# --- flags of commands ------------------------------------------------------------------------------------------------


def commands() -> str:
    """Return the tables of the flags of all commands."""
    return "\n\n".join(_command(name, program) for name, program in PROGRAMS.items())


def _command(name: str, program: str) -> str:
    """Return the section of a command. Its flags are deleted afterwards: other programs define the same names."""
    module = importlib.import_module(program)
    own = flags.FLAGS.get_key_flags_for_module(program)  # in the order of --help
    rows = [(f"`--{flag.name}`", meaning(flag), flag_default(flag), flag_type(flag)) for flag in own]
    for flag in own:
        delattr(flags.FLAGS, flag.name)
    return f"## `{name}`\n\n{_first_line(module)}\n\n{table(('flag', 'meaning', 'default', 'type'), rows)}"


def flag_type(flag: flags.Flag) -> str:
    """Return the type of a flag, or its values."""
    values = getattr(flag.parser, "enum_values", None)
    name = flag.flag_type().removeprefix("multi ").replace("string", "str")
    return ", ".join(f"`{value}`" for value in values) if values else name


def flag_default(flag: flags.Flag) -> str:
    """Return the default of a flag as code, or nothing."""
    values = flag.default if isinstance(flag.default, list) else [flag.default]
    return ", ".join(f"`{value}`" for value in values if value not in (None, ""))


def meaning(flag: flags.Flag) -> str:
    """Return the help of a flag, without what absl adds: the values, and that a flag may be repeated."""
    text = (flag.help or "").partition(";\n")[0]
    return re.sub(r"^<.*?>: ", "", text)


# --- limits of exports ------------------------------------------------------------------------------------------------


def limits() -> str:
    """Return the table of the limits of the verification for each precision."""
    rows = []
    for index, precision in enumerate(outputs.PRECISIONS):
        classes, values, masks = (outputs.of(name).limits[index] for name in ("softmax", "values", "mask"))
        formats = [name for name, kind in FORMATS.items() if _stores(kind.precisions, precision)]
        drop = "" if classes.accuracy_drop is None else percent(classes.accuracy_drop)
        shares = (percent(classes.top1_agreement), drop)
        differences = (f"{classes.max_difference:g}", *shares, f"{values.max_difference:g}")
        rows.append((f"`{precision}`", ", ".join(formats), *differences, percent(masks.top1_agreement)))
    header = ("precision", "formats", "difference of a probability", "top-1 agreement", "loss of accuracy")
    return table((*header, "difference of a value", "equal pixels of masks"), rows)


def _stores(precisions: Iterable[str], precision: str) -> bool:
    return precision in (name.removeprefix("mixed_") for name in precisions)


# --- all tables -------------------------------------------------------------------------------------------------------


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").splitlines()[0]


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown. Vertical bars are escaped, and characters of Markdown and HTML outside of code."""
    lines = [[_escaped(cell) for cell in row] for row in rows]
    header = list(header)
    head = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join([*head, *(f"| {' | '.join(cells)} |" for cells in lines)])


def _escaped(text: str) -> str:
    parts = re.split(r"(`[^`]*`)", text.replace("|", r"\|"))
    return "".join(part if part[:1] == "`" else part.replace("*", r"\*").replace("<", "&lt;") for part in parts)


def main(folder: pathlib.Path = FOLDER) -> None:
    """Write all tables."""
    write_between(folder / "recipe_fields.md", "fields", fields())
    write_between(folder / "commands.md", "flags", commands())
    write_between(folder / "artifacts.md", "limits", limits())


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
