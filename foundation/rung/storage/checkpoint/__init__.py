"""Checkpoints as objects: a folder of files and a manifest, written last."""
