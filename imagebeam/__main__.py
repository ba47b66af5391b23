"""Runs the command line: `python -m imagebeam` is `imagebeam`."""

from imagebeam.pipelines import entry_point

if __name__ == "__main__":
    entry_point.run()
