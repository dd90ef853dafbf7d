"""The acknowledged stream of transitions between actors and the learner."""
