"""What a worker does: `run_task` runs stages of points, each as a claimed attempt.

A stage is a function `run(ctx: StageContext) -> dict` in a module of its own
(calibrate, schedule, train, evaluate), imported only in a worker. It returns
`metrics`, `time` and whatever else belongs into the point's result.json.
"""

from sparrow_lab.stages.context import Interrupted, StageContext
from sparrow_lab.stages.worker import STAGES, run_task

__all__ = ["STAGES", "Interrupted", "StageContext", "run_task"]
