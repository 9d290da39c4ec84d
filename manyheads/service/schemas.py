"""Schemas of HTTP requests and responses, used for validation and for the OpenAPI document.

The schemas use pydantic, because it validates unions of nested lists directly from JSON bytes, names the invalid field,
and generates the matching JSON schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from manyheads.errors import UserError
from manyheads.files import JsonObject

MAX_TEXTS = 128  # maximum number of texts in a request
MAX_IMAGES = 32  # maximum number of images in a request
MAX_CHOICES = 16  # maximum number of completions for each prompt
MAX_LOGPROBS = 20  # maximum number of likeliest tokens that are listed for each token of a completion
# maximum of `top` times the total number of characters in a request to fill masks, to limit the size of the response
MAX_FILLED = 5_000_000
MAX_SEED = 2**63 - 1

Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_TEXTS)]
Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)]
AttentionText = Annotated[str, Field(min_length=1, max_length=8000)]
Top = Annotated[int, Field(ge=1, le=1000, description="number of results, likeliest first")]
Truncate = Annotated[
    bool, Field(description="cut texts that are longer than the model's limit, instead of rejecting them")
]
ModelName = Annotated[str | None, Field(description="optional if only one model of the service supports the request")]


class Body(BaseModel):
    """Base class of request schemas. Unknown fields in a request are an error."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class KeyedBody(Body):
    """Base class of request schemas of LibreTranslate, whose clients send the access token in the request."""

    api_key: str | None = None


class Answer(BaseModel):
    """Base class of response schemas."""


def _check_temperature(value: float | None) -> float | None:
    if value is not None and 0 < value < 1e-3:
        raise UserError("expected 0, or a number from 0.001 to 2")
    return value


def _check_unsupported(value: object) -> None:
    """Raise UserError for a value of an unsupported field, except for neutral values, which clients send by default."""
    if value not in (None, 0, "", {}):
        raise UserError("is not supported: leave this field out")


Unsupported = Annotated[object, AfterValidator(_check_unsupported)]


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CompletionRequest(Body):
    """Request for text completion in OpenAI's format.

    With `echo`, `max_tokens` may be 0. The response then contains only the prompt, for example with its
    log-probabilities.
    """

    model: str
    prompt: str | Texts | Tokens | Annotated[list[Tokens], Field(min_length=1, max_length=MAX_TEXTS)] = ""
    max_tokens: Annotated[int | None, Field(ge=0, le=100_000)] = 16
    temperature: Annotated[float | None, Field(ge=0, le=2), AfterValidator(_check_temperature)] = 1.0
    top_p: Annotated[float | None, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int | None, Field(ge=1, le=2**31)] = None
    repetition_penalty: Annotated[float | None, Field(ge=1e-3, le=1e3)] = 1.0
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES)] = 1
    stop: (
        Annotated[str, Field(min_length=1, max_length=1000)]
        | Annotated[list[Annotated[str, Field(min_length=1, max_length=1000)]], Field(max_length=4)]
        | None
    ) = None
    seed: Annotated[int | None, Field(ge=0, le=MAX_SEED)] = None
    echo: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    best_of: Literal[1] | None = None
    suffix: Unsupported = None
    logit_bias: Unsupported = None
    presence_penalty: Unsupported = None
    frequency_penalty: Unsupported = None


class ChatRequest(Body):
    """Request for a chat in OpenAI's format. The service refuses it, because its models have no chat format."""

    model_config = ConfigDict(extra="allow")


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int


class LogProbabilities(Answer):
    """Tokens of a completion, each with its log-probability, the likeliest tokens, and its offset in the text.

    Nothing precedes the first token of an echoed prompt, so it has no log-probability.
    """

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def add(self, token: str, value: float | None, best: dict[str, float] | None, offset: int) -> None:
        self.tokens.append(token)
        self.token_logprobs.append(value)
        self.top_logprobs.append(best)
        self.text_offset.append(offset)


class Choice(Answer):
    text: str
    index: int
    logprobs: LogProbabilities | None = None
    finish_reason: Literal["stop", "length"] | None = None


