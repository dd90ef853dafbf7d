"""Training loop of actor and learner, with replay: free of torch and of ROS.

Read in this order: `actor` (episodes, resets, takeovers), `learned_policy` (acts with the newest
weights), `replay` and `frames` (transitions and their images), `learner` (one update per online
step), `link` (weights as files between processes), `evaluation`, `stages`, `curriculum`.
"""
