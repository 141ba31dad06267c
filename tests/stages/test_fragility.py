"""Fragility: noise of eq. 27, scores as sacrebleu and sentence-transformers have them, and rows for themselves."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sacrebleu
import torch
import yaml

from stages.arrow import embedding_matrix
from stages.batching import Tokens
from stages.cards import CardError
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.fetch import sha256_of
from stages.fragility.card import load_external_card, shipped_external_cards
from stages.fragility.noise import noise, perturbed
from stages.fragility.scorer import ExternalEncoder, ExternalTokenizer
from stages.fragility.settings import FragilitySettings
from stages.registry import build_stage
from stages.sampling import Rows
from stages.scaler.robust import RobustScaler, ScalerFit
from stages.sonar.card import load_card
from stages.stage import NON_FINITE, Computed, Further, Recounts, whole
from tests.conftest import TINY_CARD

TEXTS = ["Drinks red mat bird red water sees green river but.", "Green dog blue city but because green and mat."]
WORDS = ["red", "mat", "bird", "water", "sees", "green", "river", "but", "dog", "blue", "city", "because", "and", "cat"]
PARAPHRASES = ("A man is playing the guitar.", "Someone plays a guitar.", "The stock market fell sharply on Monday.")


@pytest.fixture(scope="module")
def part() -> pa.Table:
    """Sentences like those that the reference checkpoint learnt, encoded; the last repeats the first."""
    rng = np.random.default_rng(0)
    made = [" ".join(rng.choice(WORDS, rng.integers(3, 9))) + "." for _ in range(9)]
    texts = [*TEXTS, *made, TEXTS[0]]
    u = np.linspace(0, 0.99, len(texts))
    table = pa.table({"sentences.text": texts, "sentences.lang": ["eng_Latn"] * len(texts), "sentences.u": u})
    stage = Encode(EncodeSettings(model=str(TINY_CARD)))
    stage.setup("cpu")
    for family, computed in stage.finish(stage.compute(stage.prepare(table))).families.items():
        for name in computed.column_names:
            table = table.append_column(f"{family}.{name}", computed[name])
    return table


@pytest.fixture(scope="module")
def scaler(part: pa.Table) -> bytes:
    embeddings = embedding_matrix(part["embeddings.embedding"])
    fitting = ScalerFit(embeddings.shape[1])
    fitting.add(embeddings)
    return fitting.finish().to_bytes({})


def scored(part: pa.Table, scaler: bytes, **settings: Any) -> Computed:
    stage = build_stage(FragilitySettings(**{"model": str(TINY_CARD), "sample": 1.0, **settings}), {"scaler": scaler})
    stage.setup("cpu")
    computed = whole(stage, part)
    assert isinstance(stage, Recounts)
    assert stage.recount(part, computed.families, computed.counts) == pytest.approx(computed.counts), "of copied rows"
    return computed


def column(computed: Computed, name: str) -> list[Any]:
    values: list[Any] = computed.families["fragility"][name].to_pylist()
    return values


def test_noise_has_the_stated_variance_and_depends_on_the_row_alone() -> None:
    u, levels = np.array([0.25, 0.5, 0.5]), np.array([0.1, 0.1, 0.2])
    eps = noise(u, levels, seed=3, dim=20_000)
    assert np.abs(eps.mean(axis=1)).max() < 0.03 and np.abs(eps.std(axis=1) - 1).max() < 0.03
    assert np.abs(np.corrcoef(eps) - np.eye(3)).max() < 0.03  # other rows, other levels: independent
    assert np.array_equal(noise(u[1:2], levels[1:2], 3, 20_000)[0], eps[1])
    assert np.abs(np.corrcoef(noise(u, levels, 4, 20_000), eps)[:3, 3:]).max() < 0.03  # another seed


def test_perturbation_is_that_of_equation_27() -> None:
    generator = torch.Generator().manual_seed(0)
    x, eps = (torch.randn(5, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    median, iqr = torch.randn(8, generator=generator), torch.rand(8, generator=generator) + 0.5
    alpha = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0], dtype=torch.float64)
    expected = (1 - alpha[:, None]) ** 0.5 * ((x - median) / iqr) + alpha[:, None] ** 0.5 * eps
    found = perturbed(x, eps.float(), alpha, RobustScaler(median, iqr))
    assert torch.allclose(found.double(), expected * iqr + median, atol=1e-5)
    assert torch.allclose(found[0].double(), x[0], atol=1e-6)  # α = 0: nothing happens
    assert torch.allclose(found[4].double(), eps[4] * iqr + median, atol=1e-5)  # α = 1: nothing is left


@pytest.mark.parametrize("constant", [1024, 300])
def test_noise_does_not_drown_the_embeddings_of_a_corpus_of_copies(constant: int) -> None:
    """80 % of the rows are copies in some dimensions or all: their interquartile range is 0, that of no scale is 1."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((500, 1024)) * 0.01).astype(np.float16)  # norms of 0.3, as SONAR's
    x[:400, :constant] = x[0, :constant]
    fitting = ScalerFit(1024)
    fitting.add(x)
    scaler = RobustScaler.from_bytes(fitting.finish(clip=2.0).to_bytes({}))
    assert scaler.constant_dimensions == constant
    given, u = torch.from_numpy(x[380:420]), rng.random(40)
    for alpha in (0.1, 0.9, 1.0):
        levels = np.full(40, alpha)
        eps = torch.from_numpy(noise(u, levels, 0, 1024))
        found = perturbed(given, eps, torch.from_numpy(levels), scaler)
        ratio = found.norm(dim=1) / given.float().norm(dim=1)
        assert ratio.min() > 0.7 and ratio.max() < 1.4
        assert found[:, :constant].equal(given[:, :constant].float())
        others = RobustScaler(scaler.median[constant:], scaler.iqr[constant:], scaler.clip)
        rest = given[:, constant:], eps[:, constant:], torch.from_numpy(levels)
        assert found[:, constant:].equal(perturbed(*rest, others))


