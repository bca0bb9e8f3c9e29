"""Networks that transformers and other libraries build, run by rung."""
