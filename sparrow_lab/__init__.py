"""sparrow-lab: threshold searches for sparse-rollout reinforcement learning."""
