"""Networks of JAX devices: what links a kind of device has, and how devices are wired by them.

- ``kinds``: the table of speeds and wirings, with sources;
- ``wiring``: columns of links from coordinates and host numbers.

Nothing here imports jax: a device is any object with ``device_kind``, ``process_index`` and, on
TPUs, ``coords``.
"""
