"""TACOS: steps and seconds, times on unequal links (``_quality``), size (``_scale``)."""
