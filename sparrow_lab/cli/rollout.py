"""`sparrow-lab rollout`: samples of one model for a file of prompts, sparse or dense."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparrow_lab.errors import UserError

if TYPE_CHECKING:
    from sparrow_lab.sparsity.schedule import Schedule

DTYPES = ("float32", "bfloat16", "float64")


def command(
    model: Annotated[str, typer.Option(help="Built-in name, local folder or hub id.")],
    prompts: Annotated[Path, typer.Option(help="JSON Lines: prompt, messages or tokens.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file of the samples.")],
    schedule: Annotated[
        str, typer.Option(help="A schedule.json, one of the paper's tables, or dense.")
    ] = "dense",
    samples: Annotated[int, typer.Option(min=1, help="Samples a prompt.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1)] = 0,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Cap of a sample.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 keeps the whole vocabulary.")] = 0,
    min_p: Annotated[float, typer.Option(min=0, max=1)] = 0.0,
    stop: Annotated[
        bool, typer.Option("--stop/--no-stop", help="End at the model's end tokens, or at the cap.")
    ] = True,
    plain: Annotated[bool, typer.Option("--plain", help="Text without the chat template.")] = False,
    max_batch: Annotated[int, typer.Option(min=1, help="Sequences decoded at once.")] = 256,
    memory: Annotated[
        str | None, typer.Option(help="Of the KV cache: 8GB, or the share of a GPU, 0.85.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: a GPU if any.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32 (default on a CPU), bfloat16 (on a GPU), float64.")
    ] = None,
    warm_start: Annotated[int, typer.Option(min=0, help="Of a built-in tiny model.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="A schedule measured on another model is right.")
    ] = False,
) -> None:
    """Generate samples and write them with their log-probabilities.

    Started again after an interruption, it keeps the samples that have ended. Under torchrun or
    srun each process takes its share of the prompts.
    """
    import signal
    import sys

    from rich.console import Console

    from sparrow_lab.rollout.files.prompts import read_lines, tokenize
    from sparrow_lab.rollout.paged.memory import parse_memory

    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"'{dtype}' is unknown; allowed: {', '.join(DTYPES)}", "--dtype")
    if top_p == 0:
        raise UserError("must be above 0", "--top-p")
    room = None if memory is None else parse_memory(memory)
    chosen = _schedule(schedule, model, any_model)
    lines = read_lines(prompts)

    import torch

    from sparrow_lab.config.content import folder_fingerprint
    from sparrow_lab.config.schema import ModelConfig, RolloutConfig
    from sparrow_lab.models.load import load_model
    from sparrow_lab.models.shape import find_folder
    from sparrow_lab.models.tiny import TINY
    from sparrow_lab.rollout.files.parts import Parts
    from sparrow_lab.rollout.files.windows import generate_missing
    from sparrow_lab.rollout.files.writer import Writer
    from sparrow_lab.rollout.paged.engine import PagedEngine
    from sparrow_lab.rollout.shares import rank_and_world, share_out
    from sparrow_lab.tasks.text import stop_tokens

    rank, world, local = rank_and_world()
    if threads is not None:
        torch.set_num_threads(threads)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if place == "cuda" and world > 1:
        place = f"cuda:{local}"
    kind = dtype or ("float32" if place == "cpu" else "bfloat16")
    config = ModelConfig.model_validate({"name": model, "warm_start": warm_start, "dtype": kind})
    rollout = RolloutConfig(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    loaded, tokenizer = load_model(config, place)
    tokens = tokenize(lines, tokenizer, plain)
    stops = stop_tokens(tokenizer) if stop else ()
    folder = None if model in TINY else find_folder(model)
    settings: dict[str, Any] = {
        "model": model,
        "weights": None if folder is None else folder_fingerprint(folder),
        "warm_start": warm_start,
        "dtype": kind,
        "prompts": _digest(tokens),
        "schedule": chosen.digest,
        "samples": samples,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "stop_tokens": list(stops),
        **rollout.model_dump(exclude={"max_batch"}),
    }
    console = Console(stderr=True)
    parts = Parts(out, settings)
    if parts.whole:
        console.print(f"{out} is whole already: nothing to do", soft_wrap=True)
        return
    done = parts.done()
    share = share_out([len(p) for p in tokens], samples, max_new_tokens, world)[rank]
    only = share[[divmod(int(s), samples) not in done for s in share]]
    if done:
        console.print(f"kept {len(share) - len(only)} of {len(share)} samples")
    engine = PagedEngine(loaded, chosen, max_batch, memory=room)
    if len(only):
        with console.status("generating") if console.is_terminal else nullcontext() as status:
            say = console.print if status is None else status.update
            writer = Writer(parts, samples, tokenizer, stops, len(only), say, status is not None)
            # a scheduler that wants the node back: what has ended is written on the way out
            before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            try:
                generate_missing(
                    engine,
                    tokens,
                    samples,
                    rollout,
                    writer,
                    only,
                    max_new_tokens=max_new_tokens,
                    stop_tokens=stops,
                    seed=seed,
                )
            finally:
                signal.signal(signal.SIGTERM, before)
                writer.flush()
    if parts.finish(len(tokens) * samples):
        console.print(f"wrote {out}", soft_wrap=True)
    else:
        console.print("this process is done; others are not")


def _schedule(name: str, model: str, any_model: bool) -> Schedule:
    """The schedule of a file, a preset or `dense`, if it is for this model."""
    from sparrow_lab.sparsity.presets import load_preset, preset_names
    from sparrow_lab.sparsity.schedule import Schedule

    if name == "dense":
        return Schedule.dense()
    found = load_preset(name) if name in preset_names() else Schedule.load(Path(name))
    found.check_fits(found.page_size, model, any_model=any_model)
    return found


def _digest(prompts: list[tuple[int, ...]]) -> str:
    """A hash of all prompts' token ids."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:32]
