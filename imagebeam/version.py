"""The version of imagebeam. `setup.py` reads it from here as text."""

__version__ = "0.1.0"


def advise_update(writer: object) -> str:
    """Returns what to do about a file or a state that a later version wrote.

    Args:
        writer: the version that it names; anything else if it names none.
    """
    if not isinstance(writer, str) or not writer:
        return f"this is imagebeam {__version__}: update it"
    return f"imagebeam {writer} wrote it, and this is {__version__}: install imagebeam>={writer}"
