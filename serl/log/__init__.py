"""The durable record of episodes, in MCAP files; everything else is a cache of it.

The path of a transition from the control loop to replay:

1. `serl.loop.run` completes a `Step` and passes it to its observers, to `episode_log.EpisodeLog`
   first (actor process).
2. `wire` encodes it, `ros_messages` adds standard ROS 2 messages, and `episode_writer` appends
   all to the open episode file before the next command is sent: it survives the death of any
   process, and of power after at most `log.interval_s`.
3. `tail.Tail` reads the growing file (link process), `mcap_reader` and `episode_reader` check it,
   and `serl.ros.link.sender` sends it, numbered, until it is acknowledged.
4. `serl.ros.link.receiver` accepts it (learner process): `index.Index` records its position, across
   hosts after `serl.runs.replica` has stored a copy; then it is acknowledged.
5. `serl.training.learner.Learner` enters it into `serl.training.replay.Replay`.

Other modules: `manifest` and `recovery` (sealed files, and repair after a crash), `compression` and
`images` (recorded frames), `annotations` (labels, ground truth, tool poses), `metrics`.
"""
