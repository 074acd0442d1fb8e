"""Parts from which several synthesizers build schedules.

- ``base``: the problem, checked once, and the class of all synthesizers;
- ``derive``: reduce_scatter and all_reduce from an all_gather;
- ``helpers``: schedules in which ranks outside a group forward for it;
- ``sends``: all-gathers along one dimension as moves, moves as columns of sends, and sends of
  topology-oblivious algorithms carried over shortest routes;
- ``grids``: the grid of a network, and the pattern that suits each of its dimensions;
- ``circles``: circles over links, hosts of consecutive ranks, and circles through hosts;
- ``switch_unwinding``: switches replaced by links between ranks (TACOS, Section IV-G);
- ``list_scheduling``: an order of sends by the times at which links serve them.
"""
