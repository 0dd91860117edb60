"""The cluster side of a sweep: submission by arrays, the queue, and what a job's element does.

`submit` is what the command line and a controller call; `element` is what Slurm starts.
Plan, ids, ledger, states and the stages are those of a sweep on one machine.
"""
