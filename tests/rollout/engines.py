"""The engines that promise the same: contiguous rows in plain torch, and pages."""

from __future__ import annotations

import pytest

from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.paged.engine import PagedEngine

Make = type[RolloutEngine] | type[PagedEngine]

both_engines = pytest.mark.parametrize("make", [RolloutEngine, PagedEngine], ids=["rows", "pages"])