def test_without_noise_what_survives_is_not_fragile(part: pa.Table, scaler: bytes) -> None:
    result = scored(part.slice(0, 2), scaler, noise_levels=(0.0,))
    for score in ("bleu", "cosine"):
        assert column(result, f"fragility_{score}") == pytest.approx([-1, -1], abs=1e-3)
    assert result.counts["bleu.0"] == pytest.approx(2) and result.counts["cosine.0"] == pytest.approx(2, abs=1e-3)


def test_scores_are_those_of_the_reference_implementations(part: pa.Table, scaler: bytes) -> None:
    """The very decodings, scored by sacrebleu and by sentence-transformers, of which MiniLM is a model."""
    from sentence_transformers import SentenceTransformer

    levels = (0.1, 0.4, 0.8)
    settings = FragilitySettings(model=str(TINY_CARD), sample=1.0, noise_levels=levels, precision="float32")
    stage: Any = build_stage(settings, {"scaler": scaler})
    stage.setup("cpu")
    decodings = stage.compute(stage.prepare(part))
    found = stage.decoder.tokenizer.decode(decodings.ids)
    further = stage.finish(decodings)
    assert isinstance(further, Further) and isinstance(further.prepared, Tokens), "texts stay where they are made"
    result = further.finish(stage.compute(further.prepared))
    texts = part["sentences.text"].to_pylist()
    assert len(found) == len(texts) * len(levels) == result.counts["decodings"]
    model = SentenceTransformer(str(load_external_card("minilm").files()), device="cpu")
    for row, text in enumerate(texts):
        decoded = found[row * len(levels) : (row + 1) * len(levels)]
        bleu = [sacrebleu.sentence_bleu(one, [text], use_effective_order=True).score / 100 for one in decoded]
        cosine = (model.encode([text], normalize_embeddings=True) @ model.encode(decoded, normalize_embeddings=True).T)[
            0
        ]
        assert column(result, "bleu_by_noise")[row] == pytest.approx(bleu, abs=1e-5)
        assert column(result, "cosine_by_noise")[row] == pytest.approx(cosine.clip(0, 1), abs=1e-3)
        assert column(result, "fragility_bleu")[row] == pytest.approx(-np.mean(bleu), abs=1e-5)
        assert column(result, "fragility_cosine")[row] == pytest.approx(-cosine.clip(0, 1).mean(), abs=1e-3)
    means = [result.counts[f"bleu.{level}"] / len(texts) for level in levels]
    assert 1 > means[0] > means[2] > 0  # more noise, less left


def test_text_is_made_where_there_are_no_networks(part: pa.Table, scaler: bytes) -> None:
    """As in a host process: beside the device, which is given ids and embeddings, and gives ids and vectors."""
    settings = FragilitySettings(model=str(TINY_CARD), sample=1.0, noise_levels=(0.2, 0.6))
    host, device = (build_stage(settings, {"scaler": scaler}) for _ in range(2))
    device.setup("cpu")
    prepared = host.prepare(part)
    further = host.finish(device.compute(pickle.loads(pickle.dumps(prepared))))
    assert isinstance(further, Further)
    result = further.finish(device.compute(pickle.loads(pickle.dumps(further.prepared))))
    expected = whole(device, part)
    assert result.families == expected.families and result.counts == expected.counts
    assert result.counts["external_texts"] <= 3 * part.num_rows and result.counts["out_of_memory"] == 0


