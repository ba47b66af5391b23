"""Trainers of others that read with `as_torch`: Lightning and Accelerate. Run by `make torch-test`."""

from __future__ import annotations

import itertools
import json
import pathlib
import sys
from typing import Any

import pytest

import imagebeam
from tests import command_line, datasets, docs_pages, image_sets
from tests.servers import torch_cpu
from tests.unit.imagebeam.reader.feeding import LABELS, PER_LABEL, SIZE

sys.path.append(str(torch_cpu.install()))
sys.path.append(str(torch_cpu.install_trainers()))
import lightning
import torch
import torch.utils.data

pytestmark = pytest.mark.integration

EPOCHS = 3
STEPS = SIZE // 5  # batches of 5 in an epoch
Seen = list[list[str]]  # keys of each batch


def load(directory: str, **options: Any) -> Any:
    given = {"image_size": 8, "dtype": "float32", "features": ("image/key",), "shuffle": "global", **options}
    return imagebeam.open_dataset(directory).as_torch("train", 5, **given)


def keys_of(batch: Any) -> list[str]:
    return [key.decode() for key in batch["image/key"]]


class Model(lightning.LightningModule):  # type: ignore[misc]
    """Notes the batches that it is trained and evaluated with."""

    def __init__(self, directory: str, **options: Any) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, len(LABELS))
        self.directory, self.options = directory, options
        self.seen: Seen = []
        self.evaluated = 0

    def train_dataloader(self) -> Any:
        return load(self.directory, **self.options)

    def training_step(self, batch: Any, index: int) -> Any:
        self.seen.append(keys_of(batch))
        return torch.nn.functional.cross_entropy(self.layer(batch["image"].float().mean((2, 3))), batch["label"])

    def validation_step(self, batch: Any, index: int) -> None:
        self.evaluated += int(batch["mask"].sum())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.01)


class SaveAt(lightning.Callback):  # type: ignore[misc]
    """Saves a checkpoint after some steps."""

    def __init__(self, step: int, path: str) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def make_trainer(**options: Any) -> Any:
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    given = {"accelerator": "cpu", "devices": 1, "max_epochs": EPOCHS, "num_sanity_val_steps": 0}
    return lightning.Trainer(**dict.fromkeys(silent, False), **{**given, **options})


def fit(directory: str, resume: str | None = None, trainer: dict[str, Any] | None = None, **options: Any) -> Seen:
    """Returns the batches that Lightning trains with."""
    model = Model(directory, **options)
    make_trainer(**(trainer or {})).fit(model, ckpt_path=resume, weights_only=False)
    return model.seen


def fit_in_process(directory: str, devices: int, checkpoint: str, step: int, output: str) -> None:
    """Trains in several processes from a checkpoint if there is one, else saves one, and writes the batches."""
    resume = checkpoint if pathlib.Path(checkpoint).exists() else None
    several = {"devices": devices, "strategy": "ddp" if devices > 1 else "auto", "max_epochs": 2}
    model, trainer = Model(directory), make_trainer(**several, callbacks=[SaveAt(step, checkpoint)])
    trainer.fit(model, ckpt_path=resume, weights_only=False)
    pathlib.Path(f"{output}{trainer.global_rank}").write_text(json.dumps(model.seen))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """52 images of two classes in three shards."""
    folder = tmp_path_factory.mktemp("feeds")
    image_sets.write_folder(folder / "in", LABELS, PER_LABEL)
    datasets.make(folder / "in", folder / "out", output={"num_shards": 3}, label={"by": "directory", "base": 1})
    return str(folder / "out")


def expected(directory: str) -> Seen:
    """Returns the batches of all epochs, as the loader gives them to a loop."""
    loader = load(directory)
    return [keys_of(batch) for _ in range(EPOCHS) for batch in loader]


@pytest.mark.parametrize("step", [3, STEPS, STEPS + 4])
def test_lightning_reads_epoch_after_epoch_and_goes_on_after_any_step(
    directory: str, tmp_path: pathlib.Path, step: int
) -> None:
    path = str(tmp_path / "saved.ckpt")
    assert fit(directory, trainer={"callbacks": [SaveAt(step, path)]}) == expected(directory)
    assert fit(directory, resume=path) == expected(directory)[step:]


