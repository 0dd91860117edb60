"""Tasks: where prompts come from and how answers are judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparrow_lab.tasks.base import SPLITS, Prompt, Split, Task, Verdict

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sparrow_lab.config.schema import TaskConfig

__all__ = ["SPLITS", "Prompt", "Split", "Task", "Verdict", "make_task"]


def make_task(config: TaskConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> Task:
    """Build the task that a configuration names.

    Args:
        config: the `task` section.
        tokenizer: of the model; text tasks need it, the built-in symbol tasks do not.
    """
    match config.name:
        case "pointer_chase":
            from sparrow_lab.tasks.pointer_chase import PointerChase

            return PointerChase(config)
        case "permutation_walk":
            from sparrow_lab.tasks.permutation_walk import PermutationWalk

            return PermutationWalk(config)
        case "reasoning_gym":
            from sparrow_lab.tasks.reasoning_gym import ReasoningGymTask

            return ReasoningGymTask(config, tokenizer)
        case "jsonl":
            from sparrow_lab.tasks.jsonl import JsonlTask

            return JsonlTask(config, tokenizer)
