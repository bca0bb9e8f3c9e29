"""Text to token ids and back, for GGUF files and Hugging Face folders."""
