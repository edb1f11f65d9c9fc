"""`mm3d predict`: weights and breasts in, predictions out."""
