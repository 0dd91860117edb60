"""Block-sparse attention ops: each op has a naive torch definition beside its kernels."""
