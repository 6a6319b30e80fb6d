"""How a call with inputs looks, before and after: reading them, merging those of several calls, splitting the answer.

Example::

    form = PRESETS["openai"]
    inputs = form.read(b'{"model": "m", "input": ["a", "b"]}')
    inputs.items                          # (Raw(b'"a"'), Raw(b'"b"'))
    inputs.rest                           # b'{"model":"m"}': equal for calls that differ only in their inputs
    body = inputs.body([*inputs.items, *others.items])
    answer = form.split(answered, count=3)            # one part for each input, in the order of the inputs
    form.build(answer.envelope, answer.parts[:2], answer.usages([1, 1, 5])[0])

Rules of this file:

- Values are pieces of JSON (`msgspec.Raw`) from end to end: a vector is copied, never parsed, so that floats, base64
  and whatever a server adds keep their bytes.
- A part belongs to the input that its `index` names. Position counts only for a form without an index, and an answer
  that does not account for each input exactly once is a `BatchError` as a whole.
- A body that does not look exactly like its form is none of this file's business: `read` gives None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from netkit.errors import BatchError
from netkit.identity import repeats_a_name
from netkit.shares import share, total

__all__ = ["PICTURE_TOKENS", "PRESETS", "Answer", "Form", "Inputs", "Part"]

PICTURE_TOKENS: Final = 256
"""What a picture counts as in an estimate of tokens, however large its file is."""

BYTES_PER_TOKEN: Final = 4
"""Of English text; an estimate."""

Fields: TypeAlias = "dict[str, Raw]"
Part: TypeAlias = "Fields | Raw"
"""The answer to one input: the fields of its object, or the bare value where the form has no objects."""


class _Listed(msgspec.Struct, forbid_unknown_fields=True):
    """An OpenAI-shaped answer, read in one pass; a server that adds fields is read in two."""

    data: list[dict[str, Raw]]
    object: Raw = Raw()
    model: Raw = Raw()
    usage: Raw = Raw()
    id: Raw = Raw()
    created: Raw = Raw()


_listed: Final = msgspec.json.Decoder(_Listed)
_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_objects: Final = msgspec.json.Decoder(list[dict[str, Raw]])
_values: Final = msgspec.json.Decoder(list[Raw])
_anything: Final = msgspec.json.Decoder()
_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode
_NULL: Final = Raw(b"null")
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""No JSON, no UTF-8, nested too deeply."""


class Inputs:
    """The inputs of one call, and all else that it says.

    `items` holds one piece of JSON for each input: a text, a token array, an object. `rest` is the canonical form of
    everything but the inputs. `kind` is "tokens" or "texts": no server takes both in one list. `tokens` estimates
    their tokens, `sizes` gives their bytes within a body.
    """

    __slots__ = ("_form", "_parents", "_sizes", "_tokens", "items", "kind", "rest")

    def __init__(self, form: Form, parents: list[Fields], items: tuple[Raw, ...]) -> None:
        self._form = form
        self._parents = parents
        self.items = items
        self.kind = "tokens" if _kind(items[0]) == "list" else "texts"
        self.rest = _nested(parents, form.input[:-1], _encode_sorted)
        self._sizes: tuple[int, ...] | None = None
        self._tokens: tuple[int, ...] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        if self._sizes is None:
            self._sizes = tuple(len(memoryview(item)) + 1 for item in self.items)
        return self._sizes

    @property
    def tokens(self) -> tuple[int, ...]:
        if self._tokens is None:
            self._tokens = tuple(map(_tokens, self.items))
        return self._tokens

    def body(self, items: Sequence[Raw]) -> bytes:
        """This call's body with `items` for inputs, always as a list."""
        *outer, inner = self._parents
        filled = {**inner, self._form.input[-1]: Raw(b"[%b]" % b",".join(map(bytes, items)))}
        return _nested([*outer, filled], self._form.input[:-1], _encode)

    @property
    def overhead(self) -> int:
        """Bytes of a body beside its inputs."""
        return len(self.rest) + len(self._form.input[-1]) + 8

    def __repr__(self) -> str:
        return f"<Inputs {len(self.items)} items, {sum(self.sizes)} bytes>"


