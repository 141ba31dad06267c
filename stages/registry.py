"""Builds the stage that settings describe: the one module that knows every stage, each imported on demand."""

from __future__ import annotations

from collections.abc import Mapping

from stages.autobleu.settings import AutobleuSettings
from stages.duplicates.settings import HashSettings, MinhashSettings
from stages.encode.settings import EncodeSettings
from stages.fragility.settings import FragilitySettings
from stages.language.settings import LanguageSettings
from stages.noise.settings import NoiseSettings
from stages.plans.settings import PlanEmbeddingSettings
from stages.predictor.settings import PredictorSettings
from stages.rvq.settings import RvqSettings
from stages.stage import Stage, StageSettings


def build_stage(settings: StageSettings, fits: Mapping[str, bytes]) -> Stage:
    """Build a stage; torch is imported here.

    `fits`: the files of the fitted artifacts that it needs (`settings.fits`), by name. Raises TypeError if no stage has
    settings of this class.
    """
    match settings:
        case LanguageSettings():
            from stages.language.stage import Language

            return Language(settings)
        case NoiseSettings():
            from stages.noise.signals import Noise

            return Noise(settings)
        case HashSettings():
            from stages.duplicates.hashing import Hash

            return Hash(settings)
        case MinhashSettings():
            from stages.duplicates.minhash import Minhash

            return Minhash(settings)
        case PlanEmbeddingSettings(lm=str()):  # before those of encode, which it has too
            from stages.plans.writing import WritePlans

            return WritePlans(settings)
        case PlanEmbeddingSettings():
            from stages.plans.stage import EmbedPlans

            return EmbedPlans(settings)
        case EncodeSettings():
            from stages.encode.encoder import Encode

            return Encode(settings)
        case AutobleuSettings():
            from stages.autobleu.scorer import Autobleu

            return Autobleu(settings)
        case FragilitySettings():
            from stages.fragility.scorer import Fragility

            return Fragility(settings, fits["scaler"])
        case PredictorSettings():
            from stages.predictor.stage import Predict

            return Predict(settings, fits["predictor"])
        case RvqSettings():
            from stages.rvq.codebooks import Codebooks
            from stages.rvq.quantizer import Rvq

            return Rvq(settings, Codebooks.from_bytes(fits["rvq"]))
    raise TypeError(f"no stage has settings of the class {type(settings).__name__}; add it to stages/registry.py")