def test_nothing_depends_on_batches_or_neighbours(part: pa.Table, scaler: bytes) -> None:
    exact = {"precision": "float32"}
    whole = scored(part, scaler, **exact)
    table = whole.families["fragility"]
    assert scored(part, scaler, **exact, batch_rows=7, external_batch_tokens=50).families["fragility"].equals(table)
    apart = [scored(part.slice(start, 4), scaler, **exact).families["fragility"] for start in (0, 4, 8)]
    assert pa.concat_tables(apart).combine_chunks().equals(table.combine_chunks())
    fewer = scored(part, scaler, **exact, noise_levels=(0.5, 0.2))
    for row, both in enumerate(column(fewer, "bleu_by_noise")):
        assert both == [column(whole, "bleu_by_noise")[row][level] for level in (4, 1)]
    assert column(whole, "bleu_by_noise") != column(scored(part, scaler, **exact, seed=1), "bleu_by_noise")


def test_in_bfloat16_cosines_depend_on_batches_by_its_rounding(part: pa.Table, scaler: bytes) -> None:
    whole, small = (
        column(
            scored(part, scaler, precision="bfloat16", noise_levels=(0.3,), external_batch_tokens=tokens),
            "cosine_by_noise",
        )
        for tokens in (4096, 50)
    )
    assert small == [pytest.approx(one, abs=0.01) for one in whole]


def test_samples_nest_and_rows_without_an_embedding_are_null(part: pa.Table, scaler: bytes) -> None:
    status = part["status.status"].to_numpy().copy()
    status[1] = NON_FINITE
    part = part.set_column(part.column_names.index("status.status"), "status.status", pa.array(status))
    small, large = (scored(part, scaler, sample=share, noise_levels=(0.3,)) for share in (0.3, 0.7))
    in_small, in_large = (
        {row for row, value in enumerate(column(one, "fragility_bleu")) if value is not None} for one in (small, large)
    )
    assert in_small == {0, 2, 3} and in_large == {0, 2, 3, 4, 5, 6, 7}
    assert column(small, "cosine_by_noise")[1] is None and small.counts["scored"] == 3
    for row in in_small:
        assert column(small, "bleu_by_noise")[row] == column(large, "bleu_by_noise")[row]
    nothing = scored(part.slice(11), scaler, sample=0.3)
    assert column(nothing, "fragility_bleu") == [None] and nothing.counts["decodings"] == 0


def test_what_does_not_fit_is_refused_in_words(part: pa.Table, scaler: bytes) -> None:
    with pytest.raises(ValueError, match=r"fragility\.sample is \{rows: 50000000\}, which is not a rate yet"):
        build_stage(FragilitySettings(model=str(TINY_CARD)), {"scaler": scaler})
    small = RobustScaler(torch.zeros(3), torch.ones(3)).to_bytes({})
    with pytest.raises(ValueError, match=r"scaler was fitted on 3 dimensions, the decoder .* takes \d+; .*--refit"):
        build_stage(FragilitySettings(model=str(TINY_CARD), sample=1.0), {"scaler": small})
    klingon = part.set_column(1, "sentences.lang", pa.array(["deu_Latn"] * 11 + ["eng_Latm"]))
    with pytest.raises(
        ValueError, match=r"does not know the language 'eng_Latm'; nearest .*eng_Latn.*fragility\.model"
    ):
        scored(klingon, scaler)
    with pytest.raises(ValueError, match="holds a level twice"):
        FragilitySettings(noise_levels=(0.1, 0.1))
    with pytest.raises(ValueError, match="less than or equal to 1"):
        FragilitySettings(noise_levels=(1.5,))


def test_settings_read_a_share_or_a_number_of_rows() -> None:
    assert FragilitySettings.model_validate_json('{"sample": {"rows": 50}}').sample == Rows(rows=50)
    assert FragilitySettings.model_validate_json('{"sample": 0.01, "noise_levels": [0.5]}').noise_levels == (0.5,)
    for wrong in ('{"sample": 0}', '{"sample": 1.5}', '{"sample": {"rows": 0}}', '{"noise_levels": []}'):
        with pytest.raises(ValueError, match=r"sample|noise_levels"):
            FragilitySettings.model_validate_json(wrong)
    settings = FragilitySettings()
    assert set(settings.artifacts()) == {"decoder", "tokenizer", "external"}
    assert not {"batch_rows", "external_batch_tokens"} & set(settings.meaningful())
    assert settings.artifacts()["decoder"] == load_card("sonar-tiny").decoder_digest


