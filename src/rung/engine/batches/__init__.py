"""Files of prompts, answered line by line: OpenAI's batch lines, prompts and messages, or plain text."""
