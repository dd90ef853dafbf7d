"""Training runs: settings and folder of a run; assembly, resuming and verification of its parts.

Public: `TrainConfig` (`config`), `RunFolder` (`folder`), `make_actor` and `make_learner`
(`assembly`), `resume`, `verify`. Read in this order: `config`, `folder`, `task_setup`, `assembly`,
`checkpoint`, `resume`, `trials`.
"""
