"""Learning algorithms; the only place where torch is imported."""
