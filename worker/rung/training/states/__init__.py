"""States beside those of models and optimizers, as files of a checkpoint.

rank_states         the generators and other states that each rank has for itself
callback_states     the states of a loop's callbacks; state_tree is the format of their file
"""
