"""Two renderers behind one interface: `ray` (numpy and ray casts) and `gl` (EGL)."""
