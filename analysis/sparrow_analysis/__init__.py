"""Analysis of sparrow-lab run folders: curves, thresholds, cost, Pareto fronts, reports."""
