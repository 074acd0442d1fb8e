"""jaxcoll: topology-aware collectives for JAX, from a network to a schedule to ``ppermute``."""