class Completion(Answer):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class ModelCard(Answer):
    """Description of a model that the service offers.

    verbs      names of the commands that the model supports
    attends    true if the route /attend can return the model's attention maps
    pairs      true if the model classifies pairs of texts
    languages  source and target language of a translator
    mask       mask token that the model replaces by a word
    threshold  minimum probability of a predicted label, for a multi-label model: one number, or a number by label
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "manyheads"
    verbs: list[str]
    attends: bool
    reads: Literal["texts", "images"]
    pairs: bool = False
    labels: list[str] = []
    languages: list[str] | None = None
    mask: str | None = None
    threshold: float | dict[str, float] | None = None


class ModelList(Answer):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TranslateRequest(KeyedBody):
    """Request for translation in LibreTranslate's format, with an additional field `truncate`.

    Each line of the text is translated separately. In HTML, each text between tags is translated.
    """

    q: str | Texts
    source: str = "auto"
    target: str
    format: Literal["text", "html"] | None = "text"
    alternatives: Annotated[int | None, Field(ge=0, le=10)] = 0
    truncate: Truncate = False


class DetectRequest(KeyedBody):
    q: str


class LanguagesRequest(KeyedBody):
    pass


class FrontendSettings(Answer):
    """Settings that LibreTranslate's web page and browser extensions request."""

    apiKeys: bool
    charLimit: int
    frontendTimeout: int = 500
    keyRequired: bool
    language: JsonObject
    suggestions: bool = False
    supportedFilesFormat: list[str] = []


class Detected(Answer):
    """Detected language of a text, with the confidence in percent."""

    confidence: float
    language: str


class Translated(Answer):
    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


class Language(Answer):
    code: str
    name: str
    targets: list[str]


class ClassifyRequest(Body):
    """Request to classify texts, pairs of texts, or images. An image is a file encoded in base64.

    The result for an item is a list of labels with probabilities. For a model that predicts a number, the result is an
    object with the field `value`.

    top        number of labels to return. By default, one label; for a multi-label model, all labels above the
               threshold
    threshold  minimum probability of a label, for a multi-label model. By default, the threshold of the model
    """

    model: ModelName = None
    texts: Texts | None = None
    pairs: Texts | None = None
    images: Annotated[list[str], Field(min_length=1, max_length=MAX_IMAGES)] | None = None
    top: Top | None = None
    threshold: Annotated[float | None, Field(ge=0, le=1)] = None
    truncate: Truncate = False


class ObjectsRequest(Body):
    """Request to find the objects in images, which are files encoded in base64.

    The result for an image is a list of objects with label, score, and the edges of the box in pixels.

    threshold  minimum score of an object
    """

    model: ModelName = None
    images: Annotated[list[str], Field(min_length=1, max_length=MAX_IMAGES)]
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5


class TagRequest(Body):
    model: ModelName = None
    texts: Texts


class FillRequest(Body):
    model: ModelName = None
    texts: Texts
    top: Top = 5


class AnswerRequest(Body):
    """Question with its context, or a list of questions with a list of their contexts or one context for all.

    For a list, the results have a list of answers for each question.
    """

    model: ModelName = None
    question: str | Texts
    context: str | Texts
    nbest: Annotated[int, Field(ge=1, le=100)] = 1
    max_answer: Annotated[int, Field(ge=1, le=1000)] = 30
    null_threshold: Annotated[float | None, Field(ge=-1e9, le=1e9)] = None


class NBestRequest(Body):
    model: ModelName = None
    texts: Texts
    beam: Annotated[int | None, Field(ge=1, le=16)] = None
    alpha: Annotated[float | None, Field(ge=0, le=10)] = None
    count: Annotated[int, Field(ge=1, le=16)] = 1
    truncate: Truncate = False


class AttendRequest(Body):
    """Request for the attention maps of one input: a text, or an image file encoded in base64.

    pair    second text of a pair, or the context of a question
    target  translation of the text, for a translator. By default, the model translates the text
    """

    model: str
    text: AttentionText | None = None
    pair: AttentionText | None = None
    target: AttentionText | None = None
    image: str | None = None


class Next(Answer):
    token: str
    probability: float


class Attended(Answer):
    """Attention maps of an input.

    panel  attention maps in the data format that the scripts of the web page read
    next   likeliest next tokens, for a language model
    """

    model: str
    panel: JsonObject
    next: list[Next] | None = None


class RunCard(Answer):
    """Description of a training run.

    finished  true if training is finished
    seconds   time since the last entry of metrics.jsonl, in seconds; null if there is no entry yet
    """

    name: str
    finished: bool
    seconds: float | None


class RunList(Answer):
    runs: list[RunCard]


class Curve(Answer):
    """Learning curve of a metric: values and their training steps, in order. Long curves have fewer points."""

    metric: str
    split: Literal["training", "validation"]
    steps: list[int]
    values: list[float]


class Curves(RunCard):
    curves: list[Curve]


class Results(Answer):
    """Results for each text of a request, in the order of the request."""

    model: str
    results: Sequence[object]


class Health(Answer):
    status: Literal["ok"]
    models: list[str]
