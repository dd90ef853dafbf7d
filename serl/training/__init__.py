"""Actor, learner and replay: the training loop of both processes, without torch and without ROS.

Read in this order: `actor` (episodes, resets, who drives), `learned_policy` (acts with the newest
weights), `replay` and `frames` (transitions and their images), `learner` (one update per online
step), `link` (weights as files between processes), `evaluation`, `stages`, `curriculum`.
"""
