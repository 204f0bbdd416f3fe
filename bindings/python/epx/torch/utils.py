# Where programs written for DeepEP look for events. SPDX-License-Identifier: Apache-2.0
from .buffer import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
