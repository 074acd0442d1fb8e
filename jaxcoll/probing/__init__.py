"""A network that measures itself: links, ports and uplinks from times of flows between processes.

- ``meter``: the questions that can be asked about a network;
- ``inference``: a network from the answers;
- ``agents``: measurements over sockets, with an agent in each process.
"""
