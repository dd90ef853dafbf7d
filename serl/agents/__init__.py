"""Learning algorithms; the only package that imports torch.

Public: `SAC`, `HybridSAC`, `BC`, `VICE`, `Classifier`, each loaded by name (`serl.plugins`). The
contract is `serl.agent`. Read in this order: `config`, `networks`, `losses`, `sac`, then the
algorithm of interest; `encoders`, `resnet` and `pretraining` for images.
"""
