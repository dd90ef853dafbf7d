"""The arm's model, its controller and kinematics in MuJoCo."""
