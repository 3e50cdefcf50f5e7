"""Report the line and branch coverage of each subpackage.

    make coverage       # the tests, then this report

Reads the output file of `coverage json`. Coverage shows only which code ran: `python -m tools.mutants` shows which
mutants the tests detect.
"""

import collections
import json
import pathlib
import sys
from typing import Any

FIELDS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def by_room(report: dict[str, Any]) -> dict[str, collections.Counter[str]]:
    """Return the total counts of each package or module of the library."""
    subpackages: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for file, found in report["files"].items():
        parts = pathlib.PurePath(file).parts
        if parts[0] == "keras_vit" and len(parts) > 1:
            subpackages[parts[1].removesuffix(".py")].update({name: found["summary"][name] for name in FIELDS})
    return dict(subpackages)


def table(subpackages: dict[str, collections.Counter[str]]) -> str:
    """Return a table with one line per subpackage and a line for the total."""
    total: collections.Counter[str] = collections.Counter()
    for found in subpackages.values():
        total.update(found)
    lines = [f"{'subpackage':<14} {'lines':>7} {'branches':>9}"]
    for subpackage, found in [*sorted(subpackages.items()), ("all", total)]:
        shares = [found[taken] / max(found[of], 1) for taken, of in (FIELDS[:2], FIELDS[2:])]
        branches = f"{shares[1]:.0%}" if found["num_branches"] else "-"
        lines.append(f"{subpackage:<14} {shares[0]:>7.0%} {branches:>9}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(by_room(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))))
