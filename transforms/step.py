"""Bases of transforms: of those that are dataclasses, and of what adds up."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import apache_beam as beam
from apache_beam.transforms import window


class Step(beam.PTransform):
    """A PTransform whose subclasses are dataclasses: their __init__ calls no other, and Beam's is needed too."""

    def __post_init__(self) -> None:
        super().__init__()


class Sum(Protocol):
    """What adds up elements. The result must not depend on the order."""

    def add(self, element: Any, /) -> None: ...
    def merge(self, other: Any, /) -> None: ...
    def result(self) -> Any: ...


class AddUpFn(beam.CombineFn):
    """Elements -> the result of their sum."""

    def __init__(self, make: Callable[[], Sum]):
        self._make = make

    def create_accumulator(self) -> Sum:
        return self._make()

    def add_input(self, total: Sum, element: Any) -> Sum:
        total.add(element)
        return total

    def merge_accumulators(self, totals: Iterable[Sum]) -> Sum:
        merged = self._make()
        for each in totals:
            merged.merge(each)
        return merged

    def extract_output(self, total: Sum) -> Any:
        return total.result()


class AddUpBundleFn(beam.DoFn):
    """Elements -> one Sum of all in a bundle, to be merged later."""

    def __init__(self, make: Callable[[], Sum]):
        self._make = make

    def start_bundle(self) -> None:
        self._total = self._make()

    def process(self, element: Any) -> None:
        self._total.add(element)

    def finish_bundle(self) -> Iterator[Any]:
        yield window.GlobalWindows.windowed_value(self._total)
