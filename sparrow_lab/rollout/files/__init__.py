"""Files of a rollout by command: prompts in, samples out."""
