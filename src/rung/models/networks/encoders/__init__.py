"""Networks that encode text, pictures and sound."""
