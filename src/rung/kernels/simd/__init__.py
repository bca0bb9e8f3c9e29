"""simd"""
