"""docs/tpu.md as it is printed, on eight CPU devices."""

from __future__ import annotations

import os
import pathlib
import shlex
import socket

import pytest

import imagebeam
from tests import command_line, docs_pages

PAGE = "tpu.md"
EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
SMALL = {"1024": "16", "224": "32", '"/tmp/imagebeam"': '"cache"'}  # a batch, the side of an image, the cache

NAMES = """
import os
folder, step = os.path.abspath("checkpoints"), 1
def predict(image):
    return image.mean((1, 2))
"""
ENDS = """
assert images.shape == (16, 32, 32, 3)
assert batch["image"].dtype == "bfloat16"
assert spent["bound"] in ("input", "step")
assert 0 <= accuracy <= 1
assert len(batches.get_state()) > 1
"""
FAIL = """
def fail(call):
    try:
        call()
    except (imagebeam.ConfigError, imagebeam.CatalogError) as e:
        print(e)

train = lambda **options: ds.as_jax("train", over_devices, **options)
fail(lambda: ds.as_jax("test", over_devices, 16))
fail(lambda: train(batch_size=100))
fail(lambda: train(batch_size=16, supervised=True))
fail(lambda: ds.as_numpy("train", 16, process_count=2, state=ds.state_at("train", 2, 8, process_count=4)))
fail(lambda: ds.as_numpy("train", 16, shuffle="global", state=ds.state_at("train", 2, 8, seed=1, shuffle="global")))
fail(lambda: imagebeam.open_dataset("photos"))
"""


@pytest.mark.slow
def test_page_runs_as_printed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import demo, pathlib\ndemo.make_images(pathlib.Path('photos'))"
    searched = {"PYTHONPATH": f"{command_line.ROOT / 'examples'}:{command_line.ROOT}"}
    command_line.finish(command_line.start_program(code, cwd=tmp_path, environment=searched), 0)
    for bad in ("circle/cut short.jpg", "square/empty.jpg", "triangle/page.jpg"):
        (tmp_path / "photos" / bad).unlink()

    for command in docs_pages.blocks(PAGE, "sh")[0].replace("\\\n", " ").splitlines():
        words = shlex.split(command)
        assert words.pop(0) == "imagebeam"
        command_line.succeed(*words)

    program = NAMES + "\n".join(docs_pages.blocks(PAGE, "python")) + ENDS + FAIL
    for usual, small in SMALL.items():
        program = program.replace(usual, small)
    done = command_line.finish(command_line.start_program(program, cwd=tmp_path, environment=EIGHT), 0)
    printed = done.stdout.replace(str(tmp_path), "/data").splitlines()
    assert printed[1:] == docs_pages.blocks(PAGE, "text")[0].splitlines(), done.stderr

    [together] = [block for block in docs_pages.blocks(PAGE, "sh") if "PORT" in block]
    with socket.create_server(("127.0.0.1", 0)) as server:
        together = together.replace("PORT", str(server.getsockname()[1]))
    (tmp_path / "examples").symlink_to(command_line.ROOT / "examples")
    environment = {"PATH": f"{pathlib.Path(command_line.PYTHON).parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    done = command_line.run_other("bash", "-ec", together, cwd=tmp_path, JAX_PLATFORMS="cpu", **environment)
    assert done.returncode == 0 and "8 devices (cpu), 2 processes, 0 steps done\n" in done.stdout, done.stderr
    assert f"over {imagebeam.open_dataset('shards').num_examples('test')} examples\n" in done.stdout


def test_options_of_the_example_on_the_page_exist() -> None:
    script = (command_line.ROOT / "examples" / "train_jax.py").read_text()
    printed = "\n".join(docs_pages.blocks(PAGE, "sh"))
    assert "python examples/train_jax.py" in printed
    for option in ("--coordinator", "--process-count", "--process-index", "--checkpoints"):
        assert f'"{option}"' in script
        assert option in printed
