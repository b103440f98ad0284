"""Writes a llama model of one layer with random weights: `llama_model.py OUT.gguf`.

Its answers are noise; what it is for is the wire format and the errors of llama.cpp's own server,
which serves nothing without a model. No weights come from anywhere.
"""

import sys

import gguf
import numpy as np

WIDTH, HEADS, FEED_FORWARD = 32, 2, 64
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6  # token types of the format

tokens = [(b"<unk>", UNKNOWN, 0.0)]
tokens += [(name, CONTROL, 0.0) for name in (b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>")]
tokens += [(f"<0x{byte:02X}>".encode(), BYTE, 0.0) for byte in range(256)]
words = ["\u2581", *map(chr, range(32, 127)), "\u2581the", "ing", "er", "in"]
tokens += [(word.encode(), NORMAL, -float(rank)) for rank, word in enumerate(words, start=1)]

random = np.random.default_rng(0)


def weights(*shape):
    return (random.standard_normal(shape) * 0.3).astype(np.float32)


out = gguf.GGUFWriter(sys.argv[1], "llama")
out.add_name("tiny-random")
out.add_file_type(0)
out.add_context_length(8192)
out.add_embedding_length(WIDTH)
out.add_block_count(1)
out.add_feed_forward_length(FEED_FORWARD)
out.add_head_count(HEADS)
out.add_head_count_kv(HEADS)
out.add_layer_norm_rms_eps(1e-5)
out.add_rope_dimension_count(WIDTH // HEADS)
out.add_vocab_size(len(tokens))

out.add_tokenizer_model("llama")
out.add_token_list([text for text, _, _ in tokens])
out.add_token_types([kind for _, kind, _ in tokens])
out.add_token_scores([score for _, _, score in tokens])
out.add_unk_token_id(0)
out.add_bos_token_id(1)
out.add_eos_token_id(4)
out.add_add_bos_token(True)
# Without this the server refuses `response_format: json_schema`.
out.add_add_space_prefix(False)

out.add_tensor("token_embd.weight", weights(len(tokens), WIDTH))
out.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
out.add_tensor("output.weight", weights(len(tokens), WIDTH))
for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
    out.add_tensor(f"blk.0.{name}.weight", weights(WIDTH, WIDTH))
for name, shape in (
    ("ffn_gate", (FEED_FORWARD, WIDTH)),
    ("ffn_up", (FEED_FORWARD, WIDTH)),
    ("ffn_down", (WIDTH, FEED_FORWARD)),
):
    out.add_tensor(f"blk.0.{name}.weight", weights(*shape))
for name in ("attn_norm", "ffn_norm"):
    out.add_tensor(f"blk.0.{name}.weight", np.ones(WIDTH, np.float32))
out.write_header_to_file()
out.write_kv_data_to_file()
out.write_tensors_to_file()
out.close()
