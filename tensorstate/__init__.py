"""The tensor-state search, to be built on jaxcoll."""
