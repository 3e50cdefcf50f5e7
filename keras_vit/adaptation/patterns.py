"""Regular expressions of untrusted files, without backtracking.

`re` tries the paths through an expression one after the other, and an expression of a few characters may have more
paths than can ever be tried. A `Pattern` moves the set of all reachable positions through the expression instead.
"""

import functools
import re
from collections.abc import Callable

from keras_vit.checkpoints.errors import CheckpointError

_MAX_LENGTH = 2000  # characters of an expression
_MAX_GROUPS = 50
_MAX_STEPS = 10_000  # positions that one match may visit. A usual expression visits a few hundred
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|\((?:\?[:=!])?|[*+?]\??|\{(?:\d+,?\d*|,\d*)\}\??|.", re.DOTALL)
_QUANTIFIER = re.compile(r"([*+?]|\{(\d*)(,?)(\d*)\})\??")
_Positions = set[int]
_Part = Callable[[_Positions], _Positions]  # from the positions at which a part may begin to those at which it may end


class Pattern:
    """Regular expression of characters, classes, groups, `|`, quantifiers and lookaheads.

    Raises a ValueError for all other expressions.
    """

    def __init__(self, pattern: str):
        if len(pattern) > _MAX_LENGTH or pattern.count("(") > _MAX_GROUPS:
            raise ValueError("The regular expression is too long.")
        re.compile(pattern)
        self._pattern, self._tokens = pattern, _TOKEN.findall(pattern)[::-1]
        self._ends = self._alternatives()

    def fullmatch(self, text: str) -> bool:
        """Return whether the expression matches the whole text."""
        self._text, self._steps = text, 0
        return len(text) in self._ends({0})

    def _alternatives(self) -> _Part:
        branches = [self._sequence()]
        while self._tokens and self._tokens[-1] == "|":
            self._tokens.pop()
            branches.append(self._sequence())
        return lambda starts: set[int]().union(*(branch(starts) for branch in branches))

    def _sequence(self) -> _Part:
        parts: list[_Part] = []
        while self._tokens and self._tokens[-1] not in ("|", ")"):
            part = self._atom(self._tokens.pop())
            quantifier = _QUANTIFIER.fullmatch(self._tokens[-1]) if self._tokens else None
            parts.append(self._repeated(part, quantifier) if quantifier else part)
        return lambda starts: functools.reduce(lambda found, part: part(found), parts, starts)

    def _atom(self, token: str) -> _Part:
        if not token.startswith("("):
            character = re.compile(token)
            return lambda starts: {
                found.end() for start in self._counted(starts) if (found := character.match(self._text, start))
            }
        group = self._alternatives()
        self._tokens.pop()  # the closing parenthesis
        if token in ("(", "(?:"):
            return group
        return lambda starts: {start for start in starts if bool(group({start})) == (token == "(?=")}

    def _repeated(self, part: _Part, quantifier: re.Match[str]) -> _Part:
        self._tokens.pop()
        kind, first, comma, last = quantifier.groups()
        least = int(first or 0) if kind.startswith("{") else int(kind == "+")
        most = int(last or first) if last or (first and not comma) else 1 if kind == "?" else None

        def ends(starts: _Positions) -> _Positions:
            limit = len(self._text) + 2  # more repetitions do not add or remove a position
            for _ in range(min(least, limit)):
                starts = part(self._counted(starts))
            found = starts
            for _ in range(limit if most is None else min(most - least, limit)):
                starts = part(self._counted(starts)) - found
                found = found | starts
            return found

        return ends

    def _counted(self, starts: _Positions) -> _Positions:
        self._steps += len(starts) + 1
        if self._steps > _MAX_STEPS:
            raise CheckpointError(
                f"The adapter's regular expression must match {self._text!r} in a limited number of steps. List the "
                f"names of the modules instead. Received: {self._pattern[:100]!r}."
            )
        return starts
