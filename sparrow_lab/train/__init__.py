"""Training: GRPO on sparse rollouts, dense recompute, detectors, checkpoints."""
