"""The importer: run folders -> MLflow. It reads; the run folders stay the truth.

`importer.sync` copies what is new, `follow` repeats that until a sweep has ended, `server`
starts MLflow's own page. MLflow can be deleted at any time and is rebuilt from the run
folders. Workers never import this room; mlflow is imported inside functions. No torch.
"""