class Answer:
    """A merged answer, taken apart: `parts` in the order of the inputs, and what stands around them."""

    __slots__ = ("_usage", "envelope", "parts")

    def __init__(self, envelope: list[Fields], parts: list[Part], usage: Raw | None) -> None:
        self.envelope = envelope
        """The objects from the outermost to the one that holds the parts, without them; empty for a bare array."""
        self.parts = parts
        self._usage = usage

    @property
    def usage(self) -> Any:
        """What the answer says of its use, decoded; None when it says nothing. Raises `BatchError` for what cannot be
        decoded, such as 1e999."""
        try:
            return None if self._usage is None else _anything.decode(self._usage)
        except _UNREADABLE as error:
            raise BatchError("the usage that an answer states cannot be read") from error

    def usages(self, weights: Sequence[int]) -> list[Any]:
        """`usage` shared out by `weights`: see `shares.share`. Raises `BatchError` where that cannot be done."""
        usage = self.usage
        try:
            return share(usage, weights)
        except (ArithmeticError, RecursionError) as error:
            raise BatchError(f"the usage of an answer to {len(weights)} inputs cannot be shared out") from error

    def __repr__(self) -> str:
        return f"<Answer {len(self.parts)} parts>"


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """Where inputs stand in a request, and their parts in its answer; paths are tuples of field names.

    `single`: fields that hold one input beside each other, where a form has that shape too (`{"image": …}`).
    `objects`: whether an input may be a JSON object. `output` () is a bare array. `index` names the field that says
    to which input a part belongs; None: the form has none. `index_optional`: some servers of this form leave it out.
    """

    name: str
    input: tuple[str, ...]
    output: tuple[str, ...]
    index: str | None = None
    index_optional: bool = False
    single: tuple[str, ...] = ()
    objects: bool = False

    def read(self, content: bytes) -> Inputs | None:
        """The inputs of a request body, None for a body that is not of this form."""
        try:
            parents = [_members(content)]
            for name in self.input[:-1]:
                parents.append(_members(bytes(parents[-1][name])))
            inner = parents[-1]
            given = inner.pop(self.input[-1], None)
            alone = {name: inner.pop(name) for name in self.single if name in inner}
            if (given is None) == (not alone):
                return None
            items = (Raw(_encode(alone)),) if given is None else self._items(given)
        except (*_UNREADABLE, KeyError):
            return None
        return None if items is None else Inputs(self, parents, items)

    def _items(self, given: Raw) -> tuple[Raw, ...] | None:
        kind = _kind(given)
        if kind == "text" or (kind == "object" and self.objects):
            return (given,)
        if kind != "list":
            return None
        items = _values.decode(given)
        kinds = set(map(_kind, items))
        if kinds == {"number"}:
            # [1, 2, 3] is one input: a text that its caller has made tokens of.
            return (given,)
        if kinds in ({"text"}, {"list"}) or (self.objects and kinds and kinds <= {"text", "object"}):
            return tuple(items)
        return None

    def split(self, content: bytes, count: int) -> Answer:
        """The parts of an answer to `count` inputs.

        Raises `BatchError` for anything that does not give each input exactly one part. Its message tells what is
        wrong and shows nothing of the content.
        """
        try:
            envelope, parts = self._taken_apart(content)
        except (*_UNREADABLE, KeyError) as error:
            where = ".".join(self.output) or "an array"
            raise BatchError(
                f"the answer to a batch of {count} has no results ({where}) as {self.name} has"
            ) from error
        if len(parts) != count:
            raise BatchError(f"the answer to a batch of {count} has {len(parts)} results")
        usage = envelope[0].pop("usage", None) if envelope and envelope[0].get("usage") != _NULL else None
        return Answer(envelope, self._ordered(parts), usage)

    def _taken_apart(self, content: bytes) -> tuple[list[Fields], list[Any]]:
        if not self.output:
            return [], _values.decode(content)
        if self.output == ("data",):
            try:
                listed = _listed.decode(content)
            except msgspec.ValidationError:
                pass
            else:
                known = ((name, getattr(listed, name)) for name in _Listed.__struct_fields__[1:])
                return [{name: value for name, value in known if memoryview(value)}], listed.data
        envelope = [_fields.decode(content)]
        for name in self.output[:-1]:
            envelope.append(_fields.decode(envelope[-1].pop(name)))
        results = envelope[-1].pop(self.output[-1])
        return envelope, (_values if self.index is None else _objects).decode(results)

    def _ordered(self, parts: list[Any]) -> list[Any]:
        if self.index is None:
            return parts
        if self.index_optional and not any(self.index in part for part in parts):
            return parts
        ordered: list[Any] = [None] * len(parts)
        for part in parts:
            said = part.get(self.index)
            text = b"" if said is None else bytes(said)
            number = int(text) if text.isdigit() and len(text) < 10 else len(parts)
            if number >= len(parts) or ordered[number] is not None:
                raise BatchError(
                    f"the answer to a batch of {len(parts)} has a result whose {self.index!r} is missing, out of "
                    "range or taken: it cannot be said whose it is"
                )
            ordered[number] = part
        return ordered

    def build(self, envelope: Sequence[Fields], parts: Sequence[Part], usage: Any = None) -> bytes:
        """An answer that holds `parts`, numbered from 0, and `usage` unless it is None."""
        if self.index is not None:
            parts = [
                {**part, self.index: Raw(b"%d" % number)} if isinstance(part, dict) and self.index in part else part
                for number, part in enumerate(parts)
            ]
        if not self.output:
            return _encode(parts)
        *outer, inner = envelope
        chain: list[dict[str, Any]] = [*outer, {**inner, self.output[-1]: parts}]
        if usage is not None:
            chain[0] = {**chain[0], "usage": usage}
        return _nested(chain, self.output[:-1], _encode)

    def joined_usage(self, usages: Sequence[Any]) -> Any:
        """The sum of what several answers say of their use; None where none says anything."""
        said = [usage for usage in usages if usage is not None]
        return total(said) if len(said) > 1 else said[0] if said else None

    def dump(self, part: Part) -> bytes:
        """One part as JSON, to be kept; its index, where it has one, is that of the answer that it came in."""
        return _encode(part)

    def load(self, content: bytes) -> Part:
        """What `dump` made. Raises `msgspec.DecodeError` for anything else."""
        part: Part = Raw(content) if self.index is None else _fields.decode(content)
        return part


