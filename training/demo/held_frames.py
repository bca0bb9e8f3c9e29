"""Held-back question wordings: written before the training frames, used by evaluate.py only, never trained on.

``{n}`` is a card as a user would type it. One list for each kind of fact; the last ones are for cards that the
catalogue does not hold and for small talk.
"""

from __future__ import annotations

HELD_FRAMES: dict[str, tuple[str, ...]] = {
    "capability": (
        "Which compute capability is the {n}?",
        "What CUDA compute capability do I have with a {n}?",
        "I need to pass the compute capability of my {n} to nvcc. What is it?",
        "The {n} is compute capability what?",
        "Could you remind me what compute capability a {n} has",
        "sm number of the {n}?",
        "{n} compute capability please",
        "What's the compute capability for the {n} card?",
    ),
    "memory": (
        "How many gigabytes of memory are on a {n}?",
        "How much VRAM has the {n} got?",
        "What's the memory capacity of the {n}?",
        "My machine has a {n}. How much memory is that?",
        "Does anybody know the VRAM of a {n}?",
        "{n}: how many GB?",
        "how big is the memory on the {n}",
        "What amount of video memory comes with a {n}?",
    ),
    "generation": (
        "What generation is a {n}?",
        "Which architecture is the {n} based on?",
        "What GPU family does the {n} come from?",
        "Of which generation is my {n}?",
        "{n}: architecture?",
        "Tell me what architecture the {n} uses.",
    ),
    "bf16": (
        "Would a {n} be able to multiply bfloat16 matrices?",
        "Does the {n} support bf16?",
        "Can I train in bfloat16 with a {n}?",
        "Is bfloat16 native on my {n}?",
        "Will bf16 work on the {n}?",
        "bf16 on a {n}, is that a good idea?",
        "Are bfloat16 matrices supported by the {n}?",
        "I have a {n} and the model is bfloat16. Any problem?",
    ),
    "f16": (
        "Does a {n} multiply float16 fast?",
        "Is half precision quick on the {n}?",
        "How does the {n} do with fp16?",
        "Can a {n} compute in float16?",
        "Should I expect fp16 to be fast on my {n}?",
        "Is fp16 arithmetic any good on the {n}?",
    ),
    "int8": (
        "Does a {n} multiply int8?",
        "Can the {n} do int8 arithmetic?",
        "Is there int8 support in the {n}?",
        "Are int8 products fast on a {n}?",
        "Does my {n} have instructions for int8?",
        "{n} and int8: does that work?",
    ),
    "matrix": (
        "Does the {n} have tensor cores?",
        "Are there any tensor cores on a {n}?",
        "Do I get tensor cores with the {n}?",
        "{n} - tensor cores or not?",
    ),
    "fp8": (
        "Does the {n} support fp8?",
        "Can I multiply fp8 on a {n}?",
        "Is fp8 available with the {n}?",
        "Does a {n} know 8-bit floats?",
    ),
    "bandwidth": (
        "What memory bandwidth does the {n} have?",
        "How fast is the memory of a {n}?",
        "How many GB/s does the {n} reach?",
        "{n}: memory bandwidth?",
    ),
    "driver": (
        "Is the {n} still supported by the newest NVIDIA driver?",
        "What is the last driver branch for the {n}?",
        "Does CUDA 13 run on a {n}?",
        "Up to which CUDA version is a {n} supported?",
    ),
    "dtype": (
        "Which number format should I use on a {n}?",
        "What dtype do you recommend for the {n}?",
        "In which precision should a model run on my {n}?",
        "What is the best dtype on a {n}?",
    ),
}

# Kinds that are asked about cards outside the catalogue.
UNKNOWN_KINDS = ("capability", "memory", "generation", "bf16", "f16", "int8")

HELD_GREETINGS = ("hello", "Hello!", "hi", "Hey there", "good morning", "Hello, how are you?", "Hi! Who are you?")
