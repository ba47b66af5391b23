"""Chooses the preset of a `plan` command that names none, and says why."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from imagebeam import errors, plural
from imagebeam.pipelines.recognize import recognize_folder
from imagebeam.transforms.sources import files
from imagebeam.transforms.sources.folder_probe import Finding

_OWN_SECTIONS = ("source", "label")  # settings of these say how the input is to be read


class Choice(NamedTuple):
    """What a command prints before the plan and after it."""

    rows: tuple[tuple[str, str], ...] = ()
    next: tuple[str, ...] = ()  # commands
    error: str = ""  # if nothing fits beyond doubt: there is no plan


def choose(known: argparse.Namespace) -> Choice:
    """Sets the config and the settings of a command that names no config, if one preset fits beyond doubt.

    A command with a config, with settings of `source` or `label`, or for a snapshot is left as it is.
    """
    sections = {each.partition("=")[0].partition(".")[0].strip() for each in known.set}
    if known.config is not None or known.update or not known.input or sections.intersection(_OWN_SECTIONS):
        return Choice()
    try:
        if files.split_glob(known.input)[1] != files.EVERYTHING:
            return Choice()
        found = recognize_folder.recognize(known.input, known.output or "")
    except (OSError, errors.ConfigError):  # the listing says so
        return Choice()
    chosen = found.sure
    if chosen is None:
        return _list(found)
    own = known.set
    known.config, known.input = chosen.preset, found.address(chosen)
    known.set = [*recognize_folder.overrides_of(chosen), *own]
    words = ["imagebeam", "convert", *recognize_folder.words_of(found, chosen)]
    for each in own:
        words += ["--set", each]
    commands = [plural.shell_command([*words, "--output", known.output or "OUTPUT"])]
    if chosen.settings:
        commands.append(f"{plural.shell_command(['imagebeam', 'init', found.given])} writes these settings as a config")
    return Choice(tuple(describe(found, chosen)), tuple(commands))


_UNKNOWN = (
    "name one with --config (docs/recipes has a page for each kind of source); --config image_folder takes each folder "
    "directly in it as a class"
)


def describe(found: recognize_folder.Recognition, chosen: Finding) -> list[tuple[str, str]]:
    """Returns rows on a candidate: the preset and why, what was guessed, and which others are possible."""
    where = f" in {found.address(chosen)}" if chosen.input else ""
    rows = [("recognized" if found.sure is chosen else "possible", f"{chosen.preset}{where}: {chosen.evidence}")]
    rows += [("settings", each) for each in recognize_folder.overrides_of(chosen)]
    rows += [("note", each) for each in (*chosen.notes, *chosen.doubts, *found.remarks)]
    others = [each for each in found.candidates if each is not chosen]
    for each in others:
        where = f" in {found.address(each)}" if each.input != chosen.input else ""
        rows.append(("also possible", f"{each.preset}{where}: {each.evidence}"))
    return rows


def _list(found: recognize_folder.Recognition) -> Choice:
    """Returns the choice for a folder that no preset fits beyond doubt: lists what it may be."""
    rows = []
    for each in found.candidates:
        rows.append(("possible", f"{each.preset}: {each.evidence}"))
        rows += [("  note", note) for note in (*each.doubts, *each.notes)]
        rows.append(("  options", recognize_folder.options_of(found, each)))
    rows += [("note", each) for each in found.remarks]
    if not found.candidates:
        return Choice(tuple(rows), error=f"no preset recognizes {found.given!r} ({found.seen}): {_UNKNOWN}")
    names = " or ".join(dict.fromkeys(each.preset for each in found.candidates))
    init = plural.shell_command(["imagebeam", "init", found.given])
    error = f"{found.given!r} may be {names}, but not beyond doubt: see the notes, give the options of one, or "
    return Choice(tuple(rows), error=f"{error}write a config with {init}")