def _nested(chain: Sequence[Mapping[str, Any]], path: Sequence[str], encode: Any) -> bytes:
    """`chain[0]` with `chain[1]` in its field `path[0]`, and so on inwards."""
    inner = encode(chain[-1])
    for parent, name in zip(chain[-2::-1], reversed(path), strict=True):
        inner = encode({**parent, name: Raw(inner)})
    content: bytes = inner
    return content


def _kind(value: Raw) -> str:
    first = bytes(memoryview(value)[:1])
    if first in b"-0123456789":
        return "number"
    return {b'"': "text", b"[": "list", b"{": "object"}.get(first, "other")


def _tokens(item: Raw) -> int:
    view = memoryview(item)
    first = bytes(view[:12])
    if first.startswith(b"["):
        return bytes(item).count(b",") + 1
    if first.startswith(b'"data:image/'):
        return PICTURE_TOKENS
    if first.startswith(b"{") and _holds_picture(item):
        return PICTURE_TOKENS
    return len(view) // BYTES_PER_TOKEN + 1


def _holds_picture(item: Raw) -> bool:
    try:
        return any(name.startswith("image") for name in _fields.decode(item))
    except _UNREADABLE:
        return False


def _members(content: bytes) -> Fields:
    """The members of an object. Raises `ValueError` where one is given twice: merged or remembered, it would be read
    in a way that its server may not share."""
    members = _fields.decode(content)
    if repeats_a_name(content, members):
        raise ValueError("a name is given twice")
    return members


PRESETS: Final[dict[str, Form]] = {
    "openai": Form(name="openai", input=("input",), output=("data",), index="index"),
    "tei": Form(name="tei", input=("inputs",), output=()),
    "gme": Form(
        name="gme",
        input=("inputs",),
        output=("data",),
        index="index",
        index_optional=True,
        single=("image", "image_url", "text"),
        objects=True,
    ),
}
"""`openai`: `input` → `data[].index`, a part without index is malformed; `tei`: `inputs` → an array; `gme`: `inputs`,
or `image`, `image_url` or `text` by itself → `data`."""
