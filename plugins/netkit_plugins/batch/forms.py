"""The forms of calls with inputs: `netkit.forms`, which `cache` splits answers by too."""

from __future__ import annotations

from netkit.forms import PICTURE_TOKENS, PRESETS, Answer, Form, Inputs, Part

__all__ = ["PICTURE_TOKENS", "PRESETS", "Answer", "Form", "Inputs", "Part"]
