"""What a run is: its settings and folder, and how its parts are assembled, resumed and verified.

Public: `TrainConfig` (`config`), `RunFolder` (`folder`), `make_actor` and `make_learner`
(`assembly`), `resume`, `verify`. Read in this order: `config`, `folder`, `task_setup`, `assembly`,
`checkpoint`, `resume`, `trials`.
"""
