"""`mm3d train`: prepared breasts and a configuration in, a run folder with weights out."""
