"""Makes a small Llama with random weights in llama.cpp's format, from nothing: tiny_gguf.py FILE."""

import sys

import numpy as np
from gguf import GGUFWriter, TokenType

WIDTH, INNER, LAYERS, HEADS, CONTEXT = 64, 128, 2, 2, 16_384
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: "


def vocabulary() -> tuple[list[bytes], list[int]]:
    """Three special tokens, every byte, and every printable sign: any text can be read and written."""
    special = [(b"<unk>", TokenType.UNKNOWN), (b"<s>", TokenType.CONTROL), (b"</s>", TokenType.CONTROL)]
    every = [(f"<0x{byte:02X}>".encode(), TokenType.BYTE) for byte in range(256)]
    signs = [(chr(code).encode(), TokenType.NORMAL) for code in (*range(33, 127), 0x2581)]
    pairs = [*special, *every, *signs]
    return [text for text, _ in pairs], [int(kind) for _, kind in pairs]


def weights(words: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (words, WIDTH), "output.weight": (words, WIDTH)}
    shapes["output_norm.weight"] = (WIDTH,)
    for layer in range(LAYERS):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{part}.weight"] = (WIDTH, WIDTH)
        for part in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{layer}.{part}.weight"] = (WIDTH,)
        shapes[f"blk.{layer}.ffn_gate.weight"] = shapes[f"blk.{layer}.ffn_up.weight"] = (INNER, WIDTH)
        shapes[f"blk.{layer}.ffn_down.weight"] = (WIDTH, INNER)
    return shapes


def main(path: str) -> None:
    texts, kinds = vocabulary()
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores([0.0] * len(texts))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(11)
    for name, shape in weights(len(texts)).items():
        norm = name.endswith("norm.weight")
        writer.add_tensor(name, np.ones(shape, "float32") if norm else random.normal(0, 0.1, shape).astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
