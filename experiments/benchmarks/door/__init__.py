"""First use: megabytes and seconds until an answer."""
