"""Files of the synthesizers of the literature, each by the tool that reads it.

- ``sccl``: networks and schedules of SCCL, msccl-tools and TACCL, in JSON; networks of TACCL;
- ``teccl``: networks of TE-CCL by name, and its schedules, in JSON;
- ``forestcoll``: ForestColl's trees, in XML.
"""