def test_lightning_cuts_an_endless_loader_into_epochs_of_its_own(directory: str, tmp_path: pathlib.Path) -> None:
    path, endless = str(tmp_path / "saved.ckpt"), {"num_epochs": None}
    limit = {"limit_train_batches": 7}
    found = fit(directory, trainer={**limit, "callbacks": [SaveAt(10, path)]}, **endless)
    assert found == [keys_of(batch) for batch in itertools.islice(load(directory, **endless), 7 * EPOCHS)]
    assert fit(directory, resume=path, trainer=limit, **endless) == found[10:]


def test_processes_of_lightning_divide_the_records_and_go_on_in_another_number(
    directory: str, tmp_path: pathlib.Path
) -> None:
    def run(devices: int, name: str) -> list[Seen]:
        call = (directory, devices, str(tmp_path / "saved.ckpt"), 3, str(tmp_path / name))
        script = tmp_path / "script.py"  # that Lightning starts again for each process
        script.write_text(
            f"import sys\nsys.path.append({str(command_line.ROOT)!r})\nfrom tests.integration import torch_trainers\n"
            f"torch_trainers.fit_in_process(*{call!r})\n"
        )
        code = "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
        folders = (command_line.ROOT, torch_cpu.install(), torch_cpu.install_trainers())
        environment = {"PYTHONPATH": ":".join(map(str, folders)), "OMP_NUM_THREADS": "1"}
        command_line.finish(command_line.start_program(code, script, environment=environment), 0)
        return [json.loads((tmp_path / f"{name}{rank}").read_text()) for rank in range(devices)]

    whole = run(2, "whole")
    half = STEPS // 2
    for epoch in range(2):
        read = [key for seen in whole for batch in seen[epoch * half : (epoch + 1) * half] for key in batch]
        assert len(read) == len(set(read)) == half * 10
    assert run(2, "again") == [seen[3:] for seen in whole]
    [alone] = run(1, "alone")
    before = [key for seen in whole for batch in seen[:3] for key in batch]
    rest = [key for batch in alone[: STEPS - 6] for key in batch]
    assert len(rest) == 20 and not {*before} & {*rest}


def test_snippets_of_lightning_and_accelerate_do_what_the_page_says(
    directory: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = docs_pages.blocks("torch.md", "python")
    [of_lightning] = [each for each in blocks if "lightning" in each]
    [of_accelerate] = [each for each in blocks if "accelerate" in each]
    changed = {"256": "5, image_size=8, features=('image/key',)", '"test"': '"train"', "bfloat16": "float32"}
    for text, other in changed.items():
        of_lightning, of_accelerate = (each.replace(text, other) for each in (of_lightning, of_accelerate))
    layer = torch.nn.Linear(3, len(LABELS))
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)
    model = Model(directory)
    names: dict[str, Any] = {"ds": imagebeam.open_dataset(directory), "model": model, "__name__": "__snippet__"}
    of_lightning = of_lightning.replace("lightning.Trainer(max_epochs=90)", "make_trainer(max_epochs=2)")
    exec(compile(of_lightning, "snippet", "exec"), {**names, "make_trainer": make_trainer})
    assert len(model.seen) == 2 * STEPS and model.evaluated == 2 * SIZE
    names |= {"model": layer, "optimizer": optimizer}
    exec(compile(of_accelerate, "snippet", "exec"), names)
    assert names["train"].state().position == 0
    accelerator, batches = names["accelerator"], iter(names["train"])
    seen = [keys_of(next(batches)) for _ in range(4)]
    accelerator.save_state("state")
    rest = [keys_of(batch) for batch in batches]
    accelerator.load_state("state")
    assert [keys_of(batch) for batch in names["train"]] == rest and len(seen) + len(rest) == STEPS
    assert accelerator.prepare(names["train"]) is names["train"]


def test_loader_made_before_the_processes_know_each_other_is_refused(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning gives the processes that it starts WORLD_SIZE."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(imagebeam.ConfigError, match=r"torch\.distributed is not initialized"):
        load(directory)
