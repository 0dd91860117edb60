"""Experiment files: the schema, YAML with places, overrides, axes. No torch.

`load.load_sweep` reads a file; everything that is wrong with it is one `UserError`.
"""
