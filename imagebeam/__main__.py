"""Runs the command line: `python -m imagebeam` is `imagebeam`."""

import sys

from imagebeam.pipelines import cli

if __name__ == "__main__":
    sys.exit(cli.main())
