"""Studies, one per file; `python -m experiments experiment=NAME` runs one."""
