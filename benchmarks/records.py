"""Records of measured rows in `records.jsonl`, and the tables that are generated from the records."""

import datetime
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import host, tables
from benchmarks.interleaved import ROOT, Result
from benchmarks.rows import ROWS, Row
from keras_vit.util import file_io, formatting

RECORDS = ROOT / "benchmarks" / "records.jsonl"
GUIDE = ROOT / "docs" / "benchmarks.md"
NOTES = ROOT / "benchmarks" / "notes" / "cpu.md"
QUIET = 0.05  # share of the processors that other programs may use without a remark


def code(root: Path = ROOT) -> tuple[str, str]:
    """Return the commit and the Git tree of the package. With uncommitted changes, both end in `+`."""
    commit = _git(root, "rev-parse", "--short=10", "HEAD")
    tree = _git(root, "rev-parse", "--short=10", "HEAD:keras_vit")
    changed = _git(root, "status", "--porcelain", "--", "keras_vit")
    return (f"{commit}+", f"{tree}+") if changed else (commit, tree)


def _git(root, *arguments):
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.strip() if not done.returncode else "unknown"


def make(
    row: Row,
    results: Sequence[Result],
    rounds: int,
    others: float | None = None,
    rates: Mapping[str, float] | None = None,
) -> dict:
    """Return the record of a measured row.

    Args:
        row: The row.
        results: Its results.
        rounds: Steps per system.
        others: Share of the processors that other programs used.
        rates: Rates of the machine: matrix products in operations per second, copies in bytes per second.
    """
    commit, tree = code()
    return {
        "row": row.name,
        "time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit,
        "code": tree,
        "machine": host.describe(),
        "rounds": rounds,
        "versions": {name: version for result in results for name, version in result.versions.items()},
        "results": [
            {name: _short(value) for name, value in vars(result).items() if name not in ("versions", "rates")}
            for result in results
        ],
        "others": others and round(others, 3),
        "rates": rates and {name: _short(rate) for name, rate in rates.items()},
    }


def _short(value):
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read(path: Path = RECORDS) -> list[dict]:
    """Return all records, starting with the oldest record."""
    return file_io.read_json_lines(path)[0] if Path(path).exists() else []


