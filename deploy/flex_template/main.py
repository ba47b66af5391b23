"""The program that a Flex Template's launcher runs: `imagebeam convert` with the parameters of the template.

It is outside of pipelines/, whose modules would otherwise hide those of the standard library: Python puts the folder of
a script in front of all others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from imagebeam import errors
from imagebeam.pipelines import cli

_FLAGS = ("overwrite", "update", "fail_on_drift")  # options without a value; a parameter of a template always has one
_SETTINGS = "set"  # several settings in one text
_AS_JSON = 'give all settings as a JSON list, such as ["source.by=manifest", "source.manifest.delimiter=;"]'


def arguments_of(parameters: Sequence[str]) -> list[str]:
    """Returns the arguments of `imagebeam` for the parameters of a template, `--name=value` each.

    Raises:
        ConfigError: if a parameter's value does not have the form that metadata.json describes.
    """
    arguments = ["convert", "--no-wait"]
    for parameter in parameters:
        name, _, value = parameter.removeprefix("--").partition("=")
        if name in _FLAGS:
            arguments += [f"--{name.replace('_', '-')}"] * _is_true(name, value)
        elif name == _SETTINGS:
            for setting in settings_of(value):
                arguments += ["--set", setting]
        else:
            arguments.append(parameter)
    return arguments


def _is_true(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise errors.ConfigError("parameter-not-boolean", f"parameter {name} is {value!r}, expected true or false")
    return value.strip().lower() == "true"


def settings_of(text: str) -> list[str]:
    """Returns the settings `key=value` in the text of the parameter `set`.

    A text that begins with `[` is a JSON list of settings, which may hold any character. In any other text every
    semicolon separates two settings. Each of them needs a key and a value: most semicolons that belong to a value leave
    a part without one, and the config refuses the key of the others.

    Raises:
        ConfigError: if the text has neither form.
    """
    if text.lstrip().startswith("["):
        return _settings_in_json(text)
    parts = [part.strip() for part in text.split(";")]
    if len(parts) == 1:
        return [part for part in parts if part]
    if not parts[-1]:  # a semicolon at the end
        parts.pop()
    for part in parts:
        key, _, value = part.partition("=")
        if not key.strip() or not value.strip():
            raise errors.ConfigError(
                "parameter-not-settings",
                f"parameter {_SETTINGS} is {text!r}: between its semicolons is {part!r}, expected key=value with a "
                f"value (null for none); if the semicolon belongs to a value, {_AS_JSON}",
            )
    return parts


def _settings_in_json(text: str) -> list[str]:
    try:
        settings = json.loads(text)
    except ValueError as e:
        problem = f"parameter {_SETTINGS} is {text!r}, which is not JSON: {e}; {_AS_JSON}"
        raise errors.ConfigError("parameter-not-settings", problem) from e
    for setting in settings:
        if not isinstance(setting, str):
            problem = f"parameter {_SETTINGS} holds {setting!r}, expected a text key=value; {_AS_JSON}"
            raise errors.ConfigError("parameter-not-settings", problem)
    return list(settings)


def main(parameters: Sequence[str]) -> int:
    """Runs `imagebeam convert` and returns its exit code."""
    try:
        arguments = arguments_of(parameters)
    except errors.ConfigError as e:
        print(f"imagebeam: {e}", file=sys.stderr)
        return e.exit_code
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
