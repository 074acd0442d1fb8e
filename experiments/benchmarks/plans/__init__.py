"""Plans: their ways out of the library."""
