"""serl: sample-efficient reinforcement learning on real robots, over ROS 2."""

from serl.environment import register

__version__ = "0.1.0"

register()
