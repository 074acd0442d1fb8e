"""Machines that are not here: ``targets`` starts one process of ``compiled`` per target."""
