"""Pure per-document functions and their thin DataTrove adapters, named as the stages are.

Nothing here knows the orchestrator, the tracker or the trainer: a worker process loads little, and the
same steps run on any of DataTrove's executors.
"""
