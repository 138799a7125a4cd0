"""A GPT in plain PyTorch: architecture, data, training, checkpoints, generation."""
