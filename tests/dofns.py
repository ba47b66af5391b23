"""Classes with methods that Beam looks into, for the tests of what it does once instead of again and again."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.coders import VarIntCoder
from apache_beam.transforms import userstate


class Adder:
    """No DoFn: a class whose method may be a function of a step."""

    def add(self, one: int, *, other: int = 1) -> int:
        return one + other


class Plain(beam.DoFn):
    """A DoFn without state."""

    def process(self, element: int, timestamp: Any = beam.DoFn.TimestampParam) -> list[int]:
        return [element]


class Stateful(beam.DoFn):
    """Sums the values of each key."""

    SEEN = beam.DoFn.StateParam(userstate.BagStateSpec("seen", VarIntCoder()))

    def process(self, element: tuple[str, int], seen: Any = SEEN) -> list[int]:
        seen.add(element[1])
        return [sum(seen.read())]
