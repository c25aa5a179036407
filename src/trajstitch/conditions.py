"""Conditions: which episodes meet one, such as `return > 100 and idle < 0.5`; never run as Python."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from trajstitch.data import Bool
from trajstitch.episodes import Episodes
from trajstitch.errors import InputError

_LONGEST = 150  # letters; so brackets are not nested too deeply to read
_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)|([A-Za-z_]\w*)|(<=|>=|==|!=|[<>()+*/-]))")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def where(episodes: Episodes, condition: str) -> Bool:
    """Return which episodes meet a condition, [M].

    A condition has the names of columns and `outlier`, numbers, true, false, + - * /, comparisons, and, or, not
    and brackets, such as `return > 100 and idle < 0.5 or not outlier`. A comparison with a number that is not
    known is false.
    """
    if len(condition) > _LONGEST:
        raise InputError(f"--where has {len(condition)} letters; {_LONGEST} are enough")
    return _Condition(episodes, condition).result()


class _Condition:
    """Reads a condition from left to right, computing on the way; nothing else can be written in it."""

    def __init__(self, episodes: Episodes, text: str) -> None:
        self._episodes, self._text = episodes, text
        self._tokens = self._split()
        self._at = 0

    def result(self) -> Bool:
        """Return what the whole condition says of each episode."""
        found = self._truth(self._any())
        if self._next():
            raise self._wrong(f"{self._next()!r} was not expected")
        return found

    def _split(self) -> list[str]:
        tokens, at = [], 0
        text = self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                raise self._wrong(f"{text[at:].strip()[0]!r} is not known")
            tokens.append(match[0].strip())
            at = match.end()
        return tokens

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        """Return the next token and go on if it is one of these; "" otherwise."""
        if self._next() not in wanted:
            return ""
        self._at += 1
        return self._tokens[self._at - 1]

    def _any(self) -> Any:
        left = self._all()
        while self._take("or"):
            left = self._truth(left) | self._truth(self._all())
        return left

    def _all(self) -> Any:
        left = self._not()
        while self._take("and"):
            left = self._truth(left) & self._truth(self._not())
        return left

    def _not(self) -> Any:
        return ~self._truth(self._not()) if self._take("not") else self._comparison()

    def _comparison(self) -> Any:
        left = self._sum()
        found = None
        while sign := self._take(*_COMPARE):
            right = self._sum()
            left, right = left.astype(float), right.astype(float)
            this = _COMPARE[sign](left, right) & ~np.isnan(left) & ~np.isnan(right)
            found, left = this if found is None else found & this, right
        return left if found is None else found

    def _sum(self) -> Any:
        left = self._product()
        while sign := self._take("+", "-"):
            left, right = left.astype(float), self._product().astype(float)
            left = left + right if sign == "+" else left - right
        return left

    def _product(self) -> Any:
        left = self._single()
        while sign := self._take("*", "/"):
            left, right = left.astype(float), self._single().astype(float)
            with np.errstate(all="ignore"):
                left = left * right if sign == "*" else np.divide(left, right)
        return left

    def _single(self) -> Any:
        if self._take("-"):
            return -self._single().astype(float)
        if self._take("("):
            inside = self._any()
            if not self._take(")"):
                raise self._wrong("a bracket is not closed")
            return inside
        token = self._next()
        self._at += 1
        if not token:
            raise self._wrong("it ends where a name or a number is needed")
        if token[0].isdigit() or token[0] == ".":
            return np.full(len(self._episodes), float(token))
        if token in ("true", "false"):
            return np.full(len(self._episodes), float(token == "true"))  # noqa: S105
        return self._column(token)

    def _column(self, name: str) -> Any:
        names = [*self._episodes.column, "outlier"]
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
            raise self._wrong(f"there is no {name!r}; {hint}")
        if name == "outlier":
            marked = np.zeros(len(self._episodes))
            marked[list(self._episodes.outlier)] = 1
            return marked
        if not self._episodes.known(name):
            raise self._wrong(f"{name} is not known of these data")
        return self._episodes.column[name]

    def _truth(self, value: Any) -> Any:
        if value.dtype != bool and not np.isin(value, (0, 1)).all():
            raise self._wrong("a number stands where a comparison is needed, such as return > 100")
        return value.astype(bool)

    def _wrong(self, why: str) -> InputError:
        return InputError(f"--where {self._text!r}: {why}")
