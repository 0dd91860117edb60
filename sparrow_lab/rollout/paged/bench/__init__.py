"""The engine's speed on real shapes with random weights: steps, trajectories, a whole rollout."""
