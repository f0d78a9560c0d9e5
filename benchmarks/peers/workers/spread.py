"""A GGUF file as a folder that transformers and vLLM read, in bf16: GGUF FOLDER."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def spread(file: Path, folder: Path) -> None:
    torch: Any = import_module("torch")
    lib: Any = import_module("transformers")
    how = lib.GgufConfig(dequantize=True)
    model = lib.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.bfloat16, quantization_config=how
    )
    # The configuration remembers the file's quantisation, which the weights no longer have.
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = lib.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(folder)
    lib.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


if __name__ == "__main__":
    spread(Path(sys.argv[1]), Path(sys.argv[2]))
