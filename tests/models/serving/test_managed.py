"""Checkpoints asked through a server that is started for them: a stand-in for vLLM."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from flipbench.config.experiment import load_config
from flipbench.config.local_models import ModelConfig
from flipbench.config.served_model import VLLMConfig
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Failure, Item, Probe, Response
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions
from flipbench.models.engine import ask
from flipbench.models.serving.managed import RECORD, ManagedVLM
from flipbench.models.serving.vllm import Served, VLLMServers
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.vllm_stand_in import DIES_AFTER, VERSION

pytest.importorskip("openai", reason="the extra api is not installed")
pytestmark = pytest.mark.slow

CHOOSE = PromptSettings()
NATS = 1e-4


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[VLLMServers]:
    started = VLLMServers(tmp_path / "servers")
    yield started
    started.stop()


def managed(
    servers: VLLMServers, vllm: str, path: Path, folder: Path, **settings: Any
) -> ManagedVLM:
    chosen: dict[str, Any] = {"executable": vllm, "max_lora_rank": 8, "n_concurrent": 2}
    engine = VLLMConfig(**(chosen | settings))
    weights = ModelConfig(path=str(path))
    return ManagedVLM(weights, engine, servers, folder / "responses", path.name)


def questions(items: list[Item], n: int = 4) -> list[Probe]:
    return [CHOOSE.probe(item, "original") for item in items[:n]]


def log_of(servers: VLLMServers) -> str:
    (path,) = servers.folder.glob("*.log")
    return path.read_text()


def test_a_base_and_its_adapters_are_asked_through_one_server(
    servers: VLLMServers,
    vllm: str,
    tiny_folders: dict[str, Path],
    adapter: Path,
    second_adapter: Path,
    odd_adapter: Path,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    tmp_path: Path,
) -> None:
    probes, found = questions(shapes_items), []
    for path in (tiny_folders["llava"], adapter, second_adapter):
        image = {"mm_processor_kwargs": {"max_pixels": 50_176}, "images_per_prompt": 2}
        model = managed(servers, vllm, path, tmp_path, batch_invariant=True, **image)
        local = HuggingFaceVLM(str(path))
        assert model.local_fingerprint == local.fingerprint != model.fingerprint
        served, expected = model.ask(probes, shapes_store), local.ask(probes, shapes_store)
        for there, here in zip(served, expected, strict=True):
            assert isinstance(there, Response) and isinstance(here, Response), there
            assert (there.model, there.model_fingerprint) == (path.name, model.fingerprint)
            assert there.choice == here.choice
            assert there.option_log_probs == pytest.approx(here.option_log_probs, abs=NATS)
        found.append([r.option_log_probs for r in served if isinstance(r, Response)])
        (used,) = json.loads((tmp_path / "responses" / model.fingerprint / RECORD).read_text())
        assert (used["version"], used["batch_invariant"], used["letters"]) == (
            VERSION,
            True,
            "exact",
        )
        assert used["mm_processor_kwargs"] == {"max_pixels": 50_176}
        assert used["images_per_prompt"] == 2
        assert used["environment"]["VLLM_BATCH_INVARIANT"] == "1"
        again = managed(servers, "/no/such/vllm", path, tmp_path, **image)
        assert again.fingerprint != model.fingerprint, "batch invariance is part of it"
        known = managed(VLLMServers(tmp_path), "/no", path, tmp_path, batch_invariant=True, **image)
        assert known.can == model.can, "a finished run needs no server"
    assert found[0] != found[1] != found[2], "each adapter answers for itself"
    odd = managed(servers, vllm, odd_adapter, tmp_path, batch_invariant=True, **image)
    with pytest.raises(PrerequisiteError, match=r"modules_to_save.*ask it with transformers"):
        odd.ask(probes, shapes_store)
    file = odd_adapter / "adapter_model.safetensors"
    older = {name.replace(".weight", ".mine.weight"): t for name, t in load_file(file).items()}
    save_file(older, file, {"format": "pt"})
    odd = managed(servers, vllm, odd_adapter, tmp_path, batch_invariant=True, **image)
    with pytest.raises(PrerequisiteError, match="of them renamed, and vLLM passes over names"):
        odd.ask(probes, shapes_store)
    log = log_of(servers)
    assert log.count("stand-in: ") == 1
    assert log.count("Loaded new LoRA adapter") == 2 and log.count("Removed LoRA adapter") == 2
    given = json.loads(log.partition("stand-in: ")[2].splitlines()[0])
    assert given["limit_mm_per_prompt"] == {"image": 2}
    assert given["mm_processor_kwargs"] == {"max_pixels": 50_176}
    assert (given["generation_config"], given["max_lora_rank"]) == ("vllm", 8)
    with pytest.raises(TypeError):
        pickle.dumps(model)


def test_a_server_that_ends_midway_stops_the_run_and_loses_nothing(
    servers: VLLMServers,
    vllm: str,
    tiny_folders: dict[str, Path],
    shapes_items: list[Item],
    shapes_store: ImageStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_STAND_IN", "dies")
    model = managed(servers, vllm, tiny_folders["llava"], tmp_path)
    probes = questions(shapes_items, DIES_AFTER)
    with Run(tmp_path) as run:
        options = StageOptions(progress=False, batch_size=4)
        with pytest.raises(PrerequisiteError, match=r"(?s)status 9.*illegal memory access"):
            ask(probes, model, run, shapes_store, options)
        n_answered = len(list(run.read(Response)))
        assert 0 < n_answered < DIES_AFTER
        assert list(run.read(Failure)) == [], "the batch in flight is asked again"


def test_what_cannot_be_served_is_refused(
    servers: VLLMServers,
    vllm: str,
    adapter: Path,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    tmp_path: Path,
) -> None:
    def refusal(**settings: Any) -> str:
        with pytest.raises((ConfigError, PrerequisiteError)) as raised:
            model = managed(servers, vllm, adapter, tmp_path, **settings)
            model.ask(questions(shapes_items), shapes_store)
        return str(raised.value)

    assert "rank 4, and max_lora_rank is None" in refusal(max_lora_rank=None)
    assert "no program '/no/such/vllm'" in refusal(executable="/no/such/vllm")
    assert not servers.folder.exists(), "nothing was started"


def test_weights_that_were_altered_since_are_refused(
    servers: VLLMServers, vllm: str, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    weights = ModelConfig(path=str(tiny_folders["llava"]))
    model = ManagedVLM(weights, VLLMConfig(executable=vllm), servers, tmp_path, "m", "as recorded")
    with pytest.raises(DataError, match="a file was altered"):
        model.check()


def test_pictures_that_a_server_would_crop_are_refused(
    servers: VLLMServers, vllm: str, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    engine = VLLMConfig(executable=vllm)
    weights = ModelConfig(path=str(tiny_folders["llava"]), image_padding="square")
    with pytest.raises(ConfigError, match="crops"):
        ManagedVLM(weights, engine, servers, tmp_path, "llava").check()


def test_letters_that_another_version_reads_differently_are_not_mixed(
    servers: VLLMServers, vllm: str, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    model = managed(servers, vllm, tiny_folders["llava"], tmp_path)
    record = tmp_path / "responses" / model.fingerprint / RECORD
    record.parent.mkdir(parents=True)
    old = [{"version": "0.9", "letters": "most likely", "can": ["choose", "generate"]}]
    record.write_text(json.dumps(old))
    with pytest.raises(PrerequisiteError, match=r"vLLM 0\.9, which reads letters by most likely"):
        model._record_server("1.0", "exact", model.can)
    model._record_server("1.0", "most likely", model.can)
    assert [used["version"] for used in model.servers_used] == ["0.9", "1.0"]
    model._record_server("1.0", "most likely", model.can)  # again
    assert len(model.servers_used) == 2


def test_the_command_line_says_what_is_configured() -> None:
    engine = VLLMConfig(
        executable="/opt/vllm/bin/vllm",
        max_length=4096,
        gpu_memory=0.8,
        tensor_parallel=2,
        arguments=("--enforce-eager",),
    )
    served = Served("org/model", "abc", "bfloat16", False, engine)
    words = "/opt/vllm/bin/vllm serve org/model --served-model-name base --dtype bfloat16"
    words += " --generation-config vllm --gpu-memory-utilization 0.8 --tensor-parallel-size 2"
    words += " --revision abc --max-model-len 4096 --enforce-eager"
    assert served.command == words.split()
    assert served.environment == {"VLLM_BATCH_INVARIANT": "0"}


@pytest.mark.parametrize(
    "model",
    [
        {"path": "shapes:llava", "engine": {"kind": "vllm", "max_lora_rank": 12}},
        {"path": "shapes:llava", "engine": {"kind": "vllm", "arguments": ["--port=1"]}},
        {"path": "shapes:llava", "engine": "sglang"},
        {"path": "shapes:llava", "engine": "vllm", "quantization": "4bit"},
        {"api": {"model": "x"}, "engine": "vllm"},
    ],
)
def test_contradictory_settings_are_refused(model: dict[str, Any]) -> None:
    settings = {"run": "r", "benchmark": {"format": "shapes"}, "models": {"m": model}}
    with pytest.raises(ConfigError, match=r"models\.m"):
        load_config(settings)


def test_an_engine_is_named_in_one_word() -> None:
    models = {"a": {"path": "x", "engine": "vllm"}, "b": {"path": "x", "engine": "transformers"}}
    found = load_config({"run": "r", "benchmark": {"format": "shapes"}, "models": models}).models
    assert (found["a"].engine, found["b"].engine) == (VLLMConfig(), None)
    with pytest.raises(ValidationError):
        VLLMConfig(parity=-1)
