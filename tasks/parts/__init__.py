"""Scene parts and settings that several tasks share; no task imports another one."""
