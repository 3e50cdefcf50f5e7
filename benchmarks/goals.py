"""What must come out of a row: functions of its results by system to a `Verdict`, or None if they do not tell."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a goal is met.

    Attributes:
        measured: The figure, in words.
        wanted: What it should be, in words.
        met: Whether it is.
    """

    measured: str
    wanted: str
    met: bool


def ahead(bound, excluding=()):
    """The fastest peer must take at least `bound` times as long as this package."""

    def judge(results):
        peers = {
            name: result
            for name, result in results.items()
            if name != "keras_vit" and name not in excluding and result["ratio"] is not None
        }
        if not peers:
            return None
        best = min(peers, key=lambda name: peers[name]["seconds"])
        ratio = peers[best]["ratio"]
        return Verdict(f"{ratio:.2f} × {best}", f"≥ {bound:.2f}", ratio >= bound)

    return judge


def memory(peer, bound, own_only=False):
    """The peak memory must be at most `bound` of a peer's.

    Args:
        peer: The peer.
        bound: The largest quotient.
        own_only: Whether to leave out what the libraries hold once loaded, for peers on other libraries: the builds of
            PyTorch differ by hundreds of megabytes in that alone.
    """
    return memory_of("keras_vit", peer, bound, own_only)


def memory_of(system, other, bound, own_only=False):
    """The peak memory of one system must be at most `bound` of another's."""

    def judge(results):
        sizes = [_bytes(results.get(name), own_only) for name in (system, other)]
        if None in sizes:
            return None
        quotient = sizes[0] / sizes[1]
        beyond = " beyond libraries" if own_only else ""
        return Verdict(f"{quotient:.2f} of {other}'s memory{beyond}", f"≤ {bound:.2f}", quotient <= bound)

    return judge


def _bytes(result, own_only):
    if result is None or result["peak_bytes"] is None:
        return None
    return result["peak_bytes"] - (result["library_bytes"] if own_only else 0)


def at_most_seconds(system, bound):
    """A system must take at most so many seconds."""

    def judge(results):
        seconds = results[system]["seconds"]
        return None if seconds is None else Verdict(f"{seconds:.2f} s", f"≤ {bound:.1f} s", seconds <= bound)

    return judge


def more_seconds(system, other, bound):
    """A system must take at most so many seconds more than another."""

    def judge(results):
        seconds = [results[name]["seconds"] for name in (system, other)]
        if None in seconds:
            return None
        more = seconds[0] - seconds[1]
        return Verdict(f"{more:+.2f} s", f"≤ +{bound:.1f} s", more <= bound)

    return judge


def says(system, note):
    """A system must note so."""

    def judge(results):
        said = results[system]["note"]
        return None if said is None else Verdict(said, note, said == note)

    return judge
