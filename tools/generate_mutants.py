"""Write a list of random mistakes for `python -m tools.mutants`, made by the operators of Cosmic Ray.

    pip install cosmic-ray
    python -m tools.generate_mutants --rooms=layers,data --count=200 --seed=53 --output=generated.toml
    python -m tools.mutants --list=generated.toml

Of each room, `count` lines are drawn among all lines that an operator can change, and one change of each line. The
operators exchange comparisons, arithmetic and logical operators, numbers and booleans, negate conditions, and leave out
loops and decorators. Type annotations, imports and changes of several lines are left out. The tests of a mistake are
those of its module, then those of its room.
"""

import argparse
import ast
import collections
import json
import pathlib
import random

from tools.mutants import ROOT, Mutant

# Written in types as well (`int | None`), where a mistake ends the import.
_LEFT_OUT = ("core/ReplaceBinaryOperator_BitOr", "core/VariableInserter", "core/VariableReplacer")


def generate(room: str, count: int, seed: int) -> list[Mutant]:
    """Return at most `count` mistakes of a room, each on a line of its own, in the order of files and lines."""
    files = sorted((ROOT / "keras_vit" / room).glob("**/*.py"))
    places = [(path, line, changes) for path in files for line, changes in sorted(_changes(path).items())]
    rng = random.Random(f"{room} {seed}")
    rng.shuffle(places)
    found: dict[tuple[str, int], Mutant] = {}
    for path, line, changes in places:
        if len(found) == count:
            break
        mutant = _mutant(room, path, *rng.choice(changes))
        if mutant is not None:
            found[mutant.file, line] = mutant
    return [found[place] for place in sorted(found)]


def tests_of(room: str, path: pathlib.Path) -> tuple[str, ...]:
    """Return the tests of a module, if there are some by its name, and those of its room."""
    folder = ROOT / "tests" / room
    own = sorted(folder.glob(f"**/test_{path.stem.strip('_')}.py"))
    return tuple(str(place.relative_to(ROOT)) for place in (*own, folder))


def to_toml(mutants: list[Mutant]) -> str:
    """Return the text of a list."""
    entries = []
    for mutant in mutants:
        fields: dict[str, object] = {"file": mutant.file, "line": mutant.line, "replacement": mutant.replacement}
        fields |= {"tests": list(mutant.tests), "occurrence": mutant.occurrence}
        lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
        entries.append("\n".join(["[[mutant]]", *lines]))
    return "\n\n".join(entries) + "\n"


def one_line(before: str, after: str) -> tuple[int, str, str] | None:
    """Return the index of the only line that differs, and both texts without indentation; None if several differ."""
    old, new = before.splitlines(), after.splitlines()
    different = [index for index, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]]
    if len(old) != len(new) or len(different) != 1:
        return None
    index = different[0]
    same_indentation = len(old[index]) - len(old[index].lstrip()) == len(new[index]) - len(new[index].lstrip())
    return (index, old[index].strip(), new[index].strip()) if same_indentation and new[index].strip() else None


def annotated_lines(source: str) -> set[int]:
    """Return the lines, from 1, of type annotations and imports."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            parts.append(node)
        for part in parts:
            if isinstance(part, ast.AST):
                lines |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))  # type: ignore[attr-defined]
    return lines


def _changes(path: pathlib.Path) -> dict[int, list[tuple[str, int]]]:
    """Return (operator, occurrence) of every change by the number of its line."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    source = path.read_text(encoding="utf-8")
    nodes, skipped = list(ast_nodes(get_ast(source))), annotated_lines(source)
    found = collections.defaultdict(list)
    for name in sorted(plugins.operator_names()):
        if name.startswith(_LEFT_OUT):
            continue
        operator, occurrence = plugins.get_operator(name)(), 0
        for node in nodes:
            for position in operator.mutation_positions(node):
                line = position[0][0]
                if line not in skipped:
                    found[line].append((name, occurrence))
                occurrence += 1
    return found


def _mutant(room: str, path: pathlib.Path, name: str, occurrence: int) -> Mutant | None:
    from cosmic_ray import mutating, plugins

    source = path.read_text(encoding="utf-8")
    changed = mutating.mutate_code(source, plugins.get_operator(name)(), occurrence)
    difference = one_line(source, changed or source)
    if difference is None or not _is_python(changed):
        return None
    index, line, replacement = difference
    earlier = sum(text.strip() == line for text in source.splitlines()[:index])
    return Mutant(str(path.relative_to(ROOT)), line, replacement, tests_of(room, path), earlier + 1)


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rooms", required=True, help="rooms, separated by commas")
    parser.add_argument("--count", type=int, default=200, help="mistakes of each room")
    parser.add_argument("--seed", type=int, required=True, help="seed of the draw")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="file to write")
    flags = parser.parse_args()
    mutants = [mutant for room in flags.rooms.split(",") for mutant in generate(room, flags.count, flags.seed)]
    flags.output.write_text(to_toml(mutants), encoding="utf-8")
    print(f"{flags.output}: {len(mutants)} mistakes")


if __name__ == "__main__":
    main()
