"""Profiles of arms, one per module."""
