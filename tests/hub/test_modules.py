"""Modules made from configurations: what each parameter is."""

import transformers

from rung.hub.networks.modules import component_of, module_of


def test_positions_that_are_more_than_tokens_are_no_embedding():
    config = transformers.OPTConfig(
        vocab_size=320, hidden_size=64, ffn_dim=128, num_hidden_layers=1, num_attention_heads=4, word_embed_proj_dim=64
    )
    module = module_of({**config.to_dict(), "architectures": ["OPTForCausalLM"]}, "opt")
    roles = {tensor.name: tensor.role for tensor in component_of(module).tensors}
    assert roles["model.decoder.embed_tokens.weight"] == "embed"
    assert roles["model.decoder.embed_positions.weight"] == "positions"
    assert config.max_position_embeddings > config.vocab_size
