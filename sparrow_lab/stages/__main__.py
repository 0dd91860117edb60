"""`python -m sparrow_lab.stages '{"sweep": ..., "points": [...], ...}'`: a worker process.

The one argument is JSON with the arguments of `run_task`. Exit code 0 when it ended as meant,
also when it was interrupted; 1 after a failure, which is in the attempt.
"""

from __future__ import annotations

import json
import sys
import traceback
from typing import Any

from sparrow_lab.stages.worker import run_task


def main(text: str) -> int:
    """Run the points; the traceback of what failed is in the attempt's log as well."""
    task: dict[str, Any] = json.loads(text)
    try:
        run_task(
            task["sweep"], task["points"], task.get("stages"), task["token"], task["on_cluster"]
        )
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
