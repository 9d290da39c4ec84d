"""Predictor for an architecture that Manyheads does not build: maps, lens and explanations through `transformers`.

The library builds the model and runs it with eager attention. Maps are its output `attentions`, and states are its
output `hidden_states`. Nothing but tensors is loaded: Manyheads reads config.json and the safetensors files itself, and
passes their content to the library, which opens no file and no network connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from inspect import signature
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from manyheads import directory
from manyheads.analysis.lens import LayerStates, Lens
from manyheads.analysis.maps import AttentionMaps, Layer, Side
from manyheads.analysis.maps.layers import known_axis
from manyheads.analysis.maps.recording import select_indices, to_indices
from manyheads.analysis.readout import Names, Readout
from manyheads.calls import checked_methods
from manyheads.core.config import TargetKind
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError, extra, shown
from manyheads.files import read_json
from manyheads.interop.tokenizer import MASKS, TOKENIZER_CONFIG, TOKENIZERS, read_tokenizers
from manyheads.interop.weights import read_safe
from manyheads.tasks.explaining import ExplainsTexts
from manyheads.tasks.predictor import ModelWithTokenizer
from manyheads.tasks.tokenized_text import SHORTEN, tokenized, tokenized_ids

# settings of models that are refused, and their meaning; the library downloads kernels for some quantized weights
REFUSED = {"auto_map": "code from the directory", "quantization_config": "quantized weights"}
# axis of attention maps -> name of the library's output
ENCODER_DECODER = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
MAX_WRITTEN = 64  # maximum number of tokens that an encoder-decoder writes, without a given target


class _Input(NamedTuple):
    """Arguments of the model, the names of the tokens of its encoder and of its decoder, and a title."""

    arguments: dict[str, Tensor]
    source: Side
    target: Side
    title: str


class _Logits(nn.Module):
    """Model of the library whose only output is the logits.

    pad  id of the padding token, or None
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.pad = model, model.config.pad_token_id

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(ids).logits
        return logits


