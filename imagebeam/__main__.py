"""Runs the command line: `python -m imagebeam` is `imagebeam`."""

from imagebeam.pipelines import cli

if __name__ == "__main__":
    cli.run()
