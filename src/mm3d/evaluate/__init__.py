"""`mm3d evaluate`: predictions beside the truth, measured, compared and drawn. docs/evaluation.md has the rules."""
