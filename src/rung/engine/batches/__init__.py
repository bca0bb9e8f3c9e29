"""Many prompts at once: ``generate_many``, and files of prompts that are answered line by line."""
