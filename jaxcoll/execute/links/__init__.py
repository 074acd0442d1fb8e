"""Links: a schedule as one call in which every link carries its messages as soon as they exist.

Between processes on CPUs XLA runs one permute after the other, and a pair of gloo sends in one
direction at a time. Here the same schedule is a call of ``player.cc``, whose links work
independently. In reading order: ``program`` (a rank's part of a schedule as numbers), ``player.cc``
(which plays it), ``engine`` (its library, addresses of processes, and the change of a program
before it is compiled), ``build`` (the compiler). On NVIDIA GPUs a schedule is played over queues of
NCCL: ``instructions`` (the instructions of a rank's host, and their time), ``queues`` (from a
schedule to instructions), ``gpu_player.cc``. The lowering that writes the calls is
``jaxcoll.execute.lowerings.links``.
"""
