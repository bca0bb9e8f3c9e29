"""Old import paths: each still imports its module for one version, with a ``DeprecationWarning``."""

from __future__ import annotations

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # typing's own costs the launcher of ``rung exec`` milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

#: Old module or package -> new one. A package's row covers what lies in it, unless that has a row of its own.
MOVED: dict[str, str] = {
    "rung.binaries.sections": "rung.binaries.heads",
    "rung.cli.explain_input": "rung.cli.input.log",
    "rung.cli.stdin": "rung.cli.input.stdin",
    "rung.cli.text_input": "rung.cli.input.text",
    "rung.cli.views.catalogue_page": "rung.cli.views.pages.catalog",
    "rung.cli.views.check_facts": "rung.cli.views.check.as_text",
    "rung.cli.views.check_html": "rung.cli.views.check.as_html",
    "rung.cli.views.check_models": "rung.cli.check_models",
    "rung.cli.views.check_text": "rung.cli.views.check.as_text",
    "rung.cli.views.device_screen": "rung.cli.views.devices",
    "rung.cli.views.device_verdict": "rung.cli.views.devices",
    "rung.cli.views.explain_html": "rung.cli.views.explain",
    "rung.cli.views.explain_text": "rung.cli.views.explain",
    "rung.cli.views.model_names_page": "rung.cli.views.pages.model_names",
    "rung.cli.views.progress": "rung.cli.views.output",
    "rung.cli.views.shown_answer": "rung.cli.views.check.shown",
    "rung.cli.views.shown_device": "rung.cli.views.devices",
    "rung.cli.views.wrap": "rung.cli.views.answer",
    "rung.conversion.folder_files": "rung.conversion.folder_config",
    "rung.conversion.measure": "rung.conversion.tensor_pieces",
    "rung.conversion.names": "rung.conversion.checkpoint_layouts",
    "rung.conversion.partial": "rung.conversion.resumable_writer",
    "rung.conversion.pieces": "rung.conversion.tokenizers.vocabulary",
    "rung.conversion.styles": "rung.conversion.checkpoint_layouts",
    "rung.conversion.tokenizer_json": "rung.conversion.tokenizers.tokenizer_json",
    "rung.conversion.vocabulary": "rung.conversion.tokenizers.vocabulary",
    "rung.core.dtypes": "rung.core.types",
    "rung.core.shown": "rung.core.value",
    "rung.diagnosis.binaries": "rung.binaries",
    "rung.diagnosis.binaries.sections": "rung.binaries.heads",
    "rung.diagnosis.certainty": "rung.diagnosis.model",
    "rung.diagnosis.companions": "rung.software.companions",
    "rung.diagnosis.default_commands": "rung.diagnosis.fixes.wording",
    "rung.diagnosis.fix_order": "rung.diagnosis.fixes.fix_order",
    "rung.diagnosis.fixing": "rung.diagnosis.fixes.fixing",
    "rung.diagnosis.helping": "rung.diagnosis.fixes.fixing",
    "rung.diagnosis.hosts": "rung.software.installed",
    "rung.diagnosis.judging": "rung.software.installed",
    "rung.diagnosis.locales": "rung.diagnosis.logs.log",
    "rung.diagnosis.log": "rung.diagnosis.logs.log",
    "rung.diagnosis.mentions": "rung.diagnosis.logs.mentions",
    "rung.diagnosis.programs": "rung.diagnosis.logs.programs",
    "rung.diagnosis.reading": "rung.diagnosis.logs.reading",
    "rung.diagnosis.redact": "rung.diagnosis.logs.redact",
    "rung.diagnosis.score": "rung.diagnosis.model",
    "rung.diagnosis.setup": "rung.software.setup",
    "rung.diagnosis.suited": "rung.diagnosis.fixes.suited",
    "rung.diagnosis.supplies": "rung.diagnosis.fixes.supplies",
    "rung.diagnosis.wording": "rung.diagnosis.fixes.wording",
    "rung.diagnosis.words": "rung.diagnosis.model",
    "rung.diagnosis.works": "rung.diagnosis.fixes.works",
    "rung.engine.borrowed": "rung.engine.transformers_decoder",
    "rung.engine.bound": "rung.engine.weight_loader",
    "rung.engine.cache": "rung.engine.scheduling.kv_cache",
    "rung.engine.calibrate": "rung.engine.calibration.importance",
    "rung.engine.calibrate_borrowed": "rung.engine.calibration.transformers",
    "rung.engine.calibrate_gpu": "rung.engine.calibration.gpu",
    "rung.engine.calibrate_models": "rung.engine.calibration.models",
    "rung.engine.chat_child": "rung.engine.chat.child",
    "rung.engine.stream": "rung.engine.generation",
    "rung.engine.system": "rung.engine.planning",
    "rung.engine.tokenizer": "rung.engine.tokenizers.tokenizer",
    "rung.engine.tokenizer_folder": "rung.engine.tokenizers.folder",
    "rung.engine.tokenizer_gguf": "rung.engine.tokenizers.gguf",
    "rung.engine.tokenizer_pieces": "rung.engine.tokenizers.pretokenizers",
    "rung.engine.tokenizer_pre": "rung.engine.tokenizers.pretokenizers",
    "rung.engine.tokenizer_spm": "rung.engine.tokenizers.gguf",
    "rung.exec.cuda_on_cpu.triton_hook": "rung.cli.exec_hooks",
    "rung.exec.defects": "rung.simulation.defects",
    "rung.formats.codebook4": "rung.formats.families.codebook4",
    "rung.formats.floats": "rung.formats.families.floats",
    "rung.formats.grades": "rung.formats.table",
    "rung.formats.grouped": "rung.formats.families.grouped",
    "rung.formats.iq": "rung.formats.families.iq",
    "rung.formats.iq4": "rung.formats.families.iq4",
    "rung.formats.kquants": "rung.formats.families.kquants",
    "rung.formats.kquants_encode": "rung.formats.families.kquants",
    "rung.formats.legacy": "rung.formats.families.legacy",
    "rung.formats.microscale": "rung.formats.families.microscale",
    "rung.formats.quality": "rung.formats.codec",
    "rung.formats.rowwise": "rung.formats.families.rowwise",
    "rung.formats.ternary": "rung.formats.families.ternary",
    "rung.hardware.catalog.builds": "rung.hardware.catalog.releases",
    "rung.hardware.catalog.doubts": "rung.hardware.catalog.support",
    "rung.hardware.catalog.own": "rung.hardware.catalog.make",
    "rung.hardware.families.known": "rung.hardware.families.from_catalog",
    "rung.hardware.families.pci": "rung.hardware.families.from_catalog",
    "rung.hardware.proofs": "rung.hardware.json_cache",
    "rung.hardware.remember": "rung.hardware.probe_cache",
    "rung.hub.attention": "rung.hub.networks.attention",
    "rung.hub.bitsandbytes.hook": "rung.cli.exec_hooks",
    "rung.hub.bitsandbytes.optimisers": "rung.hub.bitsandbytes.optimizers",
    "rung.hub.bitsandbytes.specs_hook": "rung.cli.exec_hooks",
    "rung.hub.conversions": "rung.hub.tensor_conversions",
    "rung.hub.gsplat": "rung.splats.gsplat",
    "rung.hub.gsplat_hook": "rung.cli.exec_hooks",
    "rung.hub.inputs": "rung.hub.networks.modules",
    "rung.hub.language": "rung.hub.networks.language",
    "rung.hub.model_page": "rung.hub.model_card",
    "rung.hub.modules": "rung.hub.networks.modules",
    "rung.hub.pages": "rung.hub.mmap_pages",
    "rung.hub.pipelines": "rung.hub.diffusers.pipelines",
    "rung.hub.quantised": "rung.hub.quantized",
    "rung.hub.stored": "rung.hub.quantized_layout",
    "rung.kernels.cpu.activations": "rung.kernels.cpu.gemm.product",
    "rung.kernels.cpu.arena": "rung.kernels.cpu.pack.packing",
    "rung.kernels.cpu.attention": "rung.kernels.cpu.decode.attention",
    "rung.kernels.cpu.codebook_blocks": "rung.kernels.cpu.pack.decoding_kernels",
    "rung.kernels.cpu.codebooks": "rung.kernels.cpu.pack.codebooks",
    "rung.kernels.cpu.decoding": "rung.kernels.cpu.pack.decoding",
    "rung.kernels.cpu.encode_blocks": "rung.kernels.cpu.encode.blocks",
    "rung.kernels.cpu.encode_iq4": "rung.kernels.cpu.encode.iq4",
    "rung.kernels.cpu.encode_kquants": "rung.kernels.cpu.encode.kquants",
    "rung.kernels.cpu.encode_minima": "rung.kernels.cpu.encode.minima",
    "rung.kernels.cpu.encode_rows": "rung.kernels.cpu.encode.rows",
    "rung.kernels.cpu.encode_searches": "rung.kernels.cpu.encode.searches",
    "rung.kernels.cpu.encoding": "rung.kernels.cpu.encode.encoding",
    "rung.kernels.cpu.float_rows": "rung.kernels.cpu.gemm.float_rows",
    "rung.kernels.cpu.gemm.linear": "rung.kernels.cpu.gemm.product",
    "rung.kernels.cpu.glue": "rung.kernels.cpu.decode.elementwise",
    "rung.kernels.cpu.group_blocks": "rung.kernels.cpu.pack.decoding_kernels",
    "rung.kernels.cpu.layouts": "rung.kernels.cpu.pack.layouts",
    "rung.kernels.cpu.likeness": "rung.kernels.cpu.splat.ssim",
    "rung.kernels.cpu.linear": "rung.kernels.cpu.gemm.product",
    "rung.kernels.cpu.low_rank": "rung.kernels.cpu.gemm.low_rank",
    "rung.kernels.cpu.many": "rung.kernels.cpu.decode.rows",
    "rung.kernels.cpu.pack.arena": "rung.kernels.cpu.pack.packing",
    "rung.kernels.cpu.pack.codebook_blocks": "rung.kernels.cpu.pack.decoding_kernels",
    "rung.kernels.cpu.pack.group_blocks": "rung.kernels.cpu.pack.decoding_kernels",
    "rung.kernels.cpu.pack_generic": "rung.kernels.cpu.pack.generic",
    "rung.kernels.cpu.pack_grids": "rung.kernels.cpu.pack.grids",
    "rung.kernels.cpu.pack_grouped": "rung.kernels.cpu.pack.grouped",
    "rung.kernels.cpu.pack_native": "rung.kernels.cpu.pack.native",
    "rung.kernels.cpu.packing": "rung.kernels.cpu.pack.packing",
    "rung.kernels.cpu.parallel": "rung.kernels.cpu.thread_pool",
    "rung.kernels.cpu.product": "rung.kernels.cpu.gemm.product",
    "rung.kernels.cpu.row_errors": "rung.kernels.cpu.pack.row_errors",
    "rung.kernels.cpu.splat.harmonics": "rung.kernels.cpu.splat.shape",
    "rung.kernels.cpu.splat_colors": "rung.kernels.cpu.splat.colors",
    "rung.kernels.cpu.splat_harmonics": "rung.kernels.cpu.splat.shape",
    "rung.kernels.cpu.splat_project": "rung.kernels.cpu.splat.projection",
    "rung.kernels.cpu.splat_shape": "rung.kernels.cpu.splat.shape",
    "rung.kernels.cpu.splat_tiles": "rung.kernels.cpu.splat.tiles",
    "rung.kernels.cpu.step": "rung.kernels.cpu.decode.step",
    "rung.kernels.cpu.step_program": "rung.kernels.cpu.decode.step_program",
    "rung.kernels.cpu.team": "rung.kernels.cpu.thread_pool",
    "rung.kernels.cpu.unit": "rung.kernels.cpu.gemm.microkernel",
    "rung.kernels.simd": "rung.kernels.isa",
    "rung.kernels.simd.isa": "rung.kernels.isa.probes",
    "rung.models.adapter": "rung.models.adapters.adapter",
    "rung.models.adapter_roles": "rung.models.adapters.roles",
    "rung.models.arch": "rung.models.architectures",
    "rung.models.cards.folder_weights": "rung.models.cards.folder",
    "rung.models.files.arrays": "rung.models.files.gguf",
    "rung.models.files.foreign": "rung.models.files.file_sniffing",
    "rung.models.files.gguf_far": "rung.models.files.gguf_remote",
    "rung.models.files.gguf_write": "rung.models.files.gguf",
    "rung.models.files.safetensors_write": "rung.models.files.safetensors",
    "rung.models.files.shards": "rung.models.files.safetensors",
    "rung.models.files.split": "rung.models.files.gguf",
    "rung.models.folder_card": "rung.models.cards.folder",
    "rung.models.folder_weights": "rung.models.cards.folder",
    "rung.models.footprint": "rung.models.decoder_memory",
    "rung.models.gguf_card": "rung.models.cards.gguf",
    "rung.models.hub_ranges": "rung.models.hub.ranges",
    "rung.models.network_card": "rung.models.cards.folder",
    "rung.models.outlines": "rung.models.networks",
    "rung.models.outlines.bert": "rung.models.networks.encoders.bert",
    "rung.models.outlines.clip": "rung.models.networks.encoders.clip",
    "rung.models.outlines.decoders": "rung.models.networks.text.dense",
    "rung.models.outlines.deepseek": "rung.models.networks.text.experts",
    "rung.models.outlines.diffusion": "rung.models.networks.diffusion.common",
    "rung.models.outlines.experts": "rung.models.networks.text.experts",
    "rung.models.outlines.pictures": "rung.models.networks.diffusion.transformers",
    "rung.models.outlines.quantised": "rung.models.networks.component",
    "rung.models.outlines.t5": "rung.models.networks.encoders.t5",
    "rung.models.outlines.unet": "rung.models.networks.diffusion.unet",
    "rung.models.outlines.usual": "rung.models.networks.pipeline",
    "rung.models.outlines.vae": "rung.models.networks.diffusion.vae",
    "rung.models.outlines.video": "rung.models.networks.diffusion.transformers",
    "rung.models.outlines.video_vae": "rung.models.networks.diffusion.vae",
    "rung.models.outlines.whisper": "rung.models.networks.encoders.whisper",
    "rung.models.quantised": "rung.models.checkpoints",
    "rung.models.quantised.own": "rung.models.checkpoints.rung_folder",
    "rung.models.resume": "rung.models.hub.resume",
    "rung.models.scales": "rung.models.reader",
    "rung.models.store.index": "rung.models.store.wheels",
    "rung.nn.bound": "rung.nn.quantized.binding",
    "rung.nn.growing": "rung.splats.training.strategies",
    "rung.nn.packed": "rung.nn.quantized.packed",
    "rung.nn.product": "rung.nn.quantized.matmul",
    "rung.nn.quantise": "rung.nn.quantize",
    "rung.nn.splatting": "rung.splats.rasterize",
    "rung.nn.state8": "rung.nn.stepping",
    "rung.nn.weight": "rung.nn.quantized.weight",
    "rung.ops.decode_step.block": "rung.ops.decode_step.network",
    "rung.ops.decode_step.glue": "rung.ops.decode_step.network",
    "rung.pipelines.asking": "rung.pipelines.validate",
    "rung.pipelines.calls": "rung.pipelines.execute",
    "rung.pipelines.locating": "rung.pipelines.folders",
    "rung.pipelines.perform": "rung.pipelines.execute",
    "rung.pipelines.rehearse": "rung.pipelines.trace",
    "rung.planning.answer": "rung.planning.check_result",
    "rung.planning.answers.speeds": "rung.planning.answers.values",
    "rung.planning.arrange": "rung.planning.placement",
    "rung.planning.devices": "rung.planning.memory",
    "rung.planning.error": "rung.planning.weight_plan",
    "rung.planning.kitchen": "rung.planning.weight_plan_cache",
    "rung.planning.largest": "rung.planning.answers.recommend",
    "rung.planning.mixture": "rung.planning.gguf_mixtures",
    "rung.planning.optimizers": "rung.planning.training",
    "rung.planning.phase_check": "rung.planning.pipeline",
    "rung.planning.phases": "rung.planning.pipeline",
    "rung.planning.pipeline_check": "rung.planning.pipeline",
    "rung.planning.recipe": "rung.planning.weight_plan",
    "rung.planning.recommend": "rung.planning.answers.recommend",
    "rung.planning.relax": "rung.planning.answers.suggestions",
    "rung.planning.splat_check": "rung.splats.planning.check",
    "rung.planning.splat_costs": "rung.splats.planning.costs",
    "rung.planning.splats": "rung.splats.planning",
    "rung.planning.subject": "rung.planning.network_spec",
    "rung.planning.suggestions": "rung.planning.answers.suggestions",
    "rung.planning.time": "rung.planning.speed",
    "rung.run.apart": "rung.run.precompile",
    "rung.run.bind": "rung.run.binding",
    "rung.run.child": "rung.run.worker",
    "rung.run.compare": "rung.ops.proof",
    "rung.run.encoder_check": "rung.run.self_check.encoders",
    "rung.run.encoders": "rung.run.self_check.encoders",
    "rung.run.exec": "rung.exec",
    "rung.run.exec.lower": "rung.exec.fallbacks",
    "rung.run.exec.notes": "rung.exec.report",
    "rung.run.exec.steps": "rung.exec.step_down",
    "rung.run.places": "rung.run.torch_device",
    "rung.run.rasterizer_check": "rung.splats.training.view_check",
    "rung.run.self_check.cases": "rung.ops.proof",
    "rung.run.self_check.model": "rung.ops.decode_step.self_check",
    "rung.run.self_check.rasterizer": "rung.splats.training.view_check",
    "rung.run.self_check_cases": "rung.ops.proof",
    "rung.run.self_check_model": "rung.ops.decode_step.self_check",
    "rung.run.selfcheck": "rung.run.self_check",
    "rung.run.simulate": "rung.simulation",
    "rung.run.simulate.autocast": "rung.simulation.torch_api.autocast",
    "rung.run.simulate.card": "rung.simulation.cards",
    "rung.run.simulate.compiling": "rung.simulation.dispatch.patches",
    "rung.run.simulate.dispatch": "rung.simulation.dispatch.dispatcher",
    "rung.run.simulate.factories": "rung.simulation.torch_api.tensors",
    "rung.run.simulate.generators": "rung.simulation.torch_api.generators",
    "rung.run.simulate.graphs": "rung.simulation.torch_api.streams",
    "rung.run.simulate.host_key": "rung.simulation.dispatch.dispatch_hook",
    "rung.run.simulate.legacy": "rung.simulation.torch_api.tensors",
    "rung.run.simulate.monitoring": "rung.simulation.dispatch.threads_py312",
    "rung.run.simulate.operations": "rung.simulation.dispatch.dispatcher",
    "rung.run.simulate.patches": "rung.simulation.dispatch.patches",
    "rung.run.simulate.placement": "rung.simulation.torch_api.placement",
    "rung.run.simulate.remembered": "rung.simulation.dispatch.patches",
    "rung.run.simulate.seeing": "rung.simulation.dispatch.dispatch_hook",
    "rung.run.simulate.serialization": "rung.simulation.torch_api.storages",
    "rung.run.simulate.states": "rung.simulation.dispatch.threads_py311",
    "rung.run.simulate.storages": "rung.simulation.torch_api.storages",
    "rung.run.simulate.streams": "rung.simulation.torch_api.streams",
    "rung.run.simulate.tensors": "rung.simulation.torch_api.tensors",
    "rung.run.simulate.threads": "rung.simulation.dispatch.threads",
    "rung.run.simulate.world": "rung.simulation.simulation",
    "rung.run.tiny": "rung.ops.decode_step.self_check",
    "rung.run.viewed": "rung.splats.training.view_check",
    "rung.simulation.properties": "rung.simulation.queries",
    "rung.splats.drawing": "rung.splats.render",
    "rung.splats.editing": "rung.splats.edit",
    "rung.splats.evaluating": "rung.splats.evaluate",
    "rung.splats.exporting": "rung.splats.export",
    "rung.splats.files.clustering": "rung.splats.files.packing",
    "rung.splats.files.compressed_ply": "rung.splats.files.ply",
    "rung.splats.files.ply_header": "rung.splats.files.ply",
    "rung.splats.naming": "rung.splats.render",
    "rung.splats.rendering": "rung.splats.render",
    "rung.splats.scenes.neighbours": "rung.splats.scenes.sfm",
    "rung.splats.scenes.points": "rung.splats.scenes.colmap",
    "rung.splats.scenes.split": "rung.splats.photographs",
    "rung.splats.training.adc": "rung.splats.training.strategies",
    "rung.splats.training.beginning": "rung.splats.training.initialization",
    "rung.splats.training.classic": "rung.splats.training.strategies",
    "rung.splats.training.corrections": "rung.splats.training.model",
    "rung.splats.training.eight": "rung.splats.training.adam_8bit",
    "rung.splats.training.mcmc": "rung.splats.training.strategies",
    "rung.splats.training.outcome": "rung.splats.training.folder",
    "rung.splats.training.schedule": "rung.splats.training.settings",
    "rung.splats.training.start": "rung.splats.training.initialization",
    "rung.splats.training.stereo": "rung.splats.training.initialization",
    "rung.splats.training.world": "rung.splats.training.normalization",
    "rung.training.base": "rung.training.setup",
    "rung.training.curve": "rung.measure.curves",
    "rung.training.tokens": "rung.training.data",
}


