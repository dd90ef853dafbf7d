"""Recording, import and audit of data sets: demonstrations and labelled images.

Public: `person` (a person records demonstrations), `reward_collection` (images for a classifier),
`reward_audit` (mistakes of a classifier), `serl_import` (demonstrations of SERL and HIL-SERL),
`exchange` (episodes to and from `lerobot_format`, `minari_format` and `robomimic_format`), `tables`
(recorded numbers as Arrow tables).
"""
