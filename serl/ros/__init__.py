"""ROS 2: nodes, topics, the arm driver and the guard's process; the only package with rclpy.

Read in this order: `environment` (domain, transport), `node` (`RosNode`: one participant, one
executor), `topics`, `processes` (one list of processes for the supervisor and `ros2 launch`), then
a folder: `arm`, `link`, `people`, `nodes`, `setup`.
"""
