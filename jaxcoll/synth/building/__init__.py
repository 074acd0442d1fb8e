"""What several synthesizers build schedules from.

- ``base``: the problem, checked once, and the one method of a synthesizer that solves it;
- ``derive``: reduce_scatter and all_reduce from an all_gather;
- ``helpers``: ranks outside a group that forward for it;
- ``sends``: all-gathers along one dimension as moves, moves as columns of sends, and sends of
  topology-oblivious algorithms carried over shortest routes;
- ``grids``: the grid of a network, and what each of its dimensions can do;
- ``circles``: circles over links, hosts of consecutive ranks, and circles through these;
- ``switch_unwinding``: switches replaced by links between ranks (TACOS, Section IV-G);
- ``list_scheduling``: sends in the order in which links serve them.
"""
