"""Choosing points: random draws at once; optuna and bracket by the results so far.

The way of a search: `controller` reads the trials from the ledger (`trials`), tells what has
ended (`outcome`), asks the method for more (`ask_optuna`, `bracket`), writes its proposals to
the ledger and only then adds their points to the plan. A launcher runs what is planned and
knows nothing of the method. Nothing but the ledger is remembered, so a search may be killed at
any instant. No torch; Optuna is imported when it is asked.
"""