def append(record: dict, path: Path = RECORDS) -> None:
    """Add a record to the file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def is_measured(row: Row, records: Sequence[dict]) -> bool:
    """Return whether the row was measured successfully with this code on this machine."""
    _, tree = code()
    here = host.describe()
    return not tree.endswith(("+", "unknown")) and any(
        record["row"] == row.name
        and (record["code"], record["machine"]) == (tree, here)
        and not any(result["error"] for result in record["results"])
        for record in records
    )


def write_tables(records: Sequence[dict], guide: Path = GUIDE, notes: Path = NOTES) -> None:
    """Write the tables from the newest record of each row on each processor.

    The guide gets a table per processor, with a line per row. The notes get the full records and their history.
    """
    newest: dict[str, dict[str, dict]] = {}  # by row, then by processor
    for record in records:
        newest.setdefault(record["row"], {})[host.kind(record["machine"])] = record
    measured = [(row, newest[name]) for name, row in ROWS.items() if name in newest]
    tables.write_between(guide, "summary", _summaries([(row, found) for row, found in measured if not row.files]))
    tables.write_between(guide, "input", _input([(row, found) for row, found in measured if row.files]))
    tables.write_between(notes, "rows", "\n\n".join(_section(row, list(found.values())) for row, found in measured))
    tables.write_between(notes, "history", _history(records))


Measured = Sequence[tuple[Row, Mapping[str, dict]]]  # rows, and their records by processor


def _summaries(measured: Measured) -> str:
    header = ["row", "keras_vit:", "others", "memory:", "memory of others"]
    parts = []
    for processor in sorted({name for _, found in measured for name in found}):
        lines = [_summary(row, found[processor]) for row, found in measured if row.peers and processor in found]
        if lines:
            parts.append(f"### {processor}\n\n{formatting.markdown_table(header, lines)}")
    return "\n\n".join(parts)


def _summary(row: Row, record: dict) -> list[str]:
    first = record["results"][0]
    others = [result for result in record["results"] if result["system"] in row.peers]
    return [
        row.title,
        "failed" if first["error"] else f"{first['seconds']:.3g} s",
        ", ".join(f"{result['system']} {_ratio(result)}" for result in others),
        _gigabytes(first),
        ", ".join(filter(None, map(_gigabytes, others))),
    ]


def _ratio(result: dict) -> str:
    """Return the time relative to the first system, unless one of the two failed."""
    return "failed" if result["ratio"] is None else f"{result['ratio']:.2f}"


def _input(measured: Measured) -> str:
    """Return images per second per core of input pipelines."""
    lines = []
    for row, found in measured:
        for processor, record in sorted(found.items()):
            for result in record["results"]:
                rate = "failed" if result["error"] else _per_core(row, record, result["seconds"])
                ratio = None if result["error"] or result is record["results"][0] else f"{result['ratio']:.2f}"
                lines.append([row.title, processor, result["system"], rate, ratio])
    if not lines:
        return "Not measured yet: `make benchmark ROWS=input`."
    return formatting.markdown_table(
        ["row", "processor", "system", "images/s per core:", "time relative to first:"], lines
    )


def _per_core(row: Row, record: dict, seconds: float) -> str:
    return f"{row.work['batch'] / seconds / int(record['machine'].split()[0]):.3g}"


def _gigabytes(result: dict) -> str:
    return "" if result["error"] or result["peak_bytes"] is None else f"{result['peak_bytes'] / 1e9:.2f} GB"


def _section(row: Row, records: Sequence[dict]) -> str:
    """Return the results of a row for each processor."""
    return "\n\n".join([f'<a id="{row.name}"></a>\n### {row.title}', *(_results(row, record) for record in records)])


def _results(row: Row, record: dict) -> str:
    first = record["results"][0]
    rates = record.get("rates") or {}
    lines = [_line(row, result, first, rates) for result in record["results"]]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(record["versions"].items()))
    others = record.get("others")
    busy = "" if others is None else f" Other programs took {100 * others:.0f}% of the processors."
    measured = f"{record['rounds']} rounds at `{record['commit']}`, {record['time']} UTC; {record['machine']}"
    header = ["system", "step:", "images/s:", "time relative to first:", "peak memory:", ""]
    return f"{formatting.markdown_table(header, lines)}\n\n{measured}; {versions}.{busy}{_limits(rates)}"


def _limits(rates: Mapping[str, float]) -> str:
    """Return a sentence with the rates of the machine."""
    texts = [
        f"{name} {rate / 1e9:,.0f} {'GB/s' if name.startswith('memory') else 'GFLOP/s'}" for name, rate in rates.items()
    ]
    return f" The machine's own products and copies: {'; '.join(texts)}." if texts else ""


def share_of_machine(row: Row, system: str, seconds: float, rates: Mapping[str, float]) -> str:
    """Describe the operations per second of a step and their share of the machine's rate with all threads."""
    operations = row.operations(system) if rates else None
    if operations is None:
        return ""
    text = f"{operations / seconds / 1e9:,.0f} GFLOP/s"
    own = [rate for name, rate in rates.items() if name.startswith(f"{row.work.get('precision', 'float32')},")]
    return f"{text}, {100 * operations / seconds / own[-1]:.0f}% of the machine's products" if own else text


def _line(row: Row, result: dict, first: dict, rates: Mapping[str, float]) -> list[str]:
    if result["error"]:
        return [result["system"], f"failed: {result['error']}", "", "", "", ""]
    seconds, ratio = result["seconds"], result["ratio"]
    if not row.together:  # the systems did not run in the same rounds
        ratio = seconds / first["seconds"] if first["seconds"] else None
    return [
        result["system"],
        f"{seconds:.3g} s" + (f" ± {100 * result['spread']:.0f}%" if result["spread"] is not None else ""),
        f"{row.work.get('batch', 1) / seconds:.3g}",
        "" if ratio is None or result["system"] == first["system"] else f"{ratio:.2f}",
        _memory(result),
        "; ".join(filter(None, (share_of_machine(row, result["system"], seconds, rates), result["note"]))),
    ]


def _memory(result: dict) -> str:
    peak, libraries = result["peak_bytes"], result["library_bytes"]
    if peak is None:
        return ""
    beyond = f" ({(peak - libraries) / 1e9:.2f} beyond libraries)" if libraries else ""
    return f"{peak / 1e9:.2f} GB{beyond}"


def _history(records: Sequence[dict]) -> str:
    lines = []
    for record in reversed(records):
        if record["row"] not in ROWS:
            continue
        busy = " (busy machine)" if (record.get("others") or 0) > QUIET else ""
        first, *rest = record["results"]
        others = [
            f"{result['system']} {'failed' if result['error'] else format(result['ratio'], '.2f')}"
            for result in rest
            if result["error"] or (ROWS[record["row"]].together and result["ratio"] is not None)
        ]
        seconds = "failed" if first["error"] else f"{first['seconds']:.3g} s"
        where = [record["time"], f"`{record['commit']}`", host.kind(record["machine"])]
        lines.append([*where, record["row"] + busy, seconds, ", ".join(others)])
    header = ["time (UTC)", "commit", "processor", "row", "step of the first system:", "time relative to it"]
    return formatting.markdown_table(header, lines)