def new_name(name: str, rows: dict[str, str] = MOVED) -> str | None:
    """Return where the module ``name`` is now, or None if it did not move.

    >>> new_name("rung.engine.bound"), new_name("rung.run.simulate.streams"), new_name("rung.core.errors")
    ('rung.engine.weight_loader', 'rung.simulation.torch_api.streams', None)
    """
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        head = ".".join(parts[:length])
        if head in rows:
            return ".".join([rows[head], *parts[length:]])
    return None


class _Alias:
    """Loads an old name as the module with the new name: one module, not a copy."""

    def __init__(self, new: str) -> None:
        self.new = new
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.new)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # the import system has just set that of the old name


class _MovedFinder:
    """Finds old names. At the end of ``sys.meta_path``: what ``from OLD_PACKAGE import MODULE`` asks a package for."""

    def __init__(self, rows: Callable[[], dict[str, str]]) -> None:
        self.rows = rows

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = new_name(fullname, self.rows()) if fullname.startswith("rung.") else None
        if new is None:
            return None
        warnings.warn(f"{fullname} is {new} now; the old path goes in 0.3", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(new))  # type: ignore[arg-type]  # a Loader by its methods


def _in_new_packages() -> dict[str, str]:
    """Return the modules that left their package for another one, by the name that they would have in the new one."""
    parents = {old.rpartition(".")[0] for old in MOVED}
    packages = {old: new for old, new in MOVED.items() if old in parents}
    return {
        packages[old.rpartition(".")[0]] + "." + old.rpartition(".")[2]: new
        for old, new in MOVED.items()
        if old.rpartition(".")[0] in packages
    }


def install() -> None:
    """Let old paths be imported. ``import rung`` calls this once."""
    if not any(isinstance(finder, _MovedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _MovedFinder(lambda: MOVED))
        sys.meta_path.append(_MovedFinder(_in_new_packages))
