"""Human interfaces of a run by topics and services: teleoperation, stops, recording, prompts."""
