"""The published models, where they were fetched: `pipeline models sonar --fetch`. Needs 4 GB of memory.

The numbers are those that the port to Hugging Face was checked with (huggingface/transformers, pull request 29646).
"""

from __future__ import annotations

import pytest
import torch

from stages.sonar.card import ROLES, load_card
from stages.sonar.checkpoint import load_decoder, load_encoder
from stages.sonar.generate import greedy
from stages.sonar.tokenizer import SonarTokenizer

SENTENCES = ["My name is SONAR.", "I can embed the sentences into vectorial space."]
EXPECTED = [[-0.005286, 0.002008, -0.000562, 0.006344, 0.006329], [-0.000330, -0.007055, 0.007644, 0.001841, 0.003727]]


@pytest.mark.parametrize("name", ["sonar", "sonar-finetuned", "sonar-hf"])
@torch.inference_mode()
def test_embeddings_and_text_of_the_published_model(name: str) -> None:
    card = load_card(name)
    missing = [role for role in ROLES if not card.path(role).is_file()]
    if missing:
        pytest.skip(f"not fetched: {', '.join(missing)} of {name} (pipeline models {name} --fetch)")
    tokenizer = SonarTokenizer(card)
    encoder = load_encoder(card)
    embeddings = torch.cat([encoder(torch.tensor([ids])) for ids in tokenizer.encode(SENTENCES, "eng_Latn")])
    assert torch.allclose(embeddings[:, :5], torch.tensor(EXPECTED), rtol=1e-3, atol=1e-6)
    del encoder
    prefixes = torch.tensor([tokenizer.target_prefix("eng_Latn")] * 2)
    texts = tokenizer.decode(greedy(load_decoder(card), embeddings, prefixes, torch.tensor([30, 30])))
    assert "SONAR" in texts[0] and "space" in texts[1]
