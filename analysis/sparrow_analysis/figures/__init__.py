"""Figures from frames: each function returns a matplotlib figure and keeps no state."""
