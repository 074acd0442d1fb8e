"""ForestColl: seconds by stage, on the paper's clusters and on degraded networks."""
