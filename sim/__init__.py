"""MuJoCo: the simulated arm, its scenes and cameras."""
