"""The order of batches in buckets, and the bucket of each image, without images."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import imagebeam
from imagebeam.reader import aspect_buckets, batch_schedule, bucket_order
from tests import case_tables, error_texts
from tests.unit.imagebeam.reader import restarts

SIZES = ((8, 8), (8, 16), (16, 8), (4, 12))
MULTIPLES = (1, 2, 3, 4, 6, 8, 24)
Size = tuple[int, int]
Step = tuple[int, list[int]]  # its bucket, and the records of all processes together


@dataclasses.dataclass(frozen=True)
class Job:
    """A job in buckets that may run in several numbers of processes and of replicas of each.

    Attributes:
        members: records of each bucket.
        together: `batch_size` or `max_pixels` of all processes together.
        multiple: number that the batches of all processes together are multiples of.
        options: the other options.
    """

    members: Sequence[np.ndarray]
    together: dict[str, int]
    multiple: int
    options: dict[str, Any]

    @property
    def counts(self) -> list[int]:
        return [len(each) for each in self.members]

    @property
    def batch_sizes(self) -> list[int]:
        """Records in a batch of all processes together, of each bucket."""
        if "batch_size" in self.together:
            return [self.together["batch_size"]] * len(self.members)
        rows = (self.together["max_pixels"] // (height * width) for height, width in SIZES[: len(self.members)])
        return [each // self.multiple * self.multiple for each in rows]

    def schedules(
        self, geometry: tuple[int, int] = (1, 1), **more: Any
    ) -> tuple[list[batch_schedule.BatchSchedule], int]:
        """Returns the schedules of all processes, and the size by which they count positions."""
        count, replicas = geometry
        asked = {**self.options, "buckets": SIZES[: len(self.members)], "process_count": count, "shuffle": "global"}
        if "batch_size" in self.together:
            asked["batch_size"] = self.together["batch_size"] // (count * replicas)
        else:
            asked |= {
                "max_pixels": self.together["max_pixels"] // replicas,
                "batch_multiple": self.multiple // replicas,
            }
        epochs = batch_schedule.BucketEpochs(restarts.select_all([100]), self.members, replicas)
        every = [imagebeam.ReadOptions(**{**asked, **more}, process_index=index) for index in range(count)]
        size = every[0].batch_size
        assert size is not None
        return [batch_schedule.make_schedule(epochs, each, replicas) for each in every], size

    def read(self, num_steps: int, geometry: tuple[int, int] = (1, 1), **more: Any) -> list[Step]:
        """Returns the first steps."""
        schedules, size = self.schedules(geometry, **more)
        replicas, found = geometry[1], []
        for step in range(num_steps):
            batches = [
                _batch_at(each, number, size)
                for number in range(step * replicas, (step + 1) * replicas)
                for each in schedules
            ]
            [bucket] = {bucket for bucket, _ in batches}  # the same in all processes
            found.append((bucket, [record for _, records in batches for record in records]))
        return found

    def num_steps(self, **more: Any) -> int:
        """Returns the steps to the end; of a job without one those of three epochs, and one more."""
        [schedule], _ = self.schedules(**more)
        if schedule.num_batches is not None:
            return schedule.num_batches
        return 1 + sum(3 * count // size for count, size in zip(self.counts, self.batch_sizes, strict=True))


def _batch_at(each: batch_schedule.BatchSchedule, number: int, size: int) -> Step:
    calendar = each.calendar
    assert isinstance(calendar, bucket_order.BucketOrder)
    first, _ = each.positions_of(number, size)
    found = calendar.batch_at(int(each.order.places(np.array([first]))[0]))
    return found.bucket, calendar.records[found.bucket].locate(np.arange(found.first, found.end))[0].tolist()


@st.composite
def jobs(draw: st.DrawFn, pad: bool | None = None) -> Job:
    num_buckets = draw(st.integers(1, len(SIZES)))
    chosen = np.array(
        draw(st.lists(st.integers(-1, num_buckets - 1), min_size=1, max_size=40).filter(lambda each: max(each) >= 0)),
        np.int16,
    )
    records = np.arange(len(chosen))
    if draw(st.booleans()):  # of a selection
        records = np.cumsum(draw(st.lists(st.integers(1, 3), min_size=len(chosen), max_size=len(chosen))))
    multiple = draw(st.sampled_from(MULTIPLES))
    if draw(st.booleans()):
        together = {"batch_size": multiple * draw(st.integers(1, 3))}
    else:
        largest = max(height * width for height, width in SIZES[:num_buckets])
        together = {"max_pixels": multiple * largest + draw(st.integers(0, 4 * multiple * largest))}
    pad = draw(st.booleans()) if pad is None else pad
    options = {
        "seed": draw(st.integers(0, 9)),
        "num_epochs": draw(st.integers(1, 4)) if pad else draw(st.none() | st.integers(1, 4)),
        "first_epoch": draw(st.integers(0, 3)),
        "pad": pad,
    }
    return Job([records[chosen == bucket] for bucket in range(num_buckets)], together, multiple, options)


def draw_geometry(data: st.DataObject, job: Job) -> tuple[int, int]:
    """Draws a number of processes, 1 to 8, and of replicas, that share batches equally."""
    pairs = [(count, replicas) for count in range(1, 9) for replicas in (1, 2, 3)]
    return data.draw(st.sampled_from([each for each in pairs if job.multiple % (each[0] * each[1]) == 0]))


def in_turn(job: Job, steps: Sequence[Step]) -> list[list[int]]:
    """Returns the records of each bucket in the order in which they come."""
    found: list[list[int]] = [[] for _ in job.members]
    for bucket, records in steps:
        found[bucket] += records
    return found


@given(st.data(), jobs())
def test_steps_depend_neither_on_the_processes_nor_on_restarts(data: st.DataObject, job: Job) -> None:
    num_steps = job.num_steps()
    expected = job.read(num_steps)
    before = draw_geometry(data, job)
    schedules, _ = job.schedules(before)
    if job.options["num_epochs"] is not None:
        assert {each.num_batches for each in schedules} == {num_steps * before[1]}
    assert job.read(num_steps, before) == expected
    stop = data.draw(st.integers(0, num_steps), "steps before the restart")
    [state] = {restarts.save(each.state_after(stop * before[1])) for each in schedules}
    after = draw_geometry(data, job)
    again, _ = job.schedules(after, state=state)
    assert {each.state_after((num_steps - stop) * after[1]).position for each in again} == {
        each.state_after(num_steps * before[1]).position for each in schedules
    }
    if job.options["num_epochs"] is not None:
        assert {each.num_batches for each in again} == {(num_steps - stop) * after[1]}
    assert job.read(num_steps - stop, after, state=state) == expected[stop:]


@given(st.data(), jobs(pad=False))
def test_buckets_carry_what_is_left_into_the_next_epoch(data: st.DataObject, job: Job) -> None:
    """Each bucket gives one permutation of its records after the other, in full batches."""
    begun = dataclasses.replace(job, options={**job.options, "first_epoch": 0})
    num_steps = begun.num_steps()
    steps = begun.read(num_steps)
    for bucket, records in enumerate(in_turn(job, steps)):
        for first in range(0, len(records), max(1, len(job.members[bucket]))):
            part = records[first : first + len(job.members[bucket])]
            assert len(part) == len(set(part))
            assert set(part) <= set(job.members[bucket].tolist())
    assert all(len(records) == job.batch_sizes[bucket] for bucket, records in steps)
    # As loops over single epochs read: one iterator after the other, each from an epoch on.
    alone = [
        begun.read(begun.num_steps(num_epochs=1, first_epoch=epoch), num_epochs=1, first_epoch=epoch)
        for epoch in range(job.options["num_epochs"] or 3)
    ]
    assert [step for epoch in alone for step in epoch] == steps[: sum(map(len, alone))]
    [schedule], _ = begun.schedules()
    done = data.draw(st.integers(0, num_steps), "steps")
    state = schedule.state_after(done)
    num_read = [len(records) for records in in_turn(job, steps[:done])]
    still = [max(0, count * state.epoch - read) for count, read in zip(job.counts, num_read, strict=True)]
    assert state.carried == sum(still)
    assert all(left < size for left, size in zip(still, job.batch_sizes, strict=True)) or state.position
    assert sum(map(len, alone[: state.epoch])) <= done


@given(jobs(pad=True))
def test_padded_buckets_give_each_record_once_an_epoch(job: Job) -> None:
    num_epochs = job.options["num_epochs"]
    steps = job.read(job.num_steps())
    assert len(steps) % num_epochs == 0
    length = len(steps) // num_epochs
    for epoch in range(num_epochs):
        records = in_turn(job, steps[epoch * length : (epoch + 1) * length])
        assert [sorted(each) for each in records] == [each.tolist() for each in job.members]
    assert length == sum(-(-count // size) for count, size in zip(job.counts, job.batch_sizes, strict=True))


def test_buckets_of_an_epoch_come_in_random_order() -> None:
    members = [np.arange(60), np.arange(60, 100)]
    job = Job(members, {"batch_size": 2}, 1, {"seed": 1, "num_epochs": 1})
    orders = [
        [bucket for bucket, _ in job.read(50, first_epoch=epoch, seed=seed)] for epoch, seed in ((0, 1), (1, 1), (0, 2))
    ]
    for order in orders:
        assert collections.Counter(order) == {0: 30, 1: 20}
        assert max(len(list(run)) for run in np.split(order, np.flatnonzero(np.diff(order)) + 1)) < 15
    assert len(set(map(tuple, orders))) == 3


@pytest.mark.parametrize("pad", [False, True])
def test_steps_are_exact_up_to_the_greatest_epoch(pad: bool) -> None:
    """Also of two billion images, counted from the greatest first_epoch and num_epochs."""
    with pytest.raises(imagebeam.ConfigError):
        imagebeam.ReadOptions(first_epoch=1 << 31)
    counts, sizes, last = [(1 << 31) - 1, 7], [3, 5], (1 << 32) - 2
    steps = bucket_order.EpochSteps(np.array(counts), np.array(sizes), 0, pad)
    each = [(-(-count // size) * last if pad else count * last // size) for count, size in zip(counts, sizes)]
    assert steps.first_step(last) == sum(each)
    assert steps.epoch_of(1 << 40) == (1 << 40) // (sum(each) // last)


STATES: dict[str, dict[str, Any]] = {
    "other buckets": {"buckets": SIZES[1:3]},
    "other order": {"buckets": (SIZES[1], SIZES[0])},
    "other batch size": {"batch_size": 3},
    "two processes of this batch size": {"process_count": 2},
    "padded": {"pad": True},
    "small left out": {"max_enlarge": 2},
    "small padded": {"max_enlarge": 2, "too_small": "pad"},
    "no buckets": {"buckets": None},
}


def test_state_of_other_buckets_is_refused() -> None:
    epochs = batch_schedule.BucketEpochs(restarts.select_all([100]), [np.arange(30), np.arange(30, 50)])
    asked = {"batch_size": 4, "buckets": SIZES[:2], "shuffle": "global", "num_epochs": 1}

    def begin(**more: Any) -> batch_schedule.BatchSchedule:
        options = imagebeam.ReadOptions(**{**asked, **more})
        plain = batch_schedule.SelectionEpochs(epochs.selection)
        return batch_schedule.make_schedule(plain if options.buckets is None else epochs, options)

    for name, options in STATES.items():
        with case_tables.named(name), error_texts.raises("state-mismatch"):
            begin(state=begin(**options).state_after(2))
    with error_texts.raises("state-mismatch"):
        begin(max_enlarge=5.4321, state=begin(max_enlarge=5.4320999).state_after(2))
    for place in ({"position": 7}, {"carried": 9}):  # not between two steps
        with case_tables.named(place), error_texts.raises("state-mismatch"):
            begin(state=dataclasses.replace(begin().state_after(2), **place))


def test_state_of_replicas_is_refused_by_one_with_other_steps() -> None:
    asked = imagebeam.ReadOptions(batch_size=4, buckets=SIZES[:2], shuffle="global")
    in_two, alone = (
        batch_schedule.BucketEpochs(restarts.select_all([100]), [np.arange(30), np.arange(30, 50)], replicas)
        for replicas in (2, 1)
    )
    state = batch_schedule.make_schedule(alone, asked).state_after(2)
    with error_texts.raises("state-mismatch"):
        batch_schedule.make_schedule(in_two, dataclasses.replace(asked, state=state), 2)


# --- the bucket of an image ------------------------------------------------------------------------------------------

sides = st.integers(1, 60)
sizes = st.tuples(sides, sides)


def kept_of(image: Size, size: Size) -> Fraction:
    """Returns the part of an image that the largest window with the aspect ratio of a size has."""
    height, width = image
    window = min(Fraction(height, size[0]), Fraction(width, size[1]))
    return window**2 * size[0] * size[1] / (height * width)


def enlargement_of(image: Size, size: Size) -> Fraction:
    return max(Fraction(size[0], image[0]), Fraction(size[1], image[1]))


def best_of(image: Size, buckets: Sequence[Size], max_enlarge: float | None, may_be_small: bool) -> set[int]:
    """Returns the buckets that are equally good; {-1} if there is none."""
    limit = None if max_enlarge is None else Fraction(max_enlarge) * (1 + Fraction(1, 10**9))
    fitting = [i for i, size in enumerate(buckets) if limit is None or enlargement_of(image, size) <= limit]
    if not fitting and may_be_small:
        fitting = list(range(len(buckets)))
    if not fitting:
        return {-1}
    most = max(kept_of(image, buckets[each]) for each in fitting)
    equal = [each for each in fitting if kept_of(image, buckets[each]) == most]
    whole = [each for each in equal if enlargement_of(image, buckets[each]) <= 1]
    if whole:  # the largest for which the image is not enlarged
        nearest = max(enlargement_of(image, buckets[each]) for each in whole)
    else:
        nearest = min(enlargement_of(image, buckets[each]) for each in equal)
    return {each for each in equal if enlargement_of(image, buckets[each]) == nearest}


@st.composite
def lists_of_buckets(draw: st.DrawFn) -> list[Size]:
    """Draws sizes, some of them multiples of others."""
    some = draw(st.lists(sizes, min_size=1, max_size=6))
    factor = draw(st.integers(2, 3))
    twins = [(factor * height, factor * width) for height, width in some[: draw(st.integers(0, 3))]]
    return draw(st.permutations(sorted({*some, *twins})))


@given(
    st.lists(sizes, min_size=1, max_size=20),
    lists_of_buckets(),
    st.none() | st.sampled_from([0.5, 1, 4 / 3, 2.0]),
    st.booleans(),
)
def test_bucket_loses_the_least_of_an_image(
    images: list[Size], buckets: list[Size], max_enlarge: float | None, may_be_small: bool
) -> None:
    chosen = aspect_buckets.choose(np.array(images), buckets, max_enlarge, may_be_small)
    for image, bucket in zip(images, chosen.tolist(), strict=True):
        assert bucket in best_of(image, buckets, max_enlarge, may_be_small), image


def test_buckets_of_nearly_one_aspect_ratio_are_told_apart() -> None:
    buckets = [(65_499, 65_500), (65_498, 65_499), (65_497, 65_498)]
    for chosen, image in zip(aspect_buckets.choose(np.array(buckets), buckets, None).tolist(), buckets, strict=True):
        assert {chosen} == best_of(image, buckets, None, False)


def test_members_are_the_selected_records_of_each_bucket_in_order() -> None:
    count, rng = 150_000, np.random.default_rng(0)
    drawn, kept = rng.integers(1, 60, (count, 2)).astype(np.uint16), np.flatnonzero(rng.integers(0, 4, count))
    drawn[7] = 0  # cannot be read: the first bucket reports it
    selected = bucket_order.BucketRecords(kept)
    chosen = aspect_buckets.choose_selected(drawn, selected, SIZES, 4.0, False)
    expected = aspect_buckets.choose(np.maximum(drawn[kept], 1), SIZES, 4.0)
    assert (chosen == np.where(kept == 7, 0, expected)).all() and (chosen < 0).any()
    for num_records, dtype in ((count, np.int32), (1 << 31, np.int64)):
        found = aspect_buckets.members(chosen, selected, len(SIZES), num_records)
        assert [each.dtype for each in found] == [dtype] * len(SIZES)
        assert [each.tolist() for each in found] == [kept[chosen == bucket].tolist() for bucket in range(len(SIZES))]


def kohya_buckets(max_side: int, step: int, min_size: int, max_size: int) -> set[Size]:
    """Returns (height, width) as kohya-ss/sd-scripts' make_bucket_resolutions lists (width, height)."""
    area, found = max_side**2, {(max_side // step * step,) * 2}
    for width in range(min_size, max_size + 1, step):
        height = min(max_size, area // width // step * step)
        if height >= min_size:
            found |= {(width, height), (height, width)}
    return found


def kohya_choice(image: Size, buckets: Sequence[Size]) -> int:
    """Returns the bucket of kohya's BucketManager, and of NovelAI, whose aspect ratio differs least."""
    if image in buckets:
        return buckets.index(image)
    errors = [abs(width / height - image[1] / image[0]) for height, width in buckets]
    return errors.index(min(errors))


@pytest.mark.parametrize("max_aspect", [1.0, 2.0, 4.0])
@pytest.mark.parametrize(("side", "step"), [(1024, 64), (512, 64), (768, 32)])
def test_buckets_are_those_of_kohya_up_to_the_aspect_ratio(side: int, step: int, max_aspect: float) -> None:
    every = kohya_buckets(side, step, step, 8 * side)
    wanted = {size for size in every if max(size) <= max_aspect * min(size)}
    found = aspect_buckets.aspect_buckets(side**2, step, max_aspect)
    if max_aspect == 4:
        assert wanted == kohya_buckets(side, step, side // 2, 2 * side)
    assert set(found) == wanted and len(found) == len(wanted)
    assert [width / height for height, width in found] == sorted(width / height for height, width in found)


def test_no_side_of_a_bucket_is_longer_than_one_that_images_are_resized_to() -> None:
    found = aspect_buckets.aspect_buckets(1 << 16, 1, 1e9)
    assert max(max(size) for size in found) == 32_767 and (3, (1 << 16) // 3) in found


@given(st.lists(st.tuples(st.integers(256, 6000), st.integers(256, 6000)), min_size=1, max_size=50))
def test_photos_keep_no_less_than_by_the_nearest_aspect_ratio(photos: list[Size]) -> None:
    buckets = aspect_buckets.aspect_buckets(1024**2)
    chosen = aspect_buckets.choose(np.array(photos), buckets, None)
    for photo, bucket in zip(photos, chosen.tolist(), strict=True):
        assert kept_of(photo, buckets[bucket]) >= kept_of(photo, buckets[kohya_choice(photo, buckets)])
        window = aspect_buckets.kept_part(*(np.array([side]) for side in photo), buckets[bucket])
        assert math.isclose(window[0], kept_of(photo, buckets[bucket]), rel_tol=1e-12)


@case_tables.each_case(
    "arguments",
    [(0,), (4095,), (1 << 20, 0), (1 << 20, 64, 0.5), ("large",), (1 << 30,), (1 << 20, 1 << 15)],
)
def test_wrong_arguments_of_aspect_buckets_are_refused(arguments: tuple[Any, ...]) -> None:
    with error_texts.raises("option-bad-value"):
        imagebeam.aspect_buckets(*arguments)