def test_paraphrases_are_alike() -> None:
    card = load_external_card("minilm")
    encoder = ExternalEncoder(card, dtype=torch.float32, device="cpu", batch_tokens=4096)
    vectors, halvings = encoder.encode(ExternalTokenizer(card)([*PARAPHRASES, "word " * 2000]))
    assert halvings == 0 and np.linalg.norm(vectors.astype(np.float32), axis=1) == pytest.approx(1, abs=1e-3)
    cosine = vectors.astype(np.float32) @ vectors.astype(np.float32).T
    assert cosine[0, 1] > 0.8 > 0.2 > cosine[0, 2]


def test_cards_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(shipped_external_cards()) == {"mgte", "minilm"}
    with pytest.raises(CardError, match="no external encoder is called 'bert'; use one of mgte, minilm"):
        load_external_card("bert")
    content = yaml.safe_load(shipped_external_cards()["minilm"].read_text())
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content | {"model": "package:no_such_encoder/model"}))
    with pytest.raises(CardError, match="pip install no-such-encoder"):
        load_external_card(str(path)).files()
    path.write_text(yaml.safe_dump(content | {"sha256": content["sha256"] | {"config.json": "0" * 64}}))
    with pytest.raises(CardError, match=r"config\.json has sha256 .* the card says 0000"):
        load_external_card(str(path)).files()
    path.write_text(yaml.safe_dump(content | {"sha256": {}}))
    with pytest.raises(CardError, match=r"sha256 lacks config\.json, model\.safetensors, tokenizer\.json"):
        load_external_card(str(path))
    path.write_text(yaml.safe_dump(content | {"model": "someone/something"}))
    with pytest.raises(CardError, match="give its revision"):
        load_external_card(str(path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CardError, match=r"hf download Alibaba-NLP/gte-multilingual-base .* --revision 9bbca17d"):
        load_external_card("mgte").files()


def test_mgte_is_read_without_running_code_of_its_repository(tmp_path: Path) -> None:
    """A small model with the names, numbers and packed weights of the published file, under the card that ships."""
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GteConfig, GteModel

    card = yaml.safe_load(shipped_external_cards()["mgte"].read_text())
    sizes = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 64, "layer_norm_eps": 1e-12, "pad_token_id": 1}
    torch.manual_seed(0)
    reference = GteModel(GteConfig(**sizes, rope_parameters=card["config"]["rope_parameters"])).eval()
    weights = {}
    for name, value in reference.state_dict().items():
        layer, _, rest = name.removeprefix("layers.").partition(".")
        if not name.startswith("layers."):
            weights[f"new.{name}"] = value.clone()
        elif rest.startswith(("self_attn.q_proj", "mlp.up_proj")):
            parts = ("q", "k", "v") if "q_proj" in rest else ("up", "gate")
            kind, inner = rest.rpartition(".")[2], rest.partition(".")[0]
            packed = [reference.state_dict()[f"layers.{layer}.{inner}.{part}_proj.{kind}"] for part in parts]
            target = "attention.qkv_proj" if "q_proj" in rest else "mlp.up_gate_proj"
            weights[f"new.encoder.layer.{layer}.{target}.{kind}"] = torch.cat(packed)
        elif not rest.startswith(("self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj")):
            renamed = rest.replace("post_attention_layernorm", "attn_ln").replace("post_mlp_layernorm", "mlp_ln")
            weights[f"new.encoder.layer.{layer}.{renamed.replace('self_attn', 'attention')}"] = value.clone()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    published = {"model_type": "new", "rope_theta": 20000, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    code = {"auto_map": {"AutoConfig": "Alibaba-NLP/new-impl--configuration.NewConfig"}, "architectures": ["NewModel"]}
    (tmp_path / "config.json").write_text(json.dumps(published | code | sizes))
    tokenizer = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(["<s>", "<pad>", "<unk>", *WORDS])}, "<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    digests = {name: sha256_of(tmp_path / name) for name in ("config.json", "tokenizer.json", "model.safetensors")}
    del card["revision"]
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(card | {"model": ".", "dim": 16, "max_tokens": 64, "sha256": digests}))
    loaded = load_external_card(str(path))
    encoder = ExternalEncoder(loaded, dtype=torch.float32, device="cpu", batch_tokens=64)
    vectors, _ = encoder.encode(ExternalTokenizer(loaded)(["red mat bird", "water sees green river but"]))
    for text, vector in zip(([3, 4, 5], [6, 7, 8, 9, 10]), vectors, strict=True):
        with torch.no_grad():
            hidden = reference(input_ids=torch.tensor([text])).last_hidden_state[0, 0]
        assert vector.astype(np.float32) == pytest.approx((hidden / hidden.norm()).numpy(), abs=1e-3)
