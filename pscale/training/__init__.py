"""What a step of training is: the model as one rank has it, forward, backward, update."""
