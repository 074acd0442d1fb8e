"""Networks in files of graphs: GraphML and GEXF (``graph_files``), and InfraGraph's models."""
