"""The main job from end to end: makes a small image set with bad files, converts it, verifies it, reads batches.

`make demo` runs it. Nothing is kept but the folder it names at the end.
"""

from __future__ import annotations

import argparse
import io
import pathlib
import random
import shlex
import shutil
import subprocess
import sys

from PIL import Image, ImageDraw

import imagebeam
from imagebeam.pipelines.messages import terminal

ROOT = pathlib.Path(__file__).parent.parent
WORK = ROOT / "build" / "demo"
SHAPES = ("circle", "square", "triangle")
PER_SHAPE = 200
SPLIT = ("--set", "split.by=hash", "--set", "split.fractions={train: 0.8, test: 0.2}")


def draw(shape: str, seed: int) -> Image.Image:
    """Returns an image, 64 to 128 pixels a side, with one shape in random colors on a random background."""
    rng = random.Random(f"{shape} {seed}")
    width, height = rng.randint(64, 128), rng.randint(64, 128)
    image = Image.new("RGB", (width, height), tuple(rng.randint(0, 120) for _ in range(3)))
    color = tuple(rng.randint(130, 255) for _ in range(3))
    radius = rng.randint(15, 30)
    x, y = rng.randint(radius, width - radius), rng.randint(radius, height - radius)
    canvas = ImageDraw.Draw(image)
    if shape == "circle":
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=color)
    elif shape == "square":
        canvas.rectangle((x - radius, y - radius, x + radius, y + radius), fill=color)
    else:
        canvas.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=color)
    return image


def make_images(folder: pathlib.Path) -> None:
    """Writes shape/number.jpg (some PNG), and bad files of the kinds that real sets contain."""
    for shape in SHAPES:
        (folder / shape).mkdir(parents=True)
        for number in range(PER_SHAPE):
            extension = "png" if number % 10 == 0 else "jpg"
            draw(shape, number).save(folder / shape / f"{number:03d}.{extension}")
    whole = io.BytesIO()
    draw("circle", PER_SHAPE).save(whole, "JPEG")
    (folder / "circle" / "cut short.jpg").write_bytes(whole.getvalue()[:-200])
    (folder / "square" / "empty.jpg").write_bytes(b"")
    (folder / "triangle" / "page.jpg").write_bytes(b"<html>404 Not Found</html>")
    (folder / "square" / "notes.txt").write_text("not an image, skipped")


def run(*command: str) -> None:
    """Runs a command of the command line and shows it."""
    print(f"\n$ imagebeam {shlex.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", "imagebeam.pipelines.cli", *command], cwd=ROOT, check=True)


def read_batches(dataset: pathlib.Path) -> None:
    """Reads one epoch as a trainer would, every image once."""
    images = 0
    with terminal.hush_libraries():  # TensorFlow logs that there is no GPU
        for batch in imagebeam.open_dataset(str(dataset)).as_numpy("train", 32, image_size=64, num_epochs=1, pad=True):
            images, shape, last = images + batch["mask"].sum(), batch["image"].shape, batch["label"][:8].tolist()
    print(f"\nread {images} images in batches of {shape}; the labels of the last begin with {last}")


def main() -> None:
    """Runs the demo in build/demo."""
    argparse.ArgumentParser(description="Converts, verifies and reads a small image set in build/demo.").parse_args()
    shutil.rmtree(WORK, ignore_errors=True)
    images, dataset = WORK / "images", WORK / "shapes"
    make_images(images)
    print(f"made {len(SHAPES) * PER_SHAPE} images and three bad files in {images.relative_to(ROOT)}")
    relative = str(dataset.relative_to(ROOT))
    run("convert", "--config", "image_folder", "--input", str(images.relative_to(ROOT)), "--output", relative, *SPLIT)
    run("verify", relative, "--decode")
    print(f"\n$ cat {relative}/rejects.jsonl")
    print((dataset / "rejects.jsonl").read_text(), end="")
    read_batches(dataset)
    print(f"\nthe dataset is in {relative}; look into it with: .venv/bin/imagebeam inspect {relative} -n 3")


if __name__ == "__main__":
    main()
