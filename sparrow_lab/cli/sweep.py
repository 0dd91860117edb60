"""`sparrow-lab sweep FILE`: plan an experiment file, show it, run what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    file: Annotated[Path, typer.Argument(help="The experiment file (YAML).", show_default=False)],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="a.b=c", help="Change a value of the file; repeatable."),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Workers at once; the default fits the cores."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run; write nothing.")
    ] = False,
    only: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="The first N train points and what they need."),
    ] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Run on this machine (the default).")
    ] = False,
    site: Annotated[
        Path | None,
        typer.Option("--site", help="Submit to the cluster of this site file (YAML), and return."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="With --site: follow until all has ended.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Cancel points that are no longer in the file.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write the report when all is done.")
    ] = True,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of all sweeps; default $SPARROW_RUNS or ./runs."),
    ] = None,
) -> int:
    """Plan FILE, show it, and run what is missing; the same command goes on after any stop.

    Exit code 0 when everything is done (with --site: submitted), 1 when points failed, 2 for a
    mistake in the file or the command, or when the cluster refuses, 130 after Ctrl-C.
    """
    from rich.console import Console

    from sparrow_lab.config.load import load_sweep
    from sparrow_lab.errors import UserError
    from sparrow_lab.runs.layout import SweepFolder, runs_root
    from sparrow_lab.sweep import queue, run
    from sparrow_lab.sweep.options import Options
    from sparrow_lab.sweep.plan import make_plan
    from sparrow_lab.sweep.search.controller import open_search
    from sparrow_lab.sweep.tracker import Tracker

    config = load_sweep(file, set_ or [])
    sweep = SweepFolder(runs_root(runs) / config.name)
    search = open_search(config, sweep, file.resolve().parent)
    if search is None:
        plan = make_plan(config, file.resolve().parent)
    else:
        search.refuse_only(only)
        plan = search.plan_ahead(upcoming=dry_run)
    console = Console()
    cluster = None
    if site is not None:
        from sparrow_lab.sweep.slurm.cluster import make_cluster

        root = config._source.root
        place = root.where_of(("launch", "max_gpu_hours")) if root is not None else None
        cluster = make_cluster(site, watch, config.launch, place, local)
    elif watch:
        raise UserError("goes with --site; a sweep on this machine is followed anyway", "--watch")
    if dry_run:
        every = [p.id for p in plan.points]
        chosen = every if only is None else list(queue.first_points(plan.points, only))
        run.dry_run(console, sweep, plan, chosen, cluster, search, prune)
        return 0
    options = Options(
        parallel=parallel or config.launch.parallel,
        retries=config.launch.retries,
        timeout_min=config.launch.timeout_min,
        grace_s=config.launch.grace_s,
        notes={
            "tracking": config.tracking.model_dump(mode="json"),
            "set": set_ or [],
            **({"site": cluster.to_json()} if cluster is not None else {}),
        },
    )
    tracker = Tracker(sweep, config.tracking.uri) if config.tracking.enabled else None
    source = run.source_of(file)
    code = run.run_sweep(
        sweep,
        plan,
        source,
        options,
        console,
        tracker,
        first=only,
        cluster=cluster,
        prune=prune,
        search=search,
    )
    ended = cluster is None or watch or run.all_done(sweep)
    if code == 0 and only is None and report and ended:
        from sparrow_lab.sweep.answer import answer

        for line in answer(sweep):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return code
