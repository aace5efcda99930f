"""`zephon-jax demo`: a training run that is killed, resumed on fewer devices, and compared bit for bit.

Rooms, in the order in which they act: `settings` (how large the run is), `corpus` (the text and its tokenizer), `data`
(the pipeline), `model` (a small transformer), `train` (one trainer process), `trainers` (starting, watching and killing
such processes), `steplog` (what a trainer writes per step, and the comparison), `report` and `picture` (what the user
sees), `run` (the whole of it).

The process that the user starts never imports jax: device counts are forced by environment variables of the trainers,
one process each.
"""
