"""T_L and T_B of all_gathers: by synthesizer (Fig. 3.10), and of Kautz digraphs (Fig. A.7)."""
