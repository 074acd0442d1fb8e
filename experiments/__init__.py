"""Studies, one a file; `python -m experiments experiment=NAME` runs one."""
