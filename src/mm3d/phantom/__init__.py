"""A virtual clinical trial: synthetic breasts, their mammograms and tomosynthesis, and the truth about them."""
