"""A network that measures itself: links, ports and uplinks from times of flows between processes.

- ``meter``: the questions that a network is asked;
- ``inference``: a network of the answers;
- ``agents``: measuring over sockets, an agent in each process.
"""
