"""From downloaded exams to prepared views: cropped, oriented, windowed, resized, pooled in depth, memory-mappable."""
