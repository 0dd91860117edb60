"""What an import did, for people and for the exit code."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SyncSummary:
    """Counts over one import, or over all passes of a following one."""

    sweep: str
    uri: str
    experiment: str = ""
    tasks: int = 0
    """Tasks of the plan."""
    waiting: int = 0
    """Tasks that have not started: they get a run in MLflow when they do."""
    created: int = 0
    rebuilt: int = 0
    """Runs that held values which a later attempt has replaced, or of an older version."""
    unchanged: int = 0
    values: int = 0
    """Metric values logged."""
    nonfinite: int = 0
    """Values of this import that are nan or infinite: counted in MLflow, kept in the run folder."""
    images: int = 0
    artifacts: int = 0
    seconds: float = 0.0
    ended: bool = False
    """Whether the sweep has nothing left to run."""
    notices: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Tasks whose files could not be read; the others were imported."""
    warning: str | None = None
    """Why nothing, or not everything, reached MLflow; None if all is well."""

    @property
    def ok(self) -> bool:
        """Whether MLflow now holds all there is."""
        return self.warning is None and not self.problems

    @property
    def changed(self) -> bool:
        """Whether anything was written."""
        return bool(self.created or self.rebuilt or self.values or self.images or self.artifacts)

    def add(self, later: SyncSummary) -> None:
        """Take a later pass into account: work adds up, states are the later ones."""
        for name in ("created", "rebuilt", "values", "nonfinite", "images", "artifacts"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name in ("experiment", "tasks", "waiting", "unchanged", "ended", "problems", "warning"):
            setattr(self, name, getattr(later, name))
        self.seconds += later.seconds
        self.notices += [notice for notice in later.notices if notice not in self.notices]

    def line(self) -> str:
        """One line: what was done."""
        done = [
            f"{self.created} new runs",
            f"{self.rebuilt} rebuilt" if self.rebuilt else "",
            f"{self.unchanged} unchanged",
            f"{self.values} values",
            f"{self.nonfinite} of them not finite (counted under nonfinite/)"
            if self.nonfinite
            else "",
            f"{self.images} pictures",
            f"{self.artifacts} files",
            f"{self.waiting} tasks not started" if self.waiting else "",
        ]
        what = ", ".join(part for part in done if part)
        return f"{self.sweep} -> {self.experiment or self.uri}: {what} ({self.seconds:.1f} s)"
