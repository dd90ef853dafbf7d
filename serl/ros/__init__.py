"""The ROS 2 edge of serl: the only place that imports rclpy; never torch."""
