"""What a program of the pretended Slurm says and how it ends."""

from __future__ import annotations

import getopt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """The output, the errors and the exit code of a program."""

    out: str = ""
    err: str = ""
    code: int = 0


class Refused(Exception):
    """A program gives up: the text goes to stderr."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def parse_words(
    program: str, words: Sequence[str], short: Mapping[str, str], valued: str, flags: str
) -> tuple[dict[str, str], list[str]]:
    """Options by their long name, and the words that are none.

    Args:
        program: for the error's text.
        words: the command line.
        short: long name by letter.
        valued: long names of options with a value, in one text.
        flags: those without one; their value is "".

    Raises Refused for an option that is in none of these.
    """
    with_value, without = valued.split(), flags.split()
    letters = "".join(k + (":" if v in with_value else "") for k, v in short.items())
    names = [f"{name}=" for name in with_value] + without
    plain = [w.split("=")[0] if w.startswith("--exclusive=") else w for w in words]
    try:
        found, rest = getopt.gnu_getopt(plain, letters, names)
    except getopt.GetoptError as error:
        option = f"'--{error.opt}'" if len(error.opt) > 1 else f"-- '{error.opt}'"
        text = f"{program}: unrecognized option {option}\n"
        raise Refused(f'{text}Try "{program} --help" for more information\n', 255) from None
    long = {f"-{letter}": name for letter, name in short.items()}
    return {long.get(key, key.lstrip("-")): value for key, value in found}, rest
