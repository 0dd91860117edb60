"""A pretended Slurm: its programs over a folder, for tests and for `bench sweep`.

The programs (`sbatch`, `squeue`, `sacct`, `scancel`, `scontrol`, `sinfo`, `srun`) are put on
the PATH; a controller runs the jobs as processes of this machine. Without a controller jobs
only wait, or are set to a state by hand, which is quick for thousands of them. On top it does
what a real cluster cannot be made to do at will: refuse, forget, be slow, die at a bad moment.

It is part of the package, and not of the tests, because `bench sweep` is a command for users
and has to work where the tests are not installed. Only the standard library is used: each
program starts in some 30 ms. What it does was copied from Slurm 22.05 by watching that.
"""

from sparrow_lab.fake_slurm.handle import FakeSlurm

__all__ = ["FakeSlurm"]
