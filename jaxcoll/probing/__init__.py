"""A network that measures itself: links, ports and uplinks from times of flows between processes.

- ``meter``: the questions that can be asked about a network;
- ``inference``: links from the answers;
- ``findings``: a network of these links, with its kinds of links and those that differ;
- ``agents``: measurements over sockets, with an agent in each process.
"""