@checked_methods
class TransformersPredictor(ExplainsTexts, ModelWithTokenizer[Any]):
    """Predictor for a model of `transformers`, with attention maps, a logit lens and explanations by gradients."""

    verbs: ClassVar = ("attend", "lens", "explain")
    labels: Sequence[object] = ()

    @property
    def supported(self) -> tuple[str, ...]:
        lens, single = self.model.get_output_embeddings() is not None, not self.model.config.is_encoder_decoder
        return ("attend", *["lens"] * lens, *["explain"] * single)

    @property
    def _max_tokens(self) -> int | None:
        limit = getattr(self.model.config, "max_position_embeddings", None)  # Relative positions have no limit.
        return limit if isinstance(limit, int) and limit > 0 else None

    def attend(
        self, text: str, pair: str | None = None, *, target: str | None = None, layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None, axis: str | None = None, truncate: bool = False,
    ) -> AttentionMaps:  # fmt: skip
        """Return the attention weights of every head in every layer, as the library returns them.

        target         output of an encoder-decoder. By default, it writes at most 64 tokens
        layers, heads  indices of the layers and heads to return, None for all
        axis           kind of attention to return. By default, all kinds are returned
        truncate       true: cut a text that is longer than the model's limit

        Raises UserError for a model that returns no attention weights between tokens.
        """
        given = self._input(text, pair, target, truncate)
        output = self._run(given.arguments, output_attentions=True)
        names = ENCODER_DECODER if self.model.config.is_encoder_decoder else {"self": "attentions"}
        chosen = [*names] if axis is None else [known_axis(axis, names, str(self.path))]
        axes = {}
        for each in chosen:
            maps, sides = output.get(names[each]) or (), (given.target, given.source)
            numbers = range(len(maps)) if layers is None else to_indices("layers", layers) or ()
            selected = select_indices(f"{each} layer", numbers, range(len(maps)))
            queries, keys = sides[each == "encoder"], sides[each != "decoder"]
            axes[each] = [self._layer(f"{names[each]}.{at}", at, maps[at], queries, keys, heads) for at in selected]
        if not any(axes.values()):
            raise UserError(f"{self.path}: {type(self.model).__name__} returns no attention weights")
        causal = type(self.model).__name__.endswith("ForCausalLM")
        stepwise = ("decoder", "cross") if self.model.config.is_encoder_decoder else ("self",) * causal
        return AttentionMaps(axes, str(self.path), given.title, None, tuple(name for name in stepwise if name in axes))

    def _layer(
        self, name: str, number: int, weights: Tensor | None, queries: Side, keys: Side, heads: Sequence[int] | None
    ) -> Layer:
        if weights is None or weights.dim() != 4 or weights.shape[2:] != (len(queries), len(keys)):
            raise UserError(f"{self.path}: {name} has no weights between all tokens: select other layers (--layers)")
        every = range(weights.shape[1])
        selected = select_indices("head", every if heads is None else to_indices("heads", heads) or (), every)
        return Layer(name, number, weights[:, selected].float().cpu().numpy(), tuple(selected), queries, keys)

    def lens(
        self, text: str, pair: str | None = None, *, target: str | None = None, top: int = 5, truncate: bool = False
    ) -> Lens:
        """Return the logit lens: the words that each layer would predict at each position.

        The model's own head turns the states into words, after the final norm, if the model has one outside its layers.
        The model runs once for each layer.

        target    output of an encoder-decoder, whose decoder is read. By default, it writes at most 64 tokens
        top       number of words for each layer and position, likeliest first, at most 1000
        truncate  true: cut a text that is longer than the model's limit

        Raises UserError for a model whose logits are not a function of the last layer's states.
        """
        if "lens" not in self.supported:
            raise UserError(f"{self.path}: {type(self.model).__name__} predicts no words, so it has no lens")
        given = self._input(text, pair, target, truncate)
        with self.compute.autocast():
            states = self._states(given.arguments)
            return Lens.of(states, str(self.path), given.title, given.target.tokens, self._words().name, top)

    def readout(self, text: str, *, truncate: bool = False) -> Readout:
        """Return the prediction for a text: its label, the first masked word, or the token that follows it.

        Raises UserError for an encoder-decoder, and for a model with another prediction.
        """
        kind = type(self.model).__name__
        if "explain" not in self.supported:
            raise UserError(f"{self.path}: {kind} has two inputs: explanations need a model with one")
        given = self._input(text, None, None, truncate)
        ids, config = given.arguments["input_ids"], self.model.config
        names, position = self._words(), None
        target: TargetKind = "classes"
        if kind.endswith("ForSequenceClassification"):
            names = Names.of_labels([config.id2label[index] for index in range(config.num_labels)])
            several = config.problem_type == "multi_label_classification"
            target = "regression" if config.num_labels == 1 else "multi-label" if several else "classes"
        elif kind.endswith("ForMaskedLM"):
            position = next((at for at, token in enumerate(given.source.tokens) if token in MASKS), None)
            if position is None:
                raise UserError(f"the text has no mask: write {' or '.join(MASKS)} in place of the word to predict")
        elif "lens" in self.supported:
            position = ids.shape[1] - 1
        else:
            raise UserError(f"{self.path}: {kind} predicts neither a label nor a word")
        embedding, shapes = self.model.get_input_embeddings(), list[torch.Size]()
        with _hooks([embedding], lambda module, read, out: shapes.append(out.shape[:2])):
            self._run(given.arguments)
        if shapes != [ids.shape]:
            raise UserError(f"{self.path}: explanations need a model that embeds the tokens once, in their order")
        return Readout(
            _Logits(self.model), (ids,), lambda logits: logits if position is None else logits[:, position], names,
            position, given.source, str(self.path), given.title, None, target, embedding,
        )  # fmt: skip

    def _states(self, arguments: Mapping[str, Tensor]) -> LayerStates:
        """Return the states of all layers, with a function to logits that replaces the states below the head."""
        body: nn.Module = self.model.get_decoder()
        norms: list[tuple[nn.Module, Tensor, Tensor]] = []
        outside = [
            module for name, module in body.named_modules()
            if "norm" in type(module).__name__.lower() and not any(map(str.isdigit, name.split(".")))
        ]  # fmt: skip
        with _hooks(outside, lambda module, given, out: norms.append((module, given[0], out))):
            output = self._run(arguments, output_hidden_states=True)
        states = output.decoder_hidden_states if self.model.config.is_encoder_decoder else output.hidden_states
        normed = [(module, before) for module, before, after in norms if torch.equal(after, states[-1])]
        norm: nn.Module = nn.Identity()
        if normed:
            norm, before = normed[-1]
            states = (*states[:-1], before)

        def logits(state: Tensor) -> Tensor:
            def replace(module: nn.Module, given: tuple[Any, ...], out: Any) -> Any:
                out["last_hidden_state"] = norm(state)
                return out

            with _hooks([body], replace):
                found: Tensor = self._run(arguments).logits
            return found

        # Some models change the states between the layers and the head, or do not return all of them.
        whole = len({state.shape for state in states}) == 1 and not torch.equal(*states[-2:])
        last, other = (logits(state) for state in (states[-1], 0 * states[-1]))
        if not (whole and torch.allclose(last, output.logits, 1e-3, 1e-4)) or torch.equal(last, other):
            raise UserError(
                f"{self.path}: the lens needs the embeddings and the states of all layers, and logits that follow from "
                f"the last states, which {type(self.model).__name__} does not return"
            )
        return LayerStates(list(states), logits)

    def _input(self, text: str, pair: str | None, target: str | None, truncate: bool) -> _Input:
        """Return the model's arguments for a text. An encoder-decoder without a target writes it."""
        limit, decodes = self._max_tokens, self.model.config.is_encoder_decoder
        if target is not None and not decodes:
            raise UserError(f"{self.path}: target (--target) applies to encoder-decoders")
        source = tokenized(self.tokenizer, text, pair, max_tokens=limit, truncate=truncate)
        output = source if target is None else tokenized(self.tokenizer, target, max_tokens=limit, truncate=truncate)
        if (longest := max(len(source.ids), len(output.ids))) > (limit or longest):
            raise UserError(f"the text has {longest:,} tokens, the model takes {limit:,}: {SHORTEN}")
        arguments = {"input_ids": torch.tensor([source.ids], device=self.compute.device)}
        if any(source.segments) and "token_type_ids" in signature(self.model.forward).parameters:
            arguments["token_type_ids"] = torch.tensor([source.segments], device=self.compute.device)
        title = text if pair is None else f"{text} | {pair}"
        if decodes:
            if target is None:
                room = min(MAX_WRITTEN, limit or MAX_WRITTEN)
                written = self._run(arguments, self.model.generate, max_new_tokens=room, do_sample=False)
                output = tokenized_ids(self.tokenizer, written[0, 1:].tolist())
                target = self.tokenizer.decode(output.ids)
            start, title = self.model.config.decoder_start_token_id, f"{title} → {target}"
            arguments["decoder_input_ids"] = torch.tensor([[start, *output.ids[:-1]]], device=self.compute.device)
        return _Input(arguments, source.side, output.side, title)

    def _run(self, arguments: Mapping[str, Tensor], function: Callable[..., Any] | None = None, **options: Any) -> Any:
        try:
            with torch.no_grad(), self.compute.autocast():
                return (function or self.model)(**arguments, **options)
        except (IndexError, TypeError, ValueError) as error:  # For example, a model that needs an image, too.
            raise UserError(f"{self.path}: {type(self.model).__name__} cannot read this text: {error}") from None


