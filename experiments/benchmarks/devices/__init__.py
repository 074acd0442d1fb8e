"""Defaults and costs on CPU devices, each number of devices in a process of its own."""
