"""Rollout: generation with a paged cache, sparse or dense, and what it hands to training."""
