"""Which MLflow store a runs folder is imported into.

Without a URI it is SQLite beside the sweeps, `runs/mlflow.db`, with artifacts under
`runs/mlartifacts`; on a network file system both move to a local folder, which is said.
MLflow's file store (`file:` or a bare folder) is refused: MLflow 3 no longer writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import read_notes
from sparrow_lab.tracking.filesystem import local_folder, network_kind

DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
SERVERS = ("http", "https", "databricks")


@dataclass(frozen=True)
class Store:
    """Where MLflow's records go.

    `database` is the SQLite file, None for any other store. `artifacts` is where artifacts
    of a new experiment go, None when a server decides. `lock` is the importers' lock file.
    """

    uri: str
    database: Path | None
    artifacts: Path | None
    lock: Path
    own: bool
    """True for the default store, which holds nothing but what this program wrote."""
    notices: tuple[str, ...] = ()

    @property
    def is_server(self) -> bool:
        """Whether a running server, not a database file, is written to."""
        return self.uri.split(":", 1)[0] in SERVERS


def resolve(root: Path, uri: str | None = None) -> Store:
    """The store of the runs folder `root`. Raises UserError for a URI that is not supported."""
    root = root.absolute()
    if uri is None:
        return _beside(root)
    scheme = _scheme(uri)
    if scheme == "sqlite":
        return _sqlite(root, uri)
    artifacts = root / "mlartifacts" if scheme in DATABASES else None
    return Store(uri, None, artifacts, root / "mlflow.lock", own=False)


def of_sweep(sweep: SweepFolder, uri: str | None = None) -> Store:
    """The store of a sweep: `uri`, else the one its file names, else the default."""
    return resolve(sweep.path.absolute().parent, uri or settings(sweep)[0])


def settings(sweep: SweepFolder) -> tuple[str | None, str]:
    """(tracking URI or None, experiment name): as last run, else from the sweep's own file.

    A file that cannot be read any more (an include has gone) counts as one without a
    `tracking` section.
    """
    from sparrow_lab.config.load import load_sweep

    noted = (read_notes(Ledger(sweep.ledger_path).read()).opened.get("notes") or {}).get("tracking")
    if isinstance(noted, dict):
        return noted.get("uri"), noted.get("experiment") or sweep.name
    try:
        tracking = load_sweep(sweep.source_path).tracking
    except (UserError, OSError):
        return None, sweep.name
    return tracking.uri, tracking.experiment or sweep.name


def _beside(root: Path) -> Store:
    kind = network_kind(root)
    folder, notices = root, []
    if kind is not None:
        folder = local_folder(root)
        notices.append(
            f"{root} is on a network file system ({kind}), where SQLite is not safe: "
            f"MLflow's database is {folder / 'mlflow.db'} on this machine"
        )
    database, artifacts = folder / "mlflow.db", folder / "mlartifacts"
    if not database.exists() and artifacts.is_dir() and any(artifacts.iterdir()):
        notices.append(
            f"{artifacts} holds artifacts of a database that is gone; new ones go there too: to be "
            "rid of the old, delete the folder now or with the new database, and sync again"
        )
    return Store(
        f"sqlite:///{database}",
        database,
        artifacts,
        folder / "mlflow.db.lock",
        own=True,
        notices=tuple(notices),
    )


def _sqlite(root: Path, uri: str) -> Store:
    text = uri.removeprefix("sqlite:///")
    if text == uri or not text or text.startswith(":memory:"):
        raise UserError(f"'{uri}' names no file; write sqlite:///PATH", "--uri")
    database = Path(text).absolute()
    kind = network_kind(database.parent)
    notices = (
        (f"{database} is on a network file system ({kind}), where SQLite may lose its locks",)
        if kind
        else ()
    )
    lock = database.with_name(database.name + ".lock")
    artifacts = database.parent / "mlartifacts"
    own = database == root / "mlflow.db"
    return Store(f"sqlite:///{database}", database, artifacts, lock, own, notices)


def _scheme(uri: str) -> str:
    match = re.match(r"([a-z][a-z0-9]*)(\+[a-z0-9]+)?(:|$)", uri)
    scheme = match.group(1) if match else ""
    if scheme in (*DATABASES, *SERVERS):
        return scheme
    if scheme == "file" or "://" not in uri:
        raise UserError(
            f"'{uri}' would be MLflow's file store, which MLflow 3 no longer writes; "
            "use sqlite:///PATH, or http://HOST:PORT of a server",
            "--uri",
        )
    allowed = ", ".join(f"{name}:" for name in (*DATABASES, *SERVERS))
    raise UserError(f"'{uri}' is no MLflow store; allowed: {allowed}", "--uri")
