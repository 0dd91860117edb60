"""The accounting database, and the cluster, account and QOS that tests may name in it."""

from __future__ import annotations

import shutil
import subprocess

from .daemons import ClusterError, Daemon, answers, start, wait_for
from .settings import Settings, secret

NO_SYNC = ("--innodb-flush-method=nosync", "--innodb-doublewrite=0")
SMALL = ("--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M")


def create_database(settings: Settings) -> None:
    """Make the data folder of the database server, once; an unfinished one is begun again."""
    data = settings.state / "sql"
    if (data / ".made").exists():
        return
    shutil.rmtree(data, ignore_errors=True)
    command = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}"]
    command += ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root"]
    made = subprocess.run(
        [*command, "--skip-test-db", *NO_SYNC, *SMALL], capture_output=True, text=True
    )
    if made.returncode:
        raise ClusterError(f"mariadb-install-db failed\n{made.stdout}\n{made.stderr}")
    (data / ".made").touch()


def start_database(settings: Settings, own_names: bool) -> None:
    """Start the server and give Slurm its user there."""
    socket = settings.run / "sql.socket"
    command = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={settings.state / 'sql'}"]
    command += [f"--socket={socket}", f"--pid-file={settings.run / 'sql.own.pid'}"]
    command += ["--bind-address=127.0.0.1", f"--port={settings.sql_port}"]
    command += [f"--tmpdir={settings.state / 'tmp'}", "--innodb-flush-log-at-trx-commit=0"]
    command += ["--innodb-lock-wait-timeout=900", *NO_SYNC, *SMALL]
    command += ["--skip-performance-schema", "--skip-log-bin", "--skip-name-resolve"]
    start(settings, Daemon("mariadbd", tuple(command)), own_names)
    client = ["mariadb", "--no-defaults", f"--socket={socket}", "-u", "root", "-e"]
    wait_for(
        settings, "mariadbd", "the database does not answer", 60,
        lambda: answers(*client, "select 1"),
    )  # fmt: skip
    password = secret(settings.state / "sql.pass", 24)
    user = f"slurm@'127.0.0.1' identified by '{password}'"
    sql = f"create database if not exists slurm_acct_db; create user if not exists {user};"
    sql += f"alter user {user}; grant all on slurm_acct_db.* to slurm@'127.0.0.1';"
    if not answers(*client, sql):
        raise ClusterError("could not make Slurm's user in the database")


def start_slurmdbd(settings: Settings, own_names: bool) -> None:
    """Start slurmdbd (it finds its file beside $SLURM_CONF) and enter what tests may name."""
    start(settings, Daemon("slurmdbd", ("slurmdbd", "-D")), own_names)
    wait_for(
        settings, "slurmdbd", "slurmdbd does not answer", 60,
        lambda: answers("sacctmgr", "-n", "-P", "list", "cluster"),
    )  # fmt: skip
    _enter("cluster", "cluster=sparrowtest", "cluster", "sparrowtest")
    _enter("account", "name=test", "account", "test", "Description=test", "Organization=test")
    _enter("qos", "name=urgent", "qos", "urgent", "Priority=100")
    qos = ("qos=normal,urgent", "defaultqos=normal")
    # root's own association, with the account root, comes with the database
    _enter("assoc", "user=root account=test", "user", "root", "account=test", *qos)
    _run("modify", "user", "root", "set", "qos=normal,urgent")


def _enter(kind: str, query: str, *entry: str) -> None:
    """Add an entry to the accounting unless it is there."""
    if not _run("-n", "-P", "list", kind, *query.split()).strip():
        _run("add", *entry)


def _run(*words: str) -> str:
    run = subprocess.run(["sacctmgr", "-i", *words], capture_output=True, text=True)
    # sacctmgr ends with 1 when a change would change nothing
    if run.returncode and "Nothing" not in run.stdout + run.stderr:
        raise ClusterError(f"sacctmgr {' '.join(words)} failed\n{run.stdout}{run.stderr}")
    return run.stdout
