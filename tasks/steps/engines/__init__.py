"""What runs a stage's steps on DataTrove's executors: local, Slurm, Ray."""
