"""Makes a small Llama with random weights and a tokenizer of its own, from nothing: tiny_model.py FOLDER.

Runs in the model server's environment. What it writes is noise; its shape is all that the tests need.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 16_384
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE, so that any text can be read and written."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=2048, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), SPECIAL, strict=True))
    made = PreTrainedTokenizerFast(tokenizer_object=model, model_max_length=CONTEXT, **names)
    made.chat_template = TEMPLATE
    return made


def main(folder: Path) -> None:
    prompts = Path(__file__).resolve().parents[2] / "prompts"
    words = tokenizer([path.read_text("utf-8") for path in sorted(prompts.rglob("*.j2"))])
    torch.manual_seed(11)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=3,
        )
    )
    folder.mkdir(parents=True, exist_ok=True)
    words.save_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
