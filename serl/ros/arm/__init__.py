"""An arm behind topics: `robot.RosArm`, guard commands, measurements, cameras, faults."""
