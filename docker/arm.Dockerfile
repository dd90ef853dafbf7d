# An arm's ROS 2 driver and controller (target driver), and serl with their messages (target serl).
# docker build -f docker/arm.Dockerfile --build-arg ARM=kinova_gen3 --target driver -t serl-driver-kinova_gen3 .
FROM ros:jazzy-ros-base AS driver
SHELL ["/bin/bash", "-c"]
ARG ARM
ENV ARM=$ARM
RUN apt-get update && apt-get install --yes --no-install-recommends \
    ros-dev-tools ros-jazzy-ros2-controllers \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /arm
COPY docker/arm.sh docker/
COPY docker/arms docker/arms
RUN source /opt/ros/jazzy/setup.bash && apt-get update && docker/arm.sh build \
    && rm -rf build log /var/lib/apt/lists/*
ENTRYPOINT ["/bin/bash", "-c", "source /arm/install/setup.bash && exec \"$@\"", "driver"]
CMD ["docker/arm.sh", "start"]

FROM driver AS serl
RUN apt-get update && apt-get install --yes --no-install-recommends \
    libegl1 libgl1-mesa-dri libglib2.0-0t64 libopengl0 make python3-numpy python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /serl
COPY . .
# CPU by default; `--build-arg TORCH=https://pypi.org/simple` has CUDA.
ARG TORCH=https://download.pytorch.org/whl/cpu
RUN source /arm/install/setup.bash && PIP_EXTRA_INDEX_URL=$TORCH make .venv/ready
RUN mkdir /work && chown ubuntu /work
USER ubuntu
WORKDIR /work
ENTRYPOINT ["/bin/bash", "-c", "source /arm/install/setup.bash && exec /serl/.venv/bin/serl \"$@\"", "serl"]
CMD ["doctor"]
