"""Hold what results are measured with and shown by: metrics, pictures, comparisons."""
