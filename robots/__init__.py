"""Arms, one a file."""
