"""What this room is for."""