@contextmanager
def _hooks(modules: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Call a function with the module, its arguments and its output while the `with` block runs."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def load_foreign(
    source: str | Path, unknown: directory.UnknownArchitecture, compute: ComputeConfig
) -> TransformersPredictor:
    """Load a model directory, or `hub:OWNER/NAME`, of an architecture that `transformers` builds.

    unknown  error to raise for an architecture that the library does not know either

    Raises UserError for a directory without safetensors, with code, or with quantized weights, and MissingExtra without
    the library.
    """
    path = directory.resolve(source, known=False)
    settings = read_json(path / directory.CONFIG, "copy or save the model again")
    for name, what in REFUSED.items():
        if name in settings:
            raise UserError(f"{path / directory.CONFIG}: {name!r} asks for {what}: expected a model without it")
    directory.check_weight_files(path, source)
    kind, architectures = settings["model_type"], settings.get("architectures")
    with extra("export", f"{path}: a model of type {kind!r}"):
        import transformers
    # The library exports one class for each architecture, under the name in config.json.
    name = architectures[0] if isinstance(architectures, list) and architectures else ""
    built = getattr(transformers, str(name), None)
    builds = isinstance(built, type) and issubclass(built, transformers.PreTrainedModel)
    if built is None or not builds or kind not in transformers.CONFIG_MAPPING:
        raise unknown
    tensors = read_safe(path)
    try:
        with redirect_stderr(StringIO()):  # without a progress bar
            config = transformers.CONFIG_MAPPING[kind].from_dict(_without_code(settings))
            model, report = built.from_pretrained(
                None, config=config, state_dict=tensors, attn_implementation="eager", dtype=torch.float32,
                output_loading_info=True,
            )  # fmt: skip
    except Exception as error:  # The library may raise any exception for a configuration that it cannot build.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path}: transformers cannot build this model: {reason}") from None
    if missing := sorted({*report["missing_keys"], *map(str, report["mismatched_keys"])}):
        raise UserError(f"{path}: {directory.CONFIG} and the weights do not match: expected {shown(missing)}")
    about = path / TOKENIZER_CONFIG
    size = model.get_input_embeddings().num_embeddings
    tokenizers = read_tokenizers(
        path, kind, [TOKENIZERS[0]], read_json(about, "") if about.is_file() else None,
        settings.get("tokenizer_class"), (size, size),
    )  # fmt: skip
    return TransformersPredictor(directory.Loaded(model, tokenizers.source, None, kind, path), compute)


def _without_code(settings: Any) -> Any:
    """Return settings without the names of implementations, which the library would download."""
    if not isinstance(settings, dict):
        return settings
    return {name: _without_code(value) for name, value in settings.items() if not name.endswith("_implementation")}
