"""Records of measured rows, and the tables that `docs/benchmarks.md` shows of them."""

import datetime
import json
import subprocess
from pathlib import Path

from benchmarks import rows as all_rows
from keras_vit.benchmarking import machine, results

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "benchmarks" / "records.jsonl"
DOCUMENT = ROOT / "docs" / "benchmarks.md"
QUIET = 0.05  # share of the processors that other programs may take
_DIGITS = 4  # significant ones of a stored figure


def code(root=ROOT) -> tuple[str, str]:
    """Returns the commit that is measured, and what names its code: the tree of the package.

    Changes that are not committed make both end in `+`.
    """
    commit = _git(root, "rev-parse", "--short=10", "HEAD")
    tree = _git(root, "rev-parse", "--short=10", "HEAD:keras_vit")
    changed = _git(root, "status", "--porcelain", "--", "keras_vit")
    return (f"{commit}+", f"{tree}+") if changed else (commit, tree)


def _git(root, *arguments):
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if not done.returncode else "unknown"


def record(row, outcome) -> dict:
    """Makes the record of a row that was run.

    Args:
        row: The row.
        outcome: The list of `race.Result`.
    """
    commit, tree = code()
    versions = {}
    for result in outcome:
        versions.update({f"{name}": version for name, version in result.versions.items()})
    entries = []
    for result in outcome:
        values = {name: _short(value) for name, value in vars(result).items() if name != "versions"}
        entries.append(values)
    return {
        "row": row.name,
        "time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit,
        "code": tree,
        "machine": machine.describe(),
        "rounds": row.rounds,
        "versions": versions,
        "results": entries,
    }


def _short(value):
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def read(path=RECORDS) -> list[dict]:
    """Returns all records, the oldest first."""
    if not Path(path).exists():
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def append(entry, path=RECORDS) -> None:
    """Adds a record to the file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def is_done(row, records) -> bool:
    """Whether a row has been measured on this machine, with this code and without a failure."""
    _, tree = code()
    here = machine.describe()
    return not tree.endswith(("+", "unknown")) and any(
        entry["row"] == row.name
        and (entry["code"], entry["machine"]) == (tree, here)
        and not any(result["error"] for result in entry["results"])
        for entry in records
    )


def verdicts(row, entry) -> list:
    """Returns what the goals of a row say of a record."""
    by_name = {result["system"]: result for result in entry["results"]}
    return [verdict for verdict in (goal(by_name) for goal in row.goals) if verdict]


def write(records, path=DOCUMENT) -> None:
    """Writes the tables of the newest records, and the history, into the document between their markers."""
    newest = {entry["row"]: entry for entry in records}
    known = [(row, newest[row.name]) for row in all_rows.ROWS.values() if row.name in newest]
    results.write_between(str(path), "summary", _summary(known))
    results.write_between(str(path), "rows", "\n\n".join(_section(row, entry) for row, entry in known))
    results.write_between(str(path), "history", _history(records))


def _summary(known):
    lines = []
    for row, entry in known:
        for verdict in verdicts(row, entry):
            lines.append(
                {
                    "work": f"[{row.title}](#{row.name})",
                    "measured": verdict.measured,
                    "goal": verdict.wanted,
                    "met": "yes" if verdict.met else "**no**",
                }
            )
    return results.table(lines) if lines else "Not measured yet: run `make benchmark`."


def _section(row, entry):
    work = dict(row.work)
    lines = [_line(result, entry["results"][0], work.get("batch", 1), row.together) for result in entry["results"]]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(entry["versions"].items()))
    others = entry.get("others")
    quiet = "" if others is None else f" Other programs took {100 * others:.0f} % of the processors."
    return "\n\n".join(
        [
            f'<a id="{row.name}"></a>\n### {row.title}',
            results.table(lines),
            f"{entry['rounds']} rounds at `{entry['commit']}`, {entry['time']} UTC; {entry['machine']}; {versions}."
            + quiet,
        ]
    )


def _line(result, first, batch, together):
    if result["error"]:
        cells = {"a step": f"failed: {result['error']}", "images/s": "", "time over first": "", "memory": "", "": ""}
        return {"system": result["system"], **cells}
    seconds, spread = result["seconds"], result["spread"]
    size, libraries = result["peak_bytes"], result["library_bytes"]
    memory = "" if size is None else f"{size / 1e9:.2f} GB"
    if size and libraries:
        memory += f" ({(size - libraries) / 1e9:.2f} beyond libraries)"
    ratio = result["ratio"]
    if not together:  # each was alone: there are no rounds to compare
        ratio = seconds / first["seconds"] if first["seconds"] else None
    return {
        "system": result["system"],
        "a step": f"{seconds:.3g} s" + ("" if spread is None else f" ± {100 * spread:.0f} %"),
        "images/s": f"{batch / seconds:.3g}",
        "time over first": "" if ratio is None or result["system"] == first["system"] else f"{ratio:.2f}",
        "memory": memory,
        "": result["note"] or "",
    }


def _history(records):
    lines = []
    for entry in reversed(records):
        row = all_rows.ROWS.get(entry["row"])
        if row is None:
            continue
        said = "; ".join(verdict.measured for verdict in verdicts(row, entry))
        failed = [result["system"] for result in entry["results"] if result["error"]]
        own = entry["results"][0]
        figure = "-" if own["seconds"] is None else f"{own['seconds']:.3g} s"
        lines.append(
            {
                "when (UTC)": entry["time"],
                "commit": f"`{entry['commit']}`",
                "row": entry["row"] + (" (machine not quiet)" if (entry.get("others") or 0) > QUIET else ""),
                "first system": figure,
                "measured": said + (f" (failed: {', '.join(failed)})" if failed else ""),
            }
        )
    return results.table(lines) if lines else "Nothing yet."
