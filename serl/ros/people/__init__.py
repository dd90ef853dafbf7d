"""People beside a run over topics and services: teleoperation, stops, recording, prompts."""
