"""decode_step"""
