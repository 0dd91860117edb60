"""Acceptance: how much of the dense distribution the sparse actor keeps, counted by length."""
