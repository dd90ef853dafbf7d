#!/bin/bash
# Builds and starts the ROS 2 driver of an arm and the controller that serl's profile of it names.
#   arm.sh build ARM            with ROS 2 Jazzy sourced, in the folder of a new colcon workspace
#   arm.sh start ARM ROBOT_IP   with that workspace sourced, until Ctrl-C
# ARM: franka, ur5e, xarm7 or kinova_gen3; versions and parameters are in arms/ARM.repos and .yaml.
set -eo pipefail
ARMS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/arms
arm=${2:-$ARM}
ROBOT_IP=${3:-$ROBOT_IP}

case $arm in
franka) packages="franka_bringup franka_gripper crisp_controllers crisp_controllers_robot_demos" ;;
ur5e) packages="ur_robot_driver cartesian_compliance_controller" ;;
xarm7) packages="xarm_controller cartesian_motion_controller" ;;
kinova_gen3) packages="kortex_bringup cartesian_motion_controller" ;;
*) echo "arm '$arm': expected franka, ur5e, xarm7 or kinova_gen3" >&2; exit 2 ;;
esac

build() {
    mkdir -p src
    vcs import --recursive src < "$ARMS/$arm.repos"
    rosdep update
    # shellcheck disable=SC2046,SC2086  # several words each
    rosdep install --ignore-src --default-yes --rosdistro jazzy \
        --from-paths $(colcon list --paths-only --packages-up-to $packages)
    # shellcheck disable=SC2086
    colcon build --packages-up-to $packages --cmake-args -DCMAKE_BUILD_TYPE=Release -DBUILD_TESTS=OFF
}

spawn() {
    ros2 run controller_manager spawner --controller-manager-timeout 60 "$@"
}

start_franka() {
    ros2 launch franka_bringup franka.launch.py robot_type:=fr3 robot_ip:="$ROBOT_IP" load_gripper:=true joint_state_rate:=100 &
    spawn pose_broadcaster cartesian_impedance_controller --param-file "$ARMS/franka.yaml"
    # The adapter expects the hand's node under an older name; an action has five topics and services.
    names=(-r fr3_gripper/joint_states:=franka_gripper/joint_states)
    for part in send_goal get_result cancel_goal feedback status; do
        names+=(-r "fr3_gripper/grasp/_action/$part:=franka_gripper/grasp/_action/$part")
    done
    ros2 run crisp_controllers_robot_demos crisp_py_franka_hand_adapter --ros-args "${names[@]}" &
}

start_ur5e() {
    ros2 launch ur_robot_driver ur_control.launch.py ur_type:=ur5e robot_ip:="$ROBOT_IP" activate_joint_controller:=false launch_rviz:=false &
    spawn cartesian_compliance_controller --param-file "$ARMS/ur5e.yaml" --controller-ros-args "--remap cartesian_compliance_controller/ft_sensor_wrench:=/force_torque_sensor_broadcaster/wrench"
}

start_xarm7() {
    ros2 launch xarm_description _robot_description.launch.py robot_type:=xarm dof:=7 add_gripper:=true &
    ros2 launch xarm_controller _ros2_control.launch.py robot_type:=xarm dof:=7 add_gripper:=true robot_ip:="$ROBOT_IP" &
    # For the gripper's joint: on a topic of its own, since it repeats old angles of the arm as well.
    ros2 run joint_state_publisher joint_state_publisher --ros-args -r joint_states:=xarm_gripper/joint_states -p "source_list:=['/xarm/joint_states']" -p rate:=50 &
    spawn joint_state_broadcaster
    spawn cartesian_motion_controller --param-file "$ARMS/xarm7.yaml"
}

start_kinova_gen3() {
    ros2 launch kortex_bringup gen3.launch.py robot_ip:="$ROBOT_IP" gripper:=robotiq_2f_85 launch_rviz:=false controllers_file:="$ARMS/kinova_gen3.yaml" robot_controller:=cartesian_motion_controller &
}

case $1 in
build) build ;;
start)
    : "${ROBOT_IP:?expected the address of the arm}"
    trap 'trap - EXIT; kill $(jobs -p) 2> /dev/null; wait' EXIT
    trap exit INT TERM
    "start_$arm"
    wait
    ;;
*) echo "expected: arm.sh build ARM, or arm.sh start ARM ROBOT_IP" >&2; exit 2 ;;
esac
