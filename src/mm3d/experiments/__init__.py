"""`mm3d study`: the paper's comparisons as one declarative file, its runs, and the page that tells what came out."""
