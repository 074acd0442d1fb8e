"""The dissertation's Tables 3.5, 3.6, A.2 and A.3, a module each."""
