"""The run folder: the only code that reads or writes `runs/<sweep>/`. No torch, no pandas.

`layout` says where things lie, `plan` what was planned, `events` and `histograms`
hold what a stage measured, `atomic` writes so that a reader never sees half a file.
"""
