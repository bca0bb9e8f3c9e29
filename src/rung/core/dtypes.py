"""The float dtypes that weights, caches and activations have, by the short names used everywhere in rung."""

#: Bytes of a number.
FLOAT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
