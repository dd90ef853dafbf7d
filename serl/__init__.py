"""serl: sample-efficient reinforcement learning on real robots, over ROS 2."""

__version__ = "0.1.0"
