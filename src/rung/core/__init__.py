"""Words of rung as frozen values: std-lib only, imports nothing else of rung."""
