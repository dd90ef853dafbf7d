"""serl: sample-efficient reinforcement learning on real robots, over ROS 2."""

from serl.version import __version__ as __version__
