"""Files of synthesizers from the literature, by the tool that reads them.

- ``sccl``: networks and schedules of SCCL, msccl-tools and TACCL, in JSON; networks of TACCL;
- ``teccl``: networks of TE-CCL by name, and its schedules, in JSON;
- ``forestcoll``: ForestColl's trees, in XML.
"""
