"""PyTorch in several processes, and examples/train_torch.py, which is killed. Run by `make torch-test`."""

from __future__ import annotations

import json
import pathlib
import random

import pytest

import imagebeam
from tests import command_line, datasets, image_sets, killed_jobs
from tests.servers import torch_cpu
from tests.unit.imagebeam.reader.feeding import LABELS, PER_LABEL, SIZE

PACKAGES = torch_cpu.install()

pytestmark = pytest.mark.integration

GATHER = """
import json, sys, torch.distributed as distributed, imagebeam
distributed.init_process_group("gloo")
options = {"image_size": 8, "features": ("image/key",), "shuffle": "global"}
loader = imagebeam.open_dataset(sys.argv[1]).as_torch("train", 5, **options)
keys = [[key.decode() for key in batch["image/key"]] for batch in loader]
every = [None] * distributed.get_world_size()
distributed.all_gather_object(every, keys)
assert "tensorflow" not in sys.modules
if distributed.get_rank() == 0:
    print(json.dumps(every))
distributed.destroy_process_group()
"""


RUN_SEVERAL = """
import sys
from torch.distributed.run import main
main(["--standalone", "--nproc-per-node", "{count}", *sys.argv[1:]])
"""


def start(count: int, script: pathlib.Path, *arguments: object) -> command_line.Process:
    """Starts a script in one process, or in several as torchrun does."""
    code = killed_jobs.RUN if count == 1 else RUN_SEVERAL.format(count=count)
    environment = {"PYTHONPATH": f"{killed_jobs.SEARCHED}:{PACKAGES}", "OMP_NUM_THREADS": "1"}
    return command_line.start_program(code, script, *arguments, environment=environment)


def test_processes_of_a_group_read_each_record_once(tmp_path: pathlib.Path) -> None:
    image_sets.write_folder(tmp_path / "in", LABELS, PER_LABEL)
    datasets.make(tmp_path / "in", tmp_path / "out", output={"num_shards": 3})
    script = tmp_path / "gather.py"
    script.write_text(GATHER)
    shares = json.loads(command_line.finish(start(2, script, tmp_path / "out"), 0).stdout.splitlines()[-1])
    assert [len(share) for share in shares] == [SIZE // 10] * 2
    assert len({key for share in shares for batch in share for key in batch}) == SIZE // 10 * 10


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return killed_jobs.make_shapes(tmp_path_factory.mktemp("shapes"))


@pytest.mark.parametrize("counts", [(2, 2), (2, 1, 2)], ids=str)
def test_example_that_was_killed_goes_on_in_the_middle_of_an_epoch(
    counts: tuple[int, ...], shapes: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Losses are equal to the last bit on as many processes; others add the gradients in another order."""

    def run(count: int, num_losses: int | None, *more: object) -> tuple[killed_jobs.Losses, str]:
        options = ("--epochs", 2, "--save-every", 2, "--print-every", 1, *more)
        job = [start(count, killed_jobs.EXAMPLES / "train_torch.py", shapes, *options)]
        return killed_jobs.run(job, num_losses)

    expected, _ = run(counts[0], None)
    rng = random.Random(repr(counts))
    for place, count in enumerate(counts, 1):
        num_losses = rng.randint(3, 8) if place < len(counts) else None
        losses, text = run(count, num_losses, "--checkpoint", tmp_path / "checkpoint.pt")
        first = min(losses)
        assert f"{count} processes, {first - 1} steps done\n" in text and (first > 1) == (place > 1)
        wanted = {step: expected[step] for step in range(first, max(losses) + 1)}
        assert losses == (wanted if len(set(counts)) == 1 else pytest.approx(wanted, rel=1e-2))
    assert max(losses) == len(expected)
    assert f"over {imagebeam.open_dataset(shapes).num_examples('test')} examples" in text
