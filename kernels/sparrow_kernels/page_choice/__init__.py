"""Page choice: score landmarks against the query and keep the best pages within a budget."""

from sparrow_kernels.page_choice.cpu import best_evenly, score_evenly
from sparrow_kernels.page_choice.naive import choose_pages, page_scores

__all__ = ["best_evenly", "choose_pages", "page_scores", "score_evenly"]
